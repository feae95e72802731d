"""Samples of a function as a dataset: what they determine, where they are kept, what contradicts them, and how the
worker process ends."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import Config, DatasetSpec, MeasureSpec, ModelSpec
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, user_function
from scalebench.workloads.datasets.user_function import FunctionCall
from tests.builders.plugins import dists as dists
from tests.builders.runs import find_running, wait_until

USER_MODEL = ModelSpec("custom", torch="made_of:network", loss="auto", metric="auto")
READ_S = 0.004  # of one sample of the slow Dataset
CODE = f"""\
import time
import numpy as np

def network(): ...

class Slow:
    def __getitem__(self, row):
        time.sleep({READ_S})
        return np.ones(4, np.float32), np.ones(1, np.float32)

def build(size, seed, kind="quantities", returned=None):
    size = returned or size
    inputs = np.random.default_rng(seed).normal(size=(size, 4))
    if kind == "quantities":
        return inputs, inputs[:, 0]
    if kind == "one_hot":
        return inputs, np.eye(3, dtype=np.float32)[np.arange(size) % 3]
    if kind == "slow":
        return Slow()
    if kind == "broken":
        raise ValueError("broken")
    if kind == "pictures":
        inputs = np.zeros((size, 8, 8, 3), np.uint8)
    if kind == "per_position":
        return inputs, np.arange(4 * size).reshape(size, 4) % 7
    return inputs, np.arange(size) % 7
"""
PICTURES = {"options": {"kind": "pictures"}}
CLASSES = {"options": {"kind": "classes"}}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The (size, time limit) of each call of the function, which is made in this process."""
    (tmp_path / "made_of.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_function, "_failed", {})
    calls = []

    def run_function(call, limit_s, folder):
        calls.append((call.size, limit_s))
        user_function.make_samples(call, folder)

    monkeypatch.setattr(user_function, "run_function", run_function)
    yield calls
    for name in ("made_of", "more_data"):
        sys.modules.pop(name, None)


def config(tmp_path, model=USER_MODEL, **changes):
    fields = {"name": "custom", "size": 100, "builder": "made_of:build", "cache": str(tmp_path / "cache"), **changes}
    return Config(model=model, dataset=DatasetSpec(**fields), measure=MeasureSpec(timeout_s=12.0))


WORDS = "strategy=bare_torch hardware=cpu gpus=1 model=custom model.torch=made_of:network dataset=custom \
    dataset.builder=made_of:build train.batch_per_device=4"


@pytest.fixture
def plan(calls, tmp_path):
    """Return plan(*words) -> the spec of a run on samples of that function."""
    cached = [*WORDS.split(), f"dataset.cache={tmp_path / 'cache'}"]
    return lambda *words: resolve(compose_config([*cached, *words]))


def test_samples_are_flagged(calls, plan):
    """Classes that are written as floats, where auto took mse for them: other targets, and a loss that was chosen, are
    as they should be. And a run on the first of more samples, also the second one, for which they are cached and
    nothing is printed."""
    for words, flagged in (
        (["+dataset.options.kind=one_hot"], True),
        (["+dataset.options.kind=one_hot", "model.loss=mse"], False),
        ([], False),
    ):
        spec = plan("dataset.size=100", *words)
        assert spec.config.model.loss == "mse" and ("one_hot_targets" in spec.flags) == flagged
    for returned, flagged in ((101, True), (100, False), (58, False)):
        calls.clear()
        specs = [plan("dataset.size=100", f"+dataset.options.returned={returned}") for _ in range(2)]
        assert ["samples_cut" in each.flags for each in specs] == [flagged] * 2 and len(calls) == 1


def test_the_rate_at_which_a_dataset_was_read_is_kept_with_its_samples(calls, plan, tmp_path):
    """Arrays are not read sample by sample, and have none."""
    begin_s = time.perf_counter()
    first = plan("dataset.size=40", "+dataset.options.kind=slow").read_samples_per_s
    wall_s = time.perf_counter() - begin_s
    assert first is not None and 40 / wall_s <= first <= 1 / READ_S
    assert plan("dataset.size=40", "+dataset.options.kind=slow").read_samples_per_s == first
    assert len(calls) == 1 and plan("dataset.size=40").read_samples_per_s is None


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, (100, None, "float32", [4], [1], 1, "mse")),
    (PICTURES, (100, 7, "uint8", [8, 8, 3], [], 7, "cross_entropy")),
    ({**PICTURES, "classes": 9}, (100, 9, "uint8", [8, 8, 3], [], 9, "cross_entropy")),  # some classes may be missing
    ({**CLASSES, "size": 1}, (1, 2, "float32", [4], [], 2, "cross_entropy")),  # a classifier needs two
    ({"options": {"kind": "per_position"}}, (100, 7, "float32", [4], [4], 7, "cross_entropy")),
])  # fmt: skip
def test_the_samples_decide(tmp_path, calls, changes, expected):
    full = datasets.fill_from_samples(config(tmp_path, **changes))
    datasets.check(full)
    dataset, model = full.dataset, full.model
    shapes = model.input_shape, model.target_shape, model.outputs, model.loss
    assert (dataset.size, dataset.classes, dataset.dtype, *shapes) == expected


