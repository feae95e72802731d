"""The Hydra entry point: arguments in any order, one line for each composition error, Ctrl-C and SIGTERM."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from scalebench.cli import hydra_app
from scalebench.config import compose
from scalebench.core import process
from scalebench.sweeps.task import SweepSession
from tests.builders.runs import find_run_processes, wait_until


@pytest.mark.parametrize(
    ("words", "switches", "overrides"),
    [
        (["gpus=1", "seed=2"], [], ["gpus=1", "seed=2"]),
        (["gpus=1", "--multirun", "seed=2", "-m"], ["--multirun", "-m"], ["gpus=1", "seed=2"]),
        (["--cfg", "job", "gpus=1", "-p", "train"], ["--cfg", "job", "-p", "train"], ["gpus=1"]),
        (["~gpus", "+a=-1"], [], ["~gpus", "+a=-1"]),
        ([], [], []),
    ],
)
def test_switches_may_be_anywhere(words, switches, overrides):
    options = hydra_app.read_arguments(words)
    assert (options.switches, options.overrides) == (switches, overrides)
    assert (options.multirun, options.cfg) == ("-m" in words, "job" if "job" in words else None)


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        (["gpus=1"], ["gpus=1"]),
        (["hydra.run.dir=r"], ["hydra.sweep.dir=r"]),
        (["hydra.run.dir=r", "hydra.sweep.dir=s"], ["hydra.run.dir=r", "hydra.sweep.dir=s"]),
    ],
)
def test_the_words_of_a_run_as_those_of_a_sweep(words, sweep):
    assert hydra_app.make_sweep_overrides(words) == sweep


@pytest.mark.parametrize("number", process.ENDING_SIGNALS)
def test_a_signal_ends_a_pause_between_runs(number):
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    with process.interrupt_at_signals(), pytest.raises(KeyboardInterrupt):
        timer.start()
        SweepSession([]).cool_down(60.0)
    timer.join()


def test_no_pause_is_no_line_and_a_lost_signal_still_ends_it(capsys):
    SweepSession([]).cool_down(0.0)
    assert capsys.readouterr().out == ""
    process.cancelled.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            SweepSession([]).cool_down(60.0)
    finally:
        process.cancelled.clear()


def break_(*_):
    raise LookupError("broken\nin two lines")


def test_an_unexpected_error_is_one_line_too(monkeypatch, capsys):
    monkeypatch.setattr(compose, "register_with_hydra", break_)
    assert hydra_app.main(["gpus=1"]) == 2
    line = "scalebench: the overrides cannot be composed: LookupError: broken in two lines (SCALEBENCH_TRACEBACK=1 "
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setenv("SCALEBENCH_TRACEBACK", "1")
    with pytest.raises(LookupError):
        hydra_app.main(["gpus=1"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_cancelled_sweep_reports_its_runs_and_can_be_resumed(tmp_path, number):
    """Its second run hangs; nobody can say a word any more after SIGKILL, but the report can be made."""
    folder = tmp_path / "s"
    program = [sys.executable, "-m", "scalebench"]
    words = "strategy=simulated hardware=cpu gpus=1,2 dataset.size=1000 measure=quick measure.probes=false".split()
    words += ["measure.repeats=2", "measure.order=given"]
    hanging = ["strategy.options.fault=hang", "strategy.options.fault_rank=1"]
    sweep = [*program, "--multirun", *words, f"hydra.sweep.dir={folder}"]
    with subprocess.Popen([*sweep, *hanging], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(find_run_processes(folder / "1")) >= 3)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    wait_until(lambda: not find_run_processes(folder / "1"))
    if number == signal.SIGINT:
        assert process.returncode == 1 and f"report: {folder}/report.html" in out
    else:
        assert process.returncode == -signal.SIGKILL and not (folder / "report.html").exists()
        subprocess.run([*program, "report", folder], check=True, timeout=60, capture_output=True)
    ended = 2 if number == signal.SIGINT else 1  # the cancelled run has a row
    assert f"this sweep was cut short: {ended} of 4 runs have ended" in (folder / "report.html").read_text()
    again = subprocess.run([*sweep, "resume=true"], timeout=120, capture_output=True, text=True)
    assert again.returncode == 0 and "of 4 runs have ended" not in (folder / "report.html").read_text()
