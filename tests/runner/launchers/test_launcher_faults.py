"""Faults of real processes, in every phase: the row says what went wrong, in bounded time, and no process is left.

The cases of one test run side by side, since they mostly wait. A rank in a group that broke has a few seconds
to say so (FOLLOW_S) before it is ended.
"""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from scalebench.core.result import read_result
from scalebench.core.run_folder import MPIRUN_LOG, RESULT_FILE, TRANSIENT_FILES
from scalebench.measure.progress import read_progress
from scalebench.runner.launchers import supervise
from scalebench.runner.parent import run_spec
from scalebench.testing import FaultContract
from tests.builders.launching import NEEDS_MPIRUN
from tests.builders.runs import find_run_processes, find_running, in_parallel, simulated_spec, wait_until

PHASES = ("setup", "step", "evaluate", "close")
FAULTS = ("raise", "exit", "kill", "stop", "hang", "oom", "unsupported")
HANG_S = 10.0  # longer than a start-up on a busy machine
LIMIT_S = 45.0  # of any case; they take a few seconds each on an idle machine


@dataclass(frozen=True)
class Case:
    fault: str
    phase: str
    rank: int = 0
    ranks: int = 2
    step: int = 8  # after the warm-up of 5
    launcher: str = "local"

    def __str__(self):
        return f"{self.fault} in {self.phase} of {self.rank}/{self.ranks} under {self.launcher}"


COMMON = [
    *(Case(fault, "step", rank=1) for fault in FAULTS),
    *(Case("raise", phase, rank) for phase, rank in zip(PHASES, (0, 0, 1, 0), strict=True)),
    *(Case("kill", phase) for phase in ("setup", "close")),
    Case("raise", "step", rank=0, ranks=1),
    Case("raise", "step", rank=2, ranks=3),
    Case("hang", "close", rank=1),
]
RARE = [
    *(Case(f, p, r) for f, p, r in itertools.product(FAULTS, PHASES, (0, 1)) if Case(f, p, r) not in COMMON),
    *(Case(fault, "step", rank, ranks, step=2) for fault in FAULTS for rank, ranks in ((0, 1), (1, 3))),
]


UNDER_MPI = [dataclasses.replace(case, launcher="mpi") for case in COMMON]


def expected(case):
    """Status, reason and log. Which of several waiting ranks hangs cannot be told, unless the others are done; a run
    whose figures are on disk is ok, however it ends."""
    if case.phase in ("evaluate", "close"):
        return "ok", None, None if is_hidden(case) else f"rank{case.rank}.log"
    where = f"rank {case.rank}"
    said = f"{where}: " if case.ranks > 1 else ""
    log = f"rank{case.rank}.log"
    stuck = f"no rank made progress for {HANG_S:g} s (measure.hang_s)"
    return {
        "raise": ("failed", f"{said}RuntimeError: failed as configured", log),
        "exit": ("failed", f"{where} ended with exit status 7 and without a reason", log),
        "kill": ("failed", f"{where} was killed by SIGKILL", log),
        "stop": ("timeout", f"{stuck}; {where} is stopped", log),
        "hang": ("timeout", stuck, None),
        "oom": ("oom", f"{said}out of memory: MemoryError", log),
        "unsupported": ("unsupported", "unsupported as configured", log),
    }[case.fault]


def is_hidden(case):
    """Return whether another rank waits for this one, and so hangs as well."""
    return (case.fault, case.phase) == ("hang", "evaluate")


def gone_wrong(case, folder):
    options = {"fault": case.fault, "fault_phase": case.phase, "fault_rank": case.rank, "fault_step": case.step}
    spec = simulated_spec(
        case.ranks, options=options, measure={"hang_s": HANG_S if case.fault in ("stop", "hang") else 60.0}
    )
    spec.config.strategy.launcher = case.launcher
    begin_s = time.monotonic()
    return run_spec(spec, folder), time.monotonic() - begin_s


@pytest.mark.parametrize(
    "cases",
    [
        COMMON,
        pytest.param(RARE, marks=pytest.mark.slow),
        pytest.param(UNDER_MPI, marks=[pytest.mark.slow, NEEDS_MPIRUN]),
    ],
    ids=["common", "rare", "mpi"],
)
def test_a_rank_that_goes_wrong(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "FOLLOW_LIMIT_S", 2.0)
    assert len(set(cases)) == len(cases)
    done = in_parallel(lambda case: gone_wrong(case, tmp_path / str(case).replace("/", " of ")), cases)
    seen, wanted = {}, {}
    for case, (result, took_s) in done.items():
        folder = tmp_path / str(case).replace("/", " of ")
        status, reason, log = expected(case)
        seen[str(case)] = result.status, result.reason, result.log
        wanted[str(case)] = status, reason, log or result.log
        assert read_result(folder / RESULT_FILE) == result
        assert result.log is not None and (folder / result.log).is_file(), case
        assert not any(map(TRANSIENT_FILES.fullmatch, os.listdir(folder))) and not find_run_processes(folder), case
        assert took_s < LIMIT_S, case
        if case.fault in ("raise", "oom", "unsupported"):
            text = (folder / result.log).read_text()
            assert "Traceback" in text and "scalebench/strategies/simulated.py" in text, case
            lines = {"raise": "failed as configured", "oom": "MemoryError", "unsupported": "unsupported as configured"}
            assert lines[case.fault] in text
        ok = [r.rank for r in result.ranks if r.status == "ok" and not r.probe_failures]
        assert case.rank not in ok or (is_hidden(case) and len(ok) < case.ranks), case
        assert ("probe_failed" in result.flags) == (case.phase in ("evaluate", "close"))
    assert seen == wanted


