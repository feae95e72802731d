"""A sweep of 1,000 short runs of which a third fail, whose program is killed after every 50 and resumed.

At the end each run has one row, whose status is that of its fault, rows that were ok have not been measured again, no
process is left, and the program's memory has not grown. BENCHMARK_SOAK_RUNS=100 makes it shorter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from benchmarks.soak_worker import draw_fault, expect_status
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.sweep_file import read_sweep
from tests.builders.plugins import Distributions

ROOT = Path(__file__).resolve().parents[1]
RUNS = int(os.environ.get("BENCHMARK_SOAK_RUNS", "1000"))
RUNS_BEFORE_KILL = 50
REPEATS = 25  # of each configuration, where that divides the runs
POLL_INTERVAL_S = 0.1
END_LIMIT_S = 60.0  # for the ranks of a killed program to end
MAX_GROWTH_BYTES = 50 << 20
WORDS = (
    "strategy=unreliable hardware=cpu gpus=1 baseline=none dataset.size=64 train.batch_per_device=8 sweep.report=false "
    "measure=quick measure.order=given measure.probes=false measure.monitor=false measure.warmup_steps=1 "
    "measure.warmup_max_s=0.01 measure.min_s=0 measure.max_s=0.02 measure.target=0.9 strategy.options.step_s=0.0001"
).split()


@dataclass
class SoakReport:
    """The figures of a soak; `problems` is empty where all is as it should be."""

    runs: int
    starts: int = 0  # also of runs that were repeated
    kills: int = 0
    seconds: float = 0.0
    growth_bytes: int = 0  # the largest of one program, from its first result on
    statuses: Counter[str] = field(default_factory=Counter)  # of all starts that came to a result
    rows: Counter[str] = field(default_factory=Counter)  # at the end
    problems: list[str] = field(default_factory=list)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        report = soak(Path(name), RUNS, RUNS_BEFORE_KILL)
    print(f"{report.runs:,} runs, started {report.starts:,} times, in {report.seconds / 60:.1f} min")
    for subject, counts in (("starts", report.statuses), ("rows", report.rows)):
        print(f"{subject}: {', '.join(f'{count:,} {status}' for status, count in counts.most_common())}")
    print(f"the program was killed {report.kills} times; its memory grew by {report.growth_bytes / 1e6:.1f} MB at most")
    print("\n".join(report.problems) or "each run has one row with the status of its fault, and no process is left")
    if report.problems:
        raise SystemExit(1)


def soak(scratch: Path, runs: int, runs_before_kill: int, hang_s: float = 10.0) -> SoakReport:
    """Do the sweep in `scratch` to its end, with as many programs as it takes."""
    report, sweep, seen = SoakReport(runs), scratch / "sweep", dict[str, Path]()
    repeats = next(count for count in range(min(REPEATS, runs), 0, -1) if runs % count == 0)
    words = [*WORDS, f"seed=range({runs // repeats})", f"measure.repeats={repeats}", f"measure.hang_s={hang_s:g}"]
    command = [sys.executable, "-m", "scalebench", "--multirun", *words, f"hydra.sweep.dir={sweep}", "resume=true"]
    begin_s = time.monotonic()
    with _plugin_installed(scratch):
        killed = True
        while killed:
            started_s = time.time()
            killed = _run_program(command, sweep, runs_before_kill, report)
            report.kills += killed
            _await_end(sweep, report)
            seen |= _check_new_rows(sweep, started_s, report)
    report.seconds = time.monotonic() - begin_s
    _check_end(sweep, seen, report)
    return report


@contextmanager
def _plugin_installed(scratch: Path) -> Iterator[None]:
    """Have the programs find the strategy, and a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.setenv("SCALEBENCH_CACHE", str(scratch / "cache"))
        installed = Distributions(scratch / "site", patch)
        installed.strategy("unreliable", target="benchmarks.soak_worker:Unreliable", code="")
        yield


