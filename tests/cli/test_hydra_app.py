"""The Hydra entry point: arguments in any order, one line for each composition error, Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebench import __main__ as program
from scalebench.cli import hydra_app
from scalebench.config import compose
from scalebench.config.error_messages import list_config_keys
from scalebench.core import config_files, process
from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.runner.launchers import local
from scalebench.sweeps.task import SweepSession
from tests.builders.runs import find_run_processes, wait_until


@pytest.fixture(autouse=True)
def hydra_forgets() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None


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
def test_switches_may_be_anywhere(words: list[str], switches: list[str], overrides: list[str]) -> None:
    assert hydra_app.split_arguments(words) == (switches, overrides)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--mutlirun"], "unrecognized arguments: --mutlirun; --hydra-help lists the switches"),
        (["--cfg", "jobs"], "argument --cfg/-c: invalid choice: 'jobs' (choose from "),
        (["-p"], "argument --package/-p: expected one argument; --hydra-help lists the switches"),
    ],
)
def test_a_wrong_switch_is_one_line(words: list[str], line: str) -> None:
    with pytest.raises(InputError) as caught:
        hydra_app.split_arguments(words)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("switches", "words", "sweep"),
    [
        ([], ["gpus=1"], ["--multirun", "gpus=1"]),
        (["--run"], ["hydra.mode=RUN", "a=1"], ["--multirun", "a=1"]),
        (["-cd", "x"], ["hydra.run.dir=r"], ["-cd", "x", "--multirun", "hydra.sweep.dir=r"]),
        ([], ["hydra.run.dir=r", "hydra.sweep.dir=s"], ["--multirun", "hydra.run.dir=r", "hydra.sweep.dir=s"]),
    ],
)
def test_the_words_of_a_run_as_those_of_a_sweep(switches: list[str], words: list[str], sweep: list[str]) -> None:
    assert hydra_app.make_sweep_arguments(switches, words) == sweep


@pytest.mark.parametrize("number", process.ENDING_SIGNALS)
def test_a_signal_ends_a_pause_between_runs(number: int) -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    with process.interrupt_at_signals(), pytest.raises(KeyboardInterrupt):
        timer.start()
        SweepSession([]).cool_down(60.0)
    timer.join()


def test_no_pause_is_no_line_and_a_lost_signal_still_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    SweepSession([]).cool_down(0.0)
    assert capsys.readouterr().out == ""
    process.cancelled.set()
    try:
        with pytest.raises(KeyboardInterrupt):
            SweepSession([]).cool_down(60.0)
    finally:
        process.cancelled.clear()


def break_(*_: object) -> NoReturn:
    raise LookupError("broken\nin two lines")


def test_an_unexpected_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compose, "register_with_hydra", break_)
    assert hydra_app.main(["gpus=1"]) == 2
    line = "scalebench: the overrides cannot be composed: LookupError: broken in two lines (SCALEBENCH_TRACEBACK=1 "
    assert capsys.readouterr().err.startswith(line)
    monkeypatch.setenv("SCALEBENCH_TRACEBACK", "1")
    with pytest.raises(LookupError):
        hydra_app.main(["gpus=1"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_cancelled_sweep_reports_its_runs_and_can_be_resumed(tmp_path: Path, number: int) -> None:
    """Its second run hangs; nobody can say a word any more after SIGKILL, but the report can be made."""
    folder = tmp_path / "s"
    program = [sys.executable, "-m", "scalebench"]
    words = "strategy=simulated hardware=cpu gpus=1,2 dataset.size=1000 measure=quick measure.probes=false".split()
    words.append("measure.repeats=2")
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


# Random override lines. What is drawn is made to get far: mostly real keys with values that may even be right.
KEYS = [*list_config_keys(Config), "strategy.options.step_s", "strategy.options.bucket_cap_mb"]
GROUPS = config_files.list_groups()
HYDRA = (
    "hydra hydra.run.dir hydra.sweep.dir hydra.sweep.subdir hydra.mode hydra.job.num hydra.verbose hydra/launcher "
    "hydra/sweeper hydra.sweeper.params hydra.sweeper.max_batch_size hydra.searchpath hydra.runtime.output_dir"
).split()
NAMES = sorted({name for group in GROUPS for name in config_files.list_options(group)})
ODD = st.text("abgpus.=+~@:/${}[]()'\"\\, \t\n0129-*?#%&|<>!^`_é\u202e", max_size=30)
FREE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
INTERPOLATIONS = st.sampled_from(
    "gpus train hydra.run.dir now:%Y now:%Q% oc.env:HOME oc.env:NO_SUCH a.b strategy.name .name ..gpus hydra:job.num "
    "oc.create:[1,2] oc.decode:1 oc.select:x oc.deprecated:gpus oc.dict.keys:train x:y".split()
).map("${{{}}}".format)
WORDS = st.sampled_from(
    NAMES
    + "true false null none auto weak strong MULTIRUN 1 0 -1 2 1e400 nan inf 1_000 0x10 ??? '' 'a [] {} a/b /proc/x "
    "range(1,3) choice(1,2) glob(*) interval(0,1) sort(3,1) shuffle(a,b) int(2) str(2) float(a) range(0,1,0)".split()
)
PLAIN = st.one_of(WORDS, INTERPOLATIONS, st.integers().map(str), st.floats().map(repr))
VALUES = st.recursive(
    PLAIN | ODD | FREE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: f"[{','.join(v)}]"),
        st.lists(st.tuples(WORDS, inner), max_size=2).map(lambda v: "{" + ",".join(f"{a}:{b}" for a, b in v) + "}"),
        st.lists(inner, min_size=2, max_size=3).map(",".join),
        inner.map("'{}'".format),
        inner.map('"{}"'.format),
    ),
    max_leaves=4,
)
PLACES = st.sampled_from(["@", "@_global_.", "@a.b", "@:", "/", ".", "x"])
WRONG_KEYS = st.one_of(
    st.sampled_from(KEYS).map(lambda key: key[:-1]), st.tuples(st.sampled_from(GROUPS), PLACES).map("".join), ODD
)
PREFIXES = st.sampled_from(["", "", "", "+", "++", "~"])
OVERRIDES = st.one_of(
    st.tuples(PREFIXES, st.sampled_from(KEYS), st.just("="), PLAIN),
    st.tuples(PREFIXES, st.sampled_from(KEYS + GROUPS + HYDRA), st.just("="), VALUES),
    st.tuples(PREFIXES, WRONG_KEYS, st.sampled_from(["=", "", "= ", "=="]), VALUES),
    st.tuples(st.sampled_from(GROUPS), st.just("="), st.sampled_from(NAMES) | FREE),
    st.tuples(st.sampled_from(KEYS + GROUPS), st.just("="), st.builds(str.__mul__, WORDS, st.integers(1, 400))),
).map("".join)
SWITCHES = st.sampled_from(["--multirun", "--multirun", "--multirun", "--cfg=job", "--nope", "-x", "--", "--run"])
LINES = st.lists(st.one_of(OVERRIDES, OVERRIDES, OVERRIDES, OVERRIDES, ODD, FREE, SWITCHES), min_size=1, max_size=4)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Runs one line, dry; nothing may start, and what is wrong with it is told in a few lines."""
    started: list[object] = []
    monkeypatch.setattr(local, "launch", lambda *parts: started.append(parts))

    def checked(words: list[str]) -> None:
        GlobalHydra.instance().clear()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = program.main([*words, "dry_run=true"])
        message = err.getvalue()
        assert status in (0, 1, 2)
        assert "Traceback" not in message + out.getvalue()
        assert len(message.splitlines()) <= 3 and (status == 0 or message)
        assert started == [] and os.listdir() == []

    return checked


@pytest.mark.parametrize("examples", [40, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_override_lines_give_a_status_and_no_traceback(
    check: Callable[[list[str]], None], examples: int
) -> None:
    checks = list(HealthCheck)
    quiet = settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=checks
    )
    quiet(given(LINES)(check))()


TRACEBACKS = (
    "+=3 +='' dataset@=0 ~hydra=-inf +strategy=[-1.5,2] hydra.verbose=${oc.create:[1,2]} +strategy.requires=[0.0] "
    "sweep=null --resolve"
).split()


@pytest.mark.parametrize(
    "words",
    [*([word] for word in TRACEBACKS), ["--run", "--multirun"], ["gpus=" + "[" * 2000]],
    ids=lambda words: words[0][:40],
)
def test_lines_that_once_gave_a_traceback_or_might(check: Callable[[list[str]], None], words: list[str]) -> None:
    check(words)