@pytest.mark.parametrize(("name", "shapes", "kind", "message"), [
    ("materials_cnn", {"input_shape": [200, 3], "target_shape": [2]}, "quantities", r"samples of \(4,\)"),
    ("mlp", {"input_shape": [4], "target_shape": [2]}, "quantities", r"targets of \(1,\)"),
    ("mlp", {"input_shape": [4], "outputs": 3}, "classes", "7 classes, model=mlp has 3 outputs: "),
    ("mlp", {"input_shape": [4], "target_shape": [9], "outputs": 9}, "classes",
     "class numbers as targets, model=mlp takes quantities: "),
])  # fmt: skip
def test_built_in_networks_that_do_not_fit(tmp_path, calls, name, shapes, kind, message):
    with pytest.raises(InputError, match=rf"^dataset=made_of:build has .*{message}"):
        datasets.check(datasets.fill_from_samples(config(tmp_path, ModelSpec(name, **shapes), options={"kind": kind})))


def test_they_are_made_once_and_read_by_every_process(tmp_path, calls):
    """Whatever makes other samples makes another folder."""
    for options, size, requested in (({}, 100, None), ({"returned": 58}, 58, 100)):
        calls.clear()
        full = datasets.fill_from_samples(config(tmp_path, options=options))
        assert (full.dataset.size, full.dataset.requested_size) == (size, requested)
        folder = datasets.prepare(full)
        inputs, targets = cache.open_arrays(folder)
        assert inputs.shape == (size, 4) and np.array_equal(inputs[:, :1], targets)
        assert datasets.fill_from_samples(full) == full and calls == [(100, 12.0)]
        assert folder.parent == tmp_path / "cache" and folder.name.startswith("custom-")

    def make(**changes):
        return datasets.prepare(datasets.fill_from_samples(config(tmp_path, **changes)))

    folders = [make(), make(size=90), make(seed=1), make(**CLASSES), make(name="other")]
    (tmp_path / "made_of.py").write_text(CODE + "# changed\n")
    assert len({*folders, make()}) == 6


def test_a_sweep_waits_once_for_a_failure(tmp_path, calls):
    for _ in range(3):
        with pytest.raises(PluginError, match=r"^dataset.builder=made_of:build fails: ValueError: broken$"):
            datasets.fill_from_samples(config(tmp_path, options={"kind": "broken"}))
    assert calls == [(100, 12.0)]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    user_function.forget_failures()  # as a later call does
    with pytest.raises(PluginError):
        datasets.fill_from_samples(config(tmp_path, options={"kind": "broken"}))
    assert len(calls) == 2


def test_a_number_of_classes_that_contradicts_the_samples(tmp_path, calls):
    for changes, message in (
        ({"classes": 3}, r"^dataset=custom has quantities as targets: leave out dataset.classes$"),
        ({**CLASSES, "classes": 3}, r"^dataset.classes=3, and dataset=custom has class 6: raise it$"),
    ):
        with pytest.raises(InputError, match=message):
            datasets.fill_from_samples(config(tmp_path, **changes))


def test_built_in_networks_take_pictures_at_their_size(tmp_path, calls):
    model = ModelSpec("resnet20_cifar10", input_shape=[32, 32, 3], outputs=11, loss="cross_entropy", params=269_787)
    full = datasets.fill_from_samples(config(tmp_path, model, **PICTURES))
    assert (full.model.input_shape, full.model.params, full.model.outputs) == ([8, 8, 3], None, 11)
    datasets.check(full)


