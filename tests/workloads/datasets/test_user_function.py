"""Samples of a function as a dataset: what they determine, where they are kept, what contradicts them, and how the
worker process ends; which samples the process that calls the function (here called in this process) accepts, and which
problems it reports."""

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError, PluginError
from scalebench.core.spec import Config, DatasetSpec, MeasureSpec, ModelSpec
from scalebench.workloads import datasets, records
from scalebench.workloads.datasets import cache, user_function, user_function_worker
from scalebench.workloads.datasets.user_function import FunctionCall
from scalebench.workloads.datasets.user_function_worker import UnusableSamples
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
"""
CODE += """

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
    return inputs, np.arange(size) % 7
"""
PICTURES: dict[str, Any] = {"options": {"kind": "pictures"}}
CLASSES: dict[str, Any] = {"options": {"kind": "classes"}}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The (size, time limit) of each call of the function, which is made in this process."""
    (tmp_path / "made_of.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_function, "_failed", {})
    calls = []

    def run_function(call, limit_s, folder):
        calls.append((call.size, limit_s))
        response = user_function_worker.handle_request({**dataclasses.asdict(call), "folder": str(folder)})
        if "problem" in response:
            raise PluginError(response["problem"])

    monkeypatch.setattr(user_function, "run_function", run_function)
    yield calls
    for name in ("made_of", "more_data"):
        sys.modules.pop(name, None)


def config(tmp_path, model=USER_MODEL, **changes):
    fields = {"name": "custom", "size": 100, "builder": "made_of:build", "cache": str(tmp_path / "cache"), **changes}
    return Config(model=model, dataset=DatasetSpec(**fields), measure=MeasureSpec(timeout_s=12.0))


@pytest.mark.parametrize(
    ("options", "loss", "flagged"),
    [({"kind": "one_hot"}, "auto", True), ({"kind": "one_hot"}, "mse", False), ({}, "auto", False)],
)
def test_classes_that_are_written_as_floats_are_flagged(calls, tmp_path, options, loss, flagged):
    """Where auto took mse for them; other targets, and a loss that was chosen, are as they should be."""
    keys = [f"+dataset.options.{key}={value}" for key, value in options.items()]
    names = "strategy=bare_torch hardware=cpu gpus=1 model=custom model.torch=made_of:network dataset=custom"
    keys += ["dataset.builder=made_of:build", "dataset.size=100", f"dataset.cache={tmp_path / 'cache'}"]
    spec = resolve(compose_config([*names.split(), f"model.loss={loss}", *keys]))
    assert spec.config.model.loss == "mse"
    assert ("one_hot_targets" in spec.flags) == flagged


def test_the_rate_at_which_a_dataset_was_read_is_kept_with_its_samples(calls, tmp_path):
    """Arrays are not read sample by sample, and have none, as samples that were cached by an earlier version."""
    keys = f"strategy=bare_torch hardware=cpu gpus=1 model=custom model.torch=made_of:network dataset=custom \
        dataset.builder=made_of:build dataset.size=40 train.batch_per_device=4 dataset.cache={tmp_path / 'cache'}"
    begin_s = time.perf_counter()
    first = resolve(compose_config([*keys.split(), "+dataset.options.kind=slow"])).read_samples_per_s
    wall_s = time.perf_counter() - begin_s
    assert first is not None and 40 / wall_s <= first <= 1 / READ_S
    assert resolve(compose_config([*keys.split(), "+dataset.options.kind=slow"])).read_samples_per_s == first
    assert len(calls) == 1 and resolve(compose_config(keys.split())).read_samples_per_s is None
    folder = datasets.prepare(datasets.fill_from_samples(config(tmp_path, options={"kind": "slow"}, size=4)))
    (folder / user_function.READING_FILE).unlink()
    assert user_function.read_facts.__wrapped__(folder).reading.samples_per_s is None


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, (100, None, "float32", [4], [1], 1, "mse")),
    (PICTURES, (100, 7, "uint8", [8, 8, 3], [], 7, "cross_entropy")),
    ({**PICTURES, "classes": 9}, (100, 9, "uint8", [8, 8, 3], [], 9, "cross_entropy")),  # some classes may be missing
    ({**CLASSES, "size": 1}, (1, 2, "float32", [4], [], 2, "cross_entropy")),  # a classifier needs two
])  # fmt: skip
def test_the_samples_decide(tmp_path, calls, changes, expected):
    full = datasets.fill_from_samples(config(tmp_path, **changes))
    dataset, model = full.dataset, full.model
    shapes = model.input_shape, model.target_shape, model.outputs, model.loss
    assert (dataset.size, dataset.classes, dataset.dtype, *shapes) == expected