def _run_program(command: list[str], sweep: Path, runs_before_kill: int, report: SoakReport) -> bool:
    """Run the program until it has done so many runs, and kill it; return False where it came to its end before."""
    started_s = time.time()
    with open(sweep.with_suffix(".log"), "ab") as log:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    process, first_bytes, done = psutil.Process(program.pid), None, 0
    while program.poll() is None:
        resident_bytes = process.memory_info().rss
        times_s = [path.stat().st_mtime for path in sweep.glob(f"*/{RESULT_FILE}")]
        done = max(done, sum(time_s > started_s for time_s in times_s))
        if done and len(times_s) < report.runs:  # afterwards come the tables, for which it imports pandas
            first_bytes = first_bytes or resident_bytes
            report.growth_bytes = max(report.growth_bytes, resident_bytes - first_bytes)
        if done >= runs_before_kill and len(times_s) < report.runs:
            program.send_signal(signal.SIGKILL)
            program.wait()
            report.starts += 1  # of which there is no row
            return True
        time.sleep(POLL_INTERVAL_S)
    if program.returncode not in (0, 1):
        report.problems.append(f"the program ended with {program.returncode}: see {sweep.with_suffix('.log')}")
    return False


def _await_end(sweep: Path, report: SoakReport) -> None:
    deadline_s = time.monotonic() + END_LIMIT_S
    while left := _find_processes(sweep):
        if time.monotonic() > deadline_s:
            report.problems.append(f"{len(left)} processes are left: {left}")
            return
        time.sleep(POLL_INTERVAL_S)


def _find_processes(sweep: Path) -> list[int]:
    """Return the processes that have the sweep or the folder of one of its runs among their arguments."""
    processes = psutil.process_iter(["pid", "cmdline", "status"])
    return [
        process.info["pid"]
        for process in processes
        if any(str(sweep) in word for word in process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _check_new_rows(sweep: Path, started_s: float, report: SoakReport) -> dict[str, Path]:
    """Compare the status of each row of the program that has just ended with its fault. Return those that are ok, the
    folder by run_id."""
    new = [path for path in sweep.glob(f"*/{RESULT_FILE}") if path.stat().st_mtime > started_s]
    results = {path.parent: read_result(path) for path in new}
    report.starts += len(results)
    report.statuses.update(result.status for result in results.values())
    for folder, result in results.items():
        fault, phase = draw_fault(result.run_id)
        if result.status != (expected := expect_status(fault, phase)):
            line = f"{folder.name}: {result.status} instead of {expected} ({fault} in {phase})"
            report.problems.append(f"{line}: {result.reason}")
    return {result.run_id: folder for folder, result in results.items() if result.status == "ok"}


def _check_end(sweep: Path, seen: dict[str, Path], report: SoakReport) -> None:
    """Note what is not as it should be after the end; `seen` are all rows that ever were ok."""
    results = {path.parent: read_result(path) for path in sweep.glob(f"*/{RESULT_FILE}")}
    report.rows.update(result.status for result in results.values())
    keys = {(result.fingerprint, result.scale.repeat) for result in results.values()}
    ids = {result.run_id: folder for folder, result in results.items()}
    if not len(results) == len(keys) == len(ids) == report.runs:
        report.problems.append(f"{len(results)} rows of {len(keys)} runs instead of {report.runs}")
    if lost := [folder.name for run_id, folder in seen.items() if ids.get(run_id) != folder]:
        report.problems.append(f"runs that were ok have been measured again: {', '.join(lost)}")
    transient = [path.name for pattern in ("progress*", "room*", ".result*") for path in sweep.glob(f"*/{pattern}")]
    if transient:
        report.problems.append(f"files were left: {transient}")
    record = read_sweep(sweep)
    if record is None or not record.ended or record.missing(sweep):
        report.problems.append("sweep.json does not tell of a sweep that came to its end")
    if report.growth_bytes > MAX_GROWTH_BYTES:
        report.problems.append(f"the program's memory grew by {report.growth_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
