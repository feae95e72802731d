"""Processor time of the login side while jobs wait in the queue, as a share of the wall time, and how often it asks.

Wanted for 100 jobs: under 2 % of a core, squeue included, and no more than one question in 5 s.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.spec import RunSpec
from scalebench.runner.jobs import Cluster, JobRequest
from scalebench.runner.jobs.follow import pause
from scalebench.slurm.commands import Slurm
from scalebench.slurm.submit import Submission, write_submission

COUNTS = (1, 100)
FOLLOW_S = float(os.environ.get("BENCHMARK_FOLLOW_S", "30"))
# In place of the cluster's own, which costs what it costs anybody: all jobs wait, each with its line.
SQUEUE = """#!/bin/sh
while read -r id; do echo "$id|PENDING|||1700000000|5:00|Priority"; done < "${0%/*}/ids"
"""


class Over(Exception):
    """It was followed for long enough."""


def main() -> None:
    spec = resolve(compose_config(["strategy=simulated", "gpus=1"]))
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            measure(spec, count, Path(name))


def measure(spec: RunSpec, count: int, folder: Path) -> None:
    cluster = Cluster(_slurm(folder, count), submit=_submit, pause=_until())
    asked = [JobRequest(number, spec, folder / str(number)) for number in range(1, count + 1)]
    try:
        list(cluster.follow(asked))
    except Over as over:
        wall_s, own_s, asking_s = over.args
        queries = cluster._watcher.queries
        print(
            f"{count} pending: {own_s / wall_s:.2%} of a core, {asking_s / wall_s:.2%} with squeue, "
            f"{queries} questions in {wall_s:.0f} s",
            flush=True,
        )


def _slurm(folder: Path, count: int) -> Slurm:
    (folder / "ids").write_text("".join(f"{number}\n" for number in range(1, count + 1)))
    (folder / "squeue").write_text(SQUEUE)
    (folder / "squeue").chmod(0o755)
    return Slurm(str(folder))


def _submit(spec: RunSpec, folder: Path) -> Submission:
    made = Submission(folder.name, time.time())
    write_submission(made, folder)
    return made


def _until() -> Callable[[float], None]:
    """A pause that ends it all FOLLOW_S after the first one: by then all have been submitted."""
    begun: list[tuple[float, float, float]] = []

    def waits(seconds: float) -> None:
        now = (time.monotonic(), time.process_time(), _of_children_s())
        if not begun:
            begun.append(now)
        wall_s, own_s, asking_s = (b - a for a, b in zip(begun[0], now, strict=True))
        if wall_s >= FOLLOW_S:
            raise Over(wall_s, own_s, own_s + asking_s)
        pause(seconds)

    return waits


def _of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
