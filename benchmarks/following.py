"""Processor time on the login node while jobs wait in the queue, as a share of the wall time, and the rate of queries.

Target for 100 jobs: under 2 % of a core, squeue included, and at most one query in 5 s.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench.cluster.commands import Slurm
from scalebench.cluster.submit import Submission, write_submission
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RunSpec
from scalebench.runner.jobs import JobFollower, JobRequest, PlannedJob
from scalebench.runner.jobs.follow import sleep_until_cancelled

COUNTS = (1, 100)
FOLLOW_S = float(os.environ.get("BENCHMARK_FOLLOW_S", "30"))
# Replaces the cluster's own squeue: all jobs wait, each with its line.
SQUEUE = """#!/bin/sh
while read -r id; do echo "$id|PENDING|||1700000000|5:00|Priority"; done < "${0%/*}/ids"
"""


class TimeIsUp(Exception):
    """The jobs were followed for FOLLOW_S."""


def main() -> None:
    spec = resolve(compose_config(["strategy=simulated", "gpus=1"]))
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            measure(spec, count, Path(name))


def measure(spec: RunSpec, count: int, folder: Path) -> None:
    follower = JobFollower(_slurm(folder, count), submit=_submit, pause=_until())
    folders = [folder / str(number) for number in range(1, count + 1)]
    jobs = [PlannedJob(path, [[JobRequest(int(path.name), spec, path)]]) for path in folders]
    try:
        list(follower.follow(jobs))
    except TimeIsUp as end:
        wall_s, process_s, total_s = end.args
        queries = follower._watcher.queries
        print(
            f"{count} pending: {process_s / wall_s:.2%} of a core, {total_s / wall_s:.2%} with squeue, "
            f"{queries} queries in {wall_s:.0f} s",
            flush=True,
        )


def _slurm(folder: Path, count: int) -> Slurm:
    (folder / "ids").write_text("".join(f"{number}\n" for number in range(1, count + 1)))
    (folder / "squeue").write_text(SQUEUE)
    (folder / "squeue").chmod(0o755)
    return Slurm(str(folder))


def _submit(specs: Sequence[RunSpec], folder: Path) -> Submission:
    submission = Submission(folder.name, time.time())
    write_submission(submission, folder)
    return submission


def _until() -> Callable[[float], None]:
    """Return a pause that raises TimeIsUp FOLLOW_S after the first call, when all jobs have been submitted."""
    begun: list[tuple[float, float, float]] = []

    def pause(seconds: float) -> None:
        now = (time.monotonic(), time.process_time(), _children_cpu_s())
        if not begun:
            begun.append(now)
        wall_s, process_s, children_s = (b - a for a, b in zip(begun[0], now, strict=True))
        if wall_s >= FOLLOW_S:
            raise TimeIsUp(wall_s, process_s, process_s + children_s)
        sleep_until_cancelled(seconds)

    return pause


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