@dataclass(frozen=True)
class Ended:
    """One way of ending the parent, in one phase of its workers."""

    sign: signal.Signals
    phase: str
    launcher: str = "local"

    def __str__(self):
        return f"{self.sign.name} in {self.phase} under {self.launcher}"


SMALL = "strategy=simulated gpus=2 dataset.size=64 train.batch_per_device=10 measure.warmup_steps=5".split()
BRIEF = ["measure.min_s=0", "measure.max_s=0.3", "measure.probes=false"]
TO_STAY_IN = {
    "launch": ["strategy.options.setup_s=600"],
    "setup": ["strategy.options.setup_s=600"],
    "warmup": ["strategy.options.warmup_s=0.05", "strategy.options.warmup_steps=99999", "measure.warmup_steps=99999"],
    "measure": ["measure.min_s=600", "measure.max_s=600"],
    "evaluate": [*BRIEF, "strategy.options.fault=hang", "strategy.options.fault_phase=evaluate"],
    "close": [*BRIEF, "strategy.options.fault=hang", "strategy.options.fault_phase=close"],
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ENDINGS = [Ended(sign, phase) for sign in SIGNALS for phase in TO_STAY_IN]
# Each phase once and each signal twice; the others are slow.
QUICK = [Ended(sign, phase) for sign, phase in zip(SIGNALS * 2, TO_STAY_IN, strict=True)]

ENDINGS_UNDER_MPI = [dataclasses.replace(ending, launcher="mpi") for ending in ENDINGS]


def ended(ending, folder):
    """(exit status, what was printed, worker processes) of a program that was signalled in that phase."""
    program = [sys.executable, "-X", "faulthandler", "-m", "scalebench"]
    words = [f"strategy.launcher={ending.launcher}", f"hydra.run.dir={folder}"]
    command = [*program, *SMALL, *TO_STAY_IN[ending.phase], *words]
    printed = folder.with_suffix(".txt")
    with open(printed, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        if ending.phase == "launch":
            first = "rank0.log" if ending.launcher == "local" else MPIRUN_LOG
            wait_until(lambda: (folder / first).exists() or process.poll() is not None, LIMIT_S)
            pids = []
        else:
            wait_until(lambda: in_phase(folder, ending.phase) or process.poll() is not None, LIMIT_S)
            pids = [p.pid for p in (read_progress(folder, rank) for rank in range(2)) if p is not None]
        os.kill(process.pid, ending.sign)
        return process.wait(LIMIT_S), printed.read_text(), pids
    except (AssertionError, subprocess.TimeoutExpired) as error:
        process.send_signal(signal.SIGABRT)  # has it print where it is
        process.wait()
        raise AssertionError(f"{ending}: {error}; it printed: {printed.read_text()}") from error
    finally:
        process.kill()
        process.wait()


def in_phase(folder, phase):
    """Rank 0 in that phase, and rank 1 at least begun."""
    ranks = [read_progress(folder, rank) for rank in range(2)]
    return ranks[1] is not None and ranks[0] is not None and ranks[0].phase == phase


@pytest.mark.parametrize(
    "endings",
    [
        QUICK,
        pytest.param([e for e in ENDINGS if e not in QUICK], marks=pytest.mark.slow),
        pytest.param(ENDINGS_UNDER_MPI, marks=[pytest.mark.slow, NEEDS_MPIRUN]),
    ],
    ids=["quick", "rest", "mpi"],
)
def test_the_parent_is_ended(endings, tmp_path):
    folders = {ending: tmp_path / str(ending) for ending in endings}
    done = in_parallel(lambda ending: ended(ending, folders[ending]), endings, at_once=4)
    for ending, (code, out, pids) in done.items():
        folder = folders[ending]
        assert len(pids) == (0 if ending.phase == "launch" else 2), (str(ending), out)
        if ending.sign == signal.SIGKILL:
            wait_until(lambda pids=pids, folder=folder: not find_running(pids) and not find_run_processes(folder), 10.0)
            assert code == -signal.SIGKILL and not (folder / RESULT_FILE).exists(), ending
            continue
        assert not find_running(pids) and not find_run_processes(folder), ending
        assert code == 1, (str(ending), out)
        assert out.splitlines()[-1] == "scalebench: cancelled" and "Traceback" not in out, (str(ending), out)
        result = read_result(folder / RESULT_FILE)
        assert (result.status, result.reason) == ("cancelled", "cancelled while it ran"), ending
        assert not any(map(TRANSIENT_FILES.fullmatch, os.listdir(folder))), ending


@NEEDS_MPIRUN
class TestSimulatedFaultsUnderMpi(FaultContract):
    strategy = "simulated"
    overrides = ("strategy.launcher=mpi",)
    hang_s = 3.0


@NEEDS_MPIRUN
@pytest.mark.real
@pytest.mark.slow
class TestHorovodMpiFaults(FaultContract):
    """With MPI itself between the ranks, and its own ideas of how a group ends."""

    strategy = "horovod_mpi"