def test_a_dataset_of_a_plugin(tmp_path, calls, dists):
    functions = {"more": "more_data:build", "broken": "more_data:missing"}
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": functions})
    full = datasets.fill_from_samples(config(tmp_path, name="more", builder=None))
    assert full.dataset.code_digest and datasets.label(full) == "more"
    assert datasets.label(config(tmp_path)) == "made_of:build"
    datasets.check(full)
    assert datasets.prepare(full).name.startswith("more-")
    with pytest.raises(InputError, match=r"^dataset=more has its samples already: dataset.builder is for dataset=cus"):
        datasets.fill_from_samples(config(tmp_path, name="more"))
    with pytest.raises(InputError, match=r"^no dataset 'mroe'; did you mean 'more'\?$"):
        datasets.fill_from_samples(config(tmp_path, name="mroe", builder=None))
    with pytest.raises(PluginError, match=r"^data set 'broken' of more-data cannot be loaded from more_data:missing"):
        datasets.fill_from_samples(config(tmp_path, name="broken", builder=None))


WORKER_CODE = """\
import os, pathlib, signal, subprocess, sys, time
import numpy as np


def build(size, seed, fault="", times=1):
    print("x" * 30_000, "made here", file=sys.stderr)
    if fault == "raise":
        raise ValueError("bad\\nthings")
    if fault == "leave":
        os._exit(4)
    if fault in ("SIGKILL", "SIGSEGV"):
        os.kill(os.getpid(), getattr(signal, fault))
    if fault == "sleep":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(300)
    assert sys.stdin.read() == ""
    inputs = np.full((size, 3), seed, np.float32) * times
    return inputs, inputs[:, 0]
"""


def run_worker(tmp_path, limit_s=60.0, **options):
    (tmp_path / "mine.py").write_text(WORKER_CODE)
    call = FunctionCall("mine:build", "dataset.builder=mine:build", 5, 7, options)
    user_function.run_function(call, limit_s, tmp_path / "made")


@pytest.fixture
def typed_stdin():
    """Standard input with something that is not for the function."""
    original, (read_end, write_end) = os.dup(0), os.pipe()
    os.write(write_end, b"typed\n")
    os.close(write_end)
    os.dup2(read_end, 0)
    yield
    os.dup2(original, 0)
    os.close(original)
    os.close(read_end)


def test_a_worker_writes_both_arrays(tmp_path, typed_stdin, capfd):
    with pytest.raises(OSError) as caught:
        run_worker(tmp_path)  # there is no folder to write to
    assert caught.value.errno == errno.ENOENT
    (tmp_path / "made").mkdir()
    run_worker(tmp_path, times=2)
    inputs, targets = cache.open_arrays(tmp_path / "made")
    assert inputs.shape == (5, 3) and targets.shape == (5, 1) and float(inputs[0, 0]) == 14.0
    assert "made here" not in capfd.readouterr().err


FAULTS = {
    "raise": "fails: ValueError: bad things",
    "leave": "ended its process with exit status 4 and gave no samples: it should return them",
    "SIGKILL": r"was killed while it made its samples \(out of memory\?\): lower dataset.size",
    "SIGSEGV": "was ended by SIGSEGV while it made its samples",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_with_its_output_in_the_log(tmp_path, fault):
    with pytest.raises(PluginError, match=rf"^dataset.builder=mine:build {FAULTS[fault]}") as caught:
        run_worker(tmp_path, fault=fault)
    assert "\n" not in str(caught.value) and "made here" in caught.value.log
    assert len(caught.value.log) < 1.5 * user_function.MAX_LOG_BYTES  # the end of its output alone
    if fault == "raise":
        assert 'mine.py", line' in caught.value.log


@pytest.mark.slow
def test_a_late_worker_is_ended_with_all_that_it_started(tmp_path, capsys):
    with pytest.raises(PluginError, match=r"was not done after 4 s: lower dataset.size or raise measure.timeout_s$"):
        run_worker(tmp_path, 4.0, fault="sleep")
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not find_running(pids))
    assert capsys.readouterr().err == "dataset.builder=mine:build is making its samples, 5 requested\n"


@pytest.mark.slow
def test_a_worker_ends_with_its_parent(tmp_path):
    (tmp_path / "mine.py").write_text(WORKER_CODE)
    code = (
        "from pathlib import Path\n"
        "from scalebench.workloads.datasets.user_function import FunctionCall, run_function\n"
        "call = FunctionCall('mine:build', 'dataset.builder=mine:build', 5, 7, {'fault': 'sleep'})\n"
        "run_function(call, 300, Path('made'))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        parent.send_signal(signal.SIGKILL)
    worker, child = (int(word) for word in (tmp_path / "pids").read_text().split())
    wait_until(lambda: not find_running([worker]))
    os.kill(child, signal.SIGKILL)  # ending its own children would be the function's task
