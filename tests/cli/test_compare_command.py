"""`scalebench compare`: its options, exit codes and files, and real runs."""

import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scalebench.__main__ import main
from tests.builders import sweeps
from tests.builders.comparisons import machine_settings, train_settings, write_folder
from tests.builders.runs import record
from tests.conftest import ROOT

STEADY = [0.1, 0.1005, 0.0995, 0.1002, 0.0998]
SLOW = [each * 1.05 for each in STEADY]
BATCH_20 = train_settings(batch_per_device=20)


@pytest.fixture
def call(capsys):
    def called(*words):
        status = main(["compare", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return called


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_folder("steady", STEADY, side="a")
        write_folder("slow", SLOW, side="b")
        write_folder("day2", SLOW, side="b", day=2)
        write_folder("batch", STEADY, side="b", **BATCH_20)
        write_folder("seed", SLOW, side="b", seed=1, **BATCH_20)
        write_folder("cores", SLOW, side="b", **machine_settings(cpus=4))
        assert main(["compare", "--save", "main", "steady"]) == 0
        write_folder("by/nhwc", STEADY, side="a", **train_settings(data_format="nhwc"))
        write_folder("by/nchw", [each / 1.25 for each in STEADY], side="b", **train_settings(data_format="nchw"))
        write_folder("one", [0.1], side="a")
        write_folder("other", [0.12], side="b")
        write_folder("partly", STEADY, side="b")
        for name in ("failed", "partly"):
            failed = record(gpus=2, status="failed", block_s=None, baseline=None, run_id="failed")
            sweeps.write_results(Path(name), [failed])
        write_folder("machines", [0.1], side="a")
        another = record(block_s=0.2, run_id="other", baseline=None, **machine_settings(cpu_model="another"))
        sweeps.write_results(Path("machines"), [another])
        sweeps.sweep(Path("sweep"), repeats=3)
        sweeps.write_results(Path("sweep"), [sweeps.failed_run()])
        for repeat in range(3):
            for strategy, gpus in (("bare_torch", 1), ("ddp_gloo", 2), ("horovod_gloo", 4)):
                again = sweeps.run(strategy, gpus, repeat, noise=0.012, run_id=f"again-{strategy}-{gpus}-{repeat}")
                sweeps.write_results(Path("again"), [again])
    return folder


COMPARISONS = re.findall(
    r"^\$ scalebench compare (.*)\n(\d) ?(.*)$",
    (ROOT / "tests/golden/comparisons.txt").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(("words", "expected", "part"), COMPARISONS, ids=[words for words, *_ in COMPARISONS])
def test_the_exit_status_says_what_was_found(call, words, expected, part, world, monkeypatch):
    monkeypatch.chdir(world)
    status, out, err = call(*shlex.split(words))
    assert (status, err) == (int(expected), "") and part in out
    assert ("REGRESSION" in out) == (status == 3)
    assert words != "machines machines" or out.count(f"{part}  ") == 2, "they are not mixed"


def test_figures_of_the_values_of_a_key(call):
    write_folder("a", STEADY, **train_settings(data_format="nhwc"))
    write_folder("b", [each / 1.25 for each in STEADY], **train_settings(data_format="nchw"))
    words = ("a", "b", "--by", "train.data_format", "--figures", "charts")
    status, out, err = call(*words, "--format", "json")
    assert status == 0 and json.loads(out)["by"] == "train.data_format"
    stem = "compare-ratio-train-data-format-1"
    assert err.splitlines() == [f"written: charts/{stem}.png"]
    assert {path.name for path in Path("charts").iterdir()} == {f"{stem}.{kind}" for kind in ("png", "svg")}
    Path("file").write_text("")
    expected = (2, "scalebench: file cannot be written: File exists; --figures=FOLDER writes elsewhere\n")
    assert call(*words[:-1], "file")[::2] == expected
    assert call("a", "--save", "main", "--figures", "charts")[0] == 2


def test_formats_and_files(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW)
    status, out, _ = call("a", "b", "--threshold", "3%", "--format", "json")
    tree = json.loads(out)
    assert status == tree["exit_code"] == 3 and tree["contrasts"][0]["pairs"][0]["regression"] is True
    status, out, _ = call("a", "b", "--threshold", "3%", "--format", "junit", "--out", "found.xml")
    assert status == 3 and "REGRESSION" in out and out.splitlines()[-1] == "written: found.xml"
    assert ET.parse("found.xml").getroot().find("testsuite").get("failures") == "1"
    assert call("a", "b", "--format", "markdown")[1].startswith("**1 slower")
    call("a", "b", "--out", "found.txt")
    assert Path("found.txt").read_text().startswith("B over A") and not list(Path().glob(".found*"))


def test_against_a_saved_baseline(call):
    write_folder("a", STEADY)
    write_folder("b", SLOW)
    assert "no baseline 'main' in .scalebench/baselines (cpu a" in (out := call("--against", "main", "a")[1])
    assert out.endswith("saved names: none\n")
    status, out, _ = call("--save", "main", "a")
    assert status == 0
    assert out.startswith("baseline 'main': 5 runs in 1 session of cpu a processor, 2 cores, about 8 GiB, no GPU: ")
    assert out.endswith("main (a verdict needs 3 sessions)\n")
    assert call("--save", "main", "b")[1].startswith("baseline 'main': 10 runs in 1 session of ")
    assert call("--save", "main", "b", "--replace")[1].startswith("baseline 'main': 5 runs in 1 session of ")
    assert call("--against", "main", "b", "--threshold", "3%")[0] == 0


def save_days(levels, call):
    for day, level in enumerate(levels, 1):
        call("--save", "main", str(write_folder(f"day{day}", [level * each for each in STEADY], side="a", day=day)))


def test_a_gate_needs_three_sessions_of_its_baseline(call):
    """The recipe for CI: append, and pass until there are enough."""
    gate = ("--against", "main", "today", "--threshold", "3%")
    write_folder("today", [1.05 * each for each in STEADY], side="b", day=9)
    write_folder("slow", [1.5 * each for each in STEADY], side="b", day=9)
    save_days([1.0, 1.04], call)
    status, out, _ = call(*gate)
    line = "too little data: no verdict on 1 of 1 pairs, such as ddp gpus=1: 2 and 1 sessions give no verdict, "
    assert status == 6 and out.splitlines()[-1].startswith(line)
    assert call(*gate, "--missing", "ok")[0] == 0
    _, junit, _ = call(*gate, "--format", "junit")
    assert 'type="too little data"' in junit and 'errors="1"' in junit
    assert 'skipped="1"' in call(*gate, "--missing", "ok", "--format", "junit")[1]
    save_days([1.0, 1.04, 0.97, 1.02], call)
    status, out, _ = call(*gate)
    assert status == 0 and "Student's t, 4 and 1 sessions" in out and "no difference resolved" in out
    assert call("--against", "main", "slow", "--threshold", "3%", "--missing", "ok")[0] == 3


def test_too_little_data_of_the_new_runs_is_not_excused(call):
    save_days([1.0, 1.04, 0.97], call)
    write_folder("today", STEADY, side="b", day=9, flags=["busy_machine"])
    status, out, _ = call("--against", "main", "today", "--threshold", "3%", "--missing", "ok")
    assert status == 6 and "other programs kept the processors busy" in out


# `scalebench compare` on runs of the real program: the simulated strategy, made slower by a known share.
STEP_S = 0.05  # long beside what waking up late costs on a busy machine
SLOWER_S = 0.055  # by 10 %
SHORT = (
    "strategy=simulated hardware=cpu gpus=1 measure=quick measure.min_s=0 measure.max_s=1.5 measure.block_s=0.05 "
    "measure.warmup_steps=2 measure.warmup_max_s=0.1 measure.probes=false measure.monitor=false "
    "measure.evaluate=false measure.repeats=3 dataset.size=1000 sweep.report=false"
).split()


def scalebench(*words):
    return subprocess.run([sys.executable, "-m", "scalebench", *words], capture_output=True, text=True, timeout=300)


def measure(folder, step_s):
    done = scalebench("--multirun", *SHORT, f"strategy.options.step_s={step_s}", f"hydra.sweep.dir={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(Path(folder).glob("*/result.json"))) == 3


# Words, exit status and a part of the output.
GATE = "--threshold 2% --ignore strategy.options.step_s"
MEASURED = [
    (f"before again {GATE}", 0, ""),
    (f"before/0 again/0 {GATE}", 6, "no verdict: one repeat, measure.repeats=3 decides"),
    (f"before after {GATE}", 3, "Welch's t, 3 and 3 repeats"),
    ("before after --threshold 2%", 4, "closest rows differ in strategy.options.step_s"),
    ("before after --by strategy.options.step_s --base 0.05", 0, "0.055 over 0.05"),
]


@pytest.mark.slow
def test_a_slow_down_of_10_percent_is_found_and_the_same_sweep_is_not(tmp_path):
    for folder, step_s in (("before", STEP_S), ("again", STEP_S), ("after", SLOWER_S)):
        measure(folder, step_s)
    for words, status, text in MEASURED:
        done = scalebench("compare", *words.split())
        assert done.returncode == status and text in done.stdout, done.stdout + done.stderr