@pytest.mark.parametrize(("options", "size", "requested"), [({}, 100, None), ({"returned": 58}, 58, 100)])
def test_they_are_made_once_and_read_by_every_process(tmp_path, calls, options, size, requested):
    full = datasets.fill_from_samples(config(tmp_path, options=options))
    assert (full.dataset.size, full.dataset.requested_size) == (size, requested)
    folder = datasets.prepare(full)
    inputs, targets = cache.open_arrays(folder)
    assert inputs.shape == (size, 4) and np.array_equal(inputs[:, :1], targets)
    assert datasets.fill_from_samples(full) == full and calls == [(100, 12.0)]
    assert folder.parent == tmp_path / "cache" and folder.name.startswith("custom-")


def test_whatever_makes_other_samples_makes_another_folder(tmp_path, calls):
    def folder(**changes):
        return datasets.prepare(datasets.fill_from_samples(config(tmp_path, **changes)))

    folders = [folder(), folder(size=90), folder(seed=1), folder(**CLASSES), folder(name="other")]
    (tmp_path / "made_of.py").write_text(CODE + "# changed\n")
    assert len({*folders, folder()}) == 6


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


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a path": ({"path": "/x.npz"}, r"^dataset=custom is made by a function, not read: leave out dataset.path$"),
    "pixels": ({"image_size": 32}, r"^dataset=custom has samples as its function makes them: leave out"),
    "classes": ({"classes": 3}, r"^dataset=custom has quantities as targets: leave out dataset.classes$"),
    "too few": ({**CLASSES, "classes": 3}, r"^dataset.classes=3, and dataset=custom has class 6: raise it$"),
    "no function": ({"builder": None}, r"^dataset=custom has samples of your own: set dataset.builder=MODULE:FUNCTION"),
    "missing": ({"builder": "made_of:bild"}, r"no function in .* 'bild'; did you mean 'build'\?$"),
    "built-in": ({"name": "materials"}, r"^dataset=materials has its samples already: dataset.builder is for"),
    "options of a built-in": (
        {"name": "materials", "builder": None, "options": {"noise": 1}},
        r"^dataset.options.noise is for a function of your own, and dataset=materials has none$",
    ),
    "unknown": ({"name": "custon", "builder": None}, r"^no dataset 'custon'; did you mean 'custom'\?$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_users_mistake(tmp_path, calls, case):
    changes, message = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        datasets.fill_from_samples(config(tmp_path, **changes))
    assert not isinstance(caught.value, PluginError)


def test_built_in_networks_take_pictures_at_their_size(tmp_path, calls):
    model = ModelSpec("resnet20_cifar10", input_shape=[32, 32, 3], outputs=11, loss="cross_entropy", params=269_787)
    full = datasets.fill_from_samples(config(tmp_path, model, **PICTURES))
    assert (full.model.input_shape, full.model.params, full.model.outputs) == ([8, 8, 3], None, 11)
    datasets.check(full)


MISFITS = {
    "samples": (ModelSpec("materials_cnn", input_shape=[200, 3], target_shape=[2]), "quantities", r"samples of \(4,\)"),
    "targets": (ModelSpec("mlp", input_shape=[4], target_shape=[2]), "quantities", r"targets of \(1,\)"),
    "outputs": (ModelSpec("mlp", input_shape=[4], outputs=3), "classes", "7 classes, model=mlp has 3 outputs: "),
    "kind": (ModelSpec("mlp", input_shape=[4], target_shape=[9], outputs=9), "classes", "9 outputs that are quant"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_built_in_networks_that_do_not_fit(tmp_path, calls, case):
    model, kind, message = MISFITS[case]
    with pytest.raises(InputError, match=rf"^dataset=made_of:build has .*{message}"):
        datasets.check(datasets.fill_from_samples(config(tmp_path, model, options={"kind": kind})))


def test_settings_of_decoding_are_refused_where_samples_are_made_once(tmp_path):
    for key, value in (("workers", 2), ("augment", False)):
        with pytest.raises(InputError, match=rf"^dataset.{key} is of pictures that are decoded during training, and"):
            datasets.check(config(tmp_path, **{key: value}))


def test_a_dataset_of_a_plugin(tmp_path, calls, dists):
    functions = {"more": "more_data:build", "broken": "more_data:missing"}
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": functions})
    full = datasets.fill_from_samples(config(tmp_path, name="more", builder=None))
    assert full.dataset.code_digest and datasets.label(full) == "more"
    assert datasets.label(config(tmp_path)) == "made_of:build"
    datasets.check(full)
    assert datasets.prepare(full).name.startswith("more-")
    with pytest.raises(InputError, match=r"^dataset=more has its function already: dataset.builder is for dataset=cus"):
        datasets.fill_from_samples(config(tmp_path, name="more"))
    with pytest.raises(InputError, match=r"^no dataset 'mroe'; did you mean 'more'\?$"):
        datasets.fill_from_samples(config(tmp_path, name="mroe", builder=None))
    with pytest.raises(PluginError, match=r"^data set 'broken' of more-data cannot be loaded from more_data:missing"):
        datasets.fill_from_samples(config(tmp_path, name="broken", builder=None))


# From here on every test starts a worker process.
WORKER_CODE = """\
import os, pathlib, signal, subprocess, sys, time
import numpy as np


def build(size, seed, fault="", times=1):
    print("made here", file=sys.stderr)
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
    call = FunctionCall("mine:build", "dataset.builder=mine:build", True, 5, 7, options)
    user_function.run_function(call, limit_s, tmp_path / "made")


@pytest.fixture
def typed_stdin():
    """Standard input with something that is not for the function."""
    original = os.dup(0)
    read_end, write_end = os.pipe()
    os.write(write_end, b"typed\n")
    os.close(write_end)
    os.dup2(read_end, 0)
    yield
    os.dup2(original, 0)
    os.close(original)
    os.close(read_end)


def test_a_worker_writes_both_arrays(tmp_path, typed_stdin, capfd):
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
    if fault == "raise":
        assert 'mine.py", line' in caught.value.log


def test_a_failed_write_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError) as caught:
        run_worker(tmp_path)  # there is no folder to write to
    assert caught.value.errno == errno.ENOENT


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
        "call = FunctionCall('mine:build', 'dataset.builder=mine:build', True, 5, 7, {'fault': 'sleep'})\n"
        "run_function(call, 300, Path('made'))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        parent.send_signal(signal.SIGKILL)
    worker, child = (int(word) for word in (tmp_path / "pids").read_text().split())
    wait_until(lambda: not find_running([worker]))
    os.kill(child, signal.SIGKILL)  # ending its own children would be the function's task


SMALL_CODE = """\
import sys
import numpy as np
from scalebench.core.errors import InputError


def build(size, seed, body="", noise=0.0):
    exec(body)
    inputs = np.full((size, 3), seed + noise)
    return inputs, inputs


number = 3
"""
FLOATS = np.linspace(0, 1, 24).reshape(6, 4)


@pytest.fixture(autouse=True)
def user_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made_here.py").write_text(SMALL_CODE)
    yield
    sys.modules.pop("made_here", None)


def respond(folder, reference="made_here:build", **options):
    label = f"dataset.builder={reference}"
    request = {"reference": reference, "label": label, "from_user": True, "size": 5, "seed": 7}
    return user_function_worker.handle_request({**request, "options": options, "folder": str(folder)})


def test_the_function_is_called_with_size_seed_and_options(tmp_path):
    assert respond(tmp_path, noise=0.5) == {}
    inputs, targets = cache.open_arrays(tmp_path)
    assert np.array_equal(inputs, np.full((5, 3), 7.5, np.float32)) and np.array_equal(inputs, targets)


def test_the_function_of_a_plugin(tmp_path, dists):
    dists.add("more-data", {"more_data.py": SMALL_CODE}, {"datasets": {"more": "more_data:build"}})
    label = "data set 'more' of more-data"
    request = {"reference": "more_data:build", "label": label, "from_user": False, "size": 2, "seed": 0}
    assert user_function_worker.handle_request({**request, "options": {}, "folder": str(tmp_path)}) == {}
    assert len(cache.open_arrays(tmp_path)[0]) == 2
    wrong = user_function_worker.handle_request({**request, "options": {"body": "1 / 0"}, "folder": str(tmp_path)})
    assert wrong["problem"] == "data set 'more' of more-data fails: ZeroDivisionError: division by zero"


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"body": "raise ValueError('bad\\nthings')"}, "fails: ValueError: bad things"),
    "exits": ({"body": "sys.exit(3)"}, "fails: SystemExit: 3"),
    "memory": ({"body": "raise MemoryError"}, "ran out of memory: lower dataset.size"),
    "options": ({"nose": 1}, "fails: TypeError: build() got an unexpected keyword argument"),
    "unusable": ({"noise": float("nan")}, "returns NaN or an infinite value in inputs, first at sample 0"),
    "no function": ({"reference": "made_here:number"}, "is no function"),
    "missing": ({"reference": "made_here:biuld"}, "cannot be loaded"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems_are_one_line(tmp_path, case):
    arguments, line = PROBLEMS[case]
    response = respond(tmp_path, **arguments)
    reference = arguments.get("reference", "made_here:build")
    assert response["problem"].startswith(f"dataset.builder={reference} {line}")
    assert "\n" not in response["problem"]
    assert ("Traceback" in response.get("log", "")) == (case not in ("unusable", "no function"))


def test_input_errors_and_failed_writes_are_not_the_functions_fault(tmp_path, monkeypatch):
    line = "noise should be positive"
    assert respond(tmp_path, body=f"raise InputError('{line}')") == {"input": line}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "create_array", full)
    assert respond(tmp_path) == {"errno": errno.ENOSPC}


def write(inputs, targets, folder):
    user_function_worker.write_samples((inputs, targets), folder, 10**9)
    return cache.open_arrays(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8"])
def test_floats_become_float32(tmp_path, dtype):
    inputs, targets = write(FLOATS.astype(dtype), FLOATS[:, 1].astype(dtype), tmp_path)
    assert inputs.dtype == targets.dtype == np.float32
    assert np.array_equal(inputs, FLOATS.astype(dtype).astype(np.float32))
    assert targets.shape == (6, 1) and np.array_equal(targets, inputs[:, 1:2])


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool"])
def test_integer_targets_are_class_numbers_and_pictures_stay_bytes(tmp_path, dtype):
    pictures = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)
    inputs, targets = write(pictures, np.array([0, 1, 1, 0, 1, 0]).astype(dtype), tmp_path)
    assert inputs.dtype == np.uint8 and np.array_equal(inputs, pictures)
    assert targets.dtype == np.int64 and targets.tolist() == [0, 1, 1, 0, 1, 0]


def test_arrays_larger_than_a_block_and_memory_maps(tmp_path, monkeypatch):
    monkeypatch.setattr(user_function_worker, "BLOCK_BYTES", 40)
    np.save(tmp_path / "mapped.npy", FLOATS)
    inputs, _ = write(np.load(tmp_path / "mapped.npy", mmap_mode="r"), FLOATS, tmp_path)
    assert np.array_equal(inputs, FLOATS.astype(np.float32))
    broken = FLOATS.copy()
    broken[4, 2] = np.nan
    with pytest.raises(UnusableSamples, match="first at sample 4: "):
        write(broken, FLOATS, tmp_path)


class Tensor:
    """Stands for an array of another package."""


class Table:
    """Stands for a Dataset of torch."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, row):
        return self.samples[row]


TOKENS = np.arange(24).reshape(6, 4)
RECORDS: dict[str, tuple[Any, str, str | None]] = {
    "tokens": ((TOKENS, FLOATS), "f0 int64 (4,)", None),
    "a dict": (({"ids": TOKENS, "mask": TOKENS > 3}, FLOATS), "ids int64 (4,), mask bool (4,)", None),
    "its targets": ({"ids": TOKENS.astype(">i4"), "labels": FLOATS}, "ids int32 (4,), labels float32 (4,)", ""),
    "a tuple": (((TOKENS, FLOATS), FLOATS), "f0 int64 (4,), f1 float32 (4,)", None),
    "several targets": ((FLOATS, (FLOATS, TOKENS)), "", "f0 float32 (4,), f1 int64 (4,)"),
    "a table of pairs": (Table([(FLOATS[row], int(TOKENS[row, 0])) for row in range(6)]), "f0 float32 (4,)", None),
    "a table of dicts": (Table([{"ids": row} for row in TOKENS]), "ids int64 (4,)", ""),
}  # what is returned -> fields of its inputs, and of its targets (None: one array)


@pytest.mark.parametrize("case", RECORDS)
def test_several_arrays_of_a_sample_and_integers_are_kept_as_records(tmp_path, case, monkeypatch):
    monkeypatch.setattr(user_function_worker, "BLOCK_BYTES", 100)
    result, input_fields, target_fields = RECORDS[case]
    user_function_worker.write_samples(result, tmp_path, 10**9)
    facts = user_function.read_facts.__wrapped__(tmp_path)
    inputs, targets = cache.open_arrays(tmp_path)
    assert (facts.fields or "", facts.samples) == (input_fields, 6)
    assert facts.needs_loss == (target_fields is not None)
    if target_fields is not None:
        assert records.describe_fields(targets.dtype) == (target_fields or "no_targets uint8 ()")
    kept = records.list_fields(records.split_fields(inputs, lambda array: array))
    arrays = [FLOATS] if case in ("several targets", "a table of pairs") else [TOKENS]
    assert np.array_equal(kept[0], arrays[0].astype(kept[0].dtype))


UNUSABLE: dict[str, tuple[Any, str]] = {
    "None": (None, r"^returns None: it should return \(inputs, targets\), a dict of arrays or a Dataset$"),
    "an array": (FLOATS, r"^returns a numpy ndarray: it should"),
    "three": ((FLOATS, FLOATS, FLOATS), r"^returns 3 values: it should"),
    "lists": ((FLOATS.tolist(), FLOATS), r"^returns a list as inputs: it should be a numpy array$"),
    "tensors": ((FLOATS, Tensor()), r"^returns a tests Tensor as targets: it should be a numpy array$"),
    "one axis": ((FLOATS[0], FLOATS[0]), r"^returns inputs of shape \(4,\): they should be \(n, \.\.\.\)"),
    "lengths": ((FLOATS, FLOATS[1:]), r"^returns inputs of shape \(6, 4\) and targets of shape \(5, 4\): they should"),
    "no samples": ((FLOATS[:0], FLOATS[:0]), r"^returns no samples: "),
    "strings": ((FLOATS, np.array(["a"] * 6)), r"^returns targets of <U1: cast it to float32, or to integers"),
    "strings in a dict": ({"ids": FLOATS, "text": np.array(["a"] * 6)}, r"^returns 'text' of <U1 in inputs: cast it"),
    "lengths in a dict": ({"ids": FLOATS, "mask": FLOATS[1:]},
     r"^returns 'ids' of shape \(6, 4\) and 'mask' of shape \(5, 4\): they should have the same number of samples$"),
    "NaN in a dict": ({"ids": np.where(FLOATS > 0.9, np.nan, FLOATS)}, r"^returns NaN .* in 'ids', first at sample 5"),
    "no targets of an array": ((FLOATS, None), r"^returns None as targets: it should be a numpy array$"),
    "an empty table": (Table([]), r"^returns a Dataset without samples$"),
    "a table of other shapes": (Table([{"ids": FLOATS[0]}, {"ids": FLOATS[0, 1:]}]),
     r"^returns a Dataset whose sample 1 has \(3,\) of 'ids', and sample 0 \(4,\): pad or cut them to one shape$"),
    "a table of other fields": (Table([{"ids": FLOATS[0]}, {"mask": FLOATS[0]}]), r"sample 1 has no 'ids', "),
    "infinite": ((np.where(FLOATS > 0.9, np.inf, FLOATS), FLOATS), r"infinite value in inputs, first at sample 5"),
    "too large": ((FLOATS * 1e300, FLOATS), r"NaN or an infinite value in inputs, first at sample 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSABLE)
def test_results_that_cannot_be_trained_on(tmp_path, case):
    result, message = UNUSABLE[case]
    with pytest.raises(UnusableSamples, match=message):
        user_function_worker.write_samples(result, tmp_path, 10**9)


@pytest.mark.parametrize(
    ("targets", "unusable"),
    [
        (np.arange(6) - 2, "the negative class -2 in targets, first at sample 0"),
        (np.where(FLOATS > 0.9, -np.inf, FLOATS), "NaN or an infinite value in targets, first at sample 5"),
        ({"y": np.where(FLOATS > 0.9, np.nan, FLOATS)}, "NaN or an infinite value in 'y', first at sample 5"),
        (FLOATS, None),
    ],
)
def test_targets_for_a_loss_of_the_user_alone_are_kept(tmp_path, targets, unusable):
    user_function_worker.write_samples((FLOATS, targets), tmp_path, 6)
    assert user_function.read_facts.__wrapped__(tmp_path).reading.unusable_targets == unusable
    written = cache.open_arrays(tmp_path)[1]
    as_dict = isinstance(targets, dict)
    np.testing.assert_allclose(written["y"] if as_dict else written, targets["y"] if as_dict else targets)


LENGTHS = """
import numpy as np
ONE = np.float32([1, 2]), np.float32([3])

class Wish:
    def __len__(self): return {length}
    def __getitem__(self, row): return ONE

class Broken(Wish):
    def __getitem__(self, row):
        if row < 5: return ONE
        raise OSError(9, "Bad file descriptor")

class Endless:
    def __getitem__(self, row): return ONE

class IterableDataset:  # as torch's
    def __getitem__(self, row): raise NotImplementedError
    def __iter__(self): return (ONE for _ in range({length}))

class Counted(IterableDataset):
    def __len__(self): return {length}

def build(size, seed, kind):
    return (np.zeros(({length}, 2)), np.zeros({length})) if kind == "arrays" else globals()[kind]()
"""


@pytest.mark.parametrize(
    ("kind", "length", "count", "remark"),
    [
        ("Wish", 10**9, 100, "has 1,000,000,000 samples, of which dataset.size=100 takes the first 100"),
        ("Wish", 10**30, 100, None),  # more than Python counts
        ("Wish", 40, 40, None),
        ("Endless", 0, 100, None),
        ("IterableDataset", 10**9, 100, None),
        ("IterableDataset", 40, 40, None),
        ("Counted", 10**9, 100, "has 1,000,000,000 samples, of which dataset.size=100 takes the first 100"),
        ("Counted", 40, 40, None),
        ("arrays", 500, 100, "has 500 samples, of which dataset.size=100 takes the first 100"),
        ("arrays", 40, 40, None),
    ],
)
def test_no_more_samples_are_taken_than_were_requested(tmp_path, monkeypatch, kind, length, count, remark):
    (tmp_path / "lengths.py").write_text(LENGTHS.replace("{length}", str(length)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    label = "dataset.builder=lengths:build"
    request = {"reference": "lengths:build", "label": label, "from_user": True, "size": 100, "seed": 0}
    try:
        response = user_function_worker.handle_request({**request, "options": {"kind": kind}, "folder": str(tmp_path)})
    finally:
        sys.modules.pop("lengths", None)
    assert response == ({} if remark is None else {"remark": f"{label} {remark}"})
    assert len(cache.open_arrays(tmp_path)[0]) == count


@pytest.mark.parametrize(("returned", "is_flagged"), [(101, True), (100, False), (58, False)])
def test_a_run_on_the_first_of_more_samples_is_flagged(calls, tmp_path, returned, is_flagged):
    """Also the second one, for which the samples are cached and nothing is printed."""
    keys = f"strategy=bare_torch hardware=cpu gpus=1 model=custom model.torch=made_of:network dataset=custom \
        dataset.builder=made_of:build dataset.size=100 dataset.cache={tmp_path / 'cache'} train.batch_per_device=4"
    flags = [resolve(compose_config([*keys.split(), f"+dataset.options.returned={returned}"])).flags for _ in range(2)]
    assert ["samples_cut" in each for each in flags] == [is_flagged] * 2 and len(calls) == 1


def test_a_file_that_a_dataset_cannot_read_is_not_blamed_on_the_cache(tmp_path):
    values: dict[str, Any] = {}
    exec(LENGTHS.replace("{length}", "10"), values)
    with pytest.raises(OSError, match="Bad file descriptor"):  # not WriteFailed
        user_function_worker.write_samples(values["Broken"](), tmp_path, 10)


def test_only_the_end_of_a_long_output_is_read(tmp_path, monkeypatch):
    def print_much(command, log, *_):
        os.ftruncate(log, 1 << 30)
        os.pwrite(log, b"the end", (1 << 30) - 7)
        return 1

    monkeypatch.setattr(user_function, "_run_worker", print_much)
    tracemalloc.start()
    try:
        with pytest.raises(PluginError) as caught:
            run_worker(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10 * user_function.MAX_LOG_BYTES
    finally:
        tracemalloc.stop()
    assert caught.value.log.endswith("the end")
