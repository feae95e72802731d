"""A sweep while it goes on: what comes next, how long it will take, and what it leaves of itself. Layer 4."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalebench.core.sweep_file import PlannedRun, SweepRecord, beginning, write_sweep
from scalebench.sweeps.console import repeat_of
from scalebench.sweeps.plan import Job
from scalebench.sweeps.time_budget import affordable
from scalebench.sweeps.time_estimate import Outlook, in_words


class Sweep:
    """Hands out the runs of a sweep and keeps sweep.json in its folder up to date."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        max_minutes: float | None,
        report: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`words` are those of the command line; `report`: whether it shall leave one."""
        self.folder, self.report, self._clock, self._begun_s = folder, report, clock, clock()
        self._limit_s = math.inf if max_minutes is None else 60 * max_minutes
        self._outlook = Outlook()
        self._to_come: list[Job] = []  # that fit into the time; the one that runs is not among them
        self._current: tuple[float, float] | None = None  # when it began, what it is expected to take
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.record: SweepRecord = beginning(list(words), now, platform.node(), max_minutes)

    def runs(
        self,
        planned: Sequence[Job],
        first: int,
        jobs: Sequence[int] = (),
        follow: Callable[[Sequence[int]], Iterator[int]] = iter,
    ) -> Iterator[tuple[int, Job]]:
        """(number, run) of each that is to be done, in order, the first being number `first`; what does not fit into
        the time waits for the end and is then left out. A run that has begun is finished.

        `jobs` are the places in `planned` of runs that a scheduler has: `follow` yields each as it is over, and the
        others begin when they all are.
        """
        plan = [PlannedRun(n, job.spec.label + repeat_of(job.spec), *job.key) for n, job in enumerate(planned, first)]
        self.record.runs += plan
        self._keep()
        for place in follow(jobs):
            yield first + place, planned[place]
        rest = [place for place in range(len(planned)) if place not in set(jobs)]
        while rest:
            left_s = self._limit_s - (self._clock() - self._begun_s)
            costs_s = [self._cost_s(planned[place]) for place in rest]
            specs = [job.spec for job in planned]
            fits = affordable([specs[place] for place in rest], specs, costs_s, left_s)
            if not fits:
                break
            self._to_come = [planned[rest[number]] for number in fits[1:]]
            place = rest.pop(fits[0])
            with self._timed(planned[place]):
                yield first + place, planned[place]
        for place in rest:
            plan[place].left_out = True
        self._keep()

    def left(self) -> str:
        """Of the sweep from now on, in words; empty for its last run."""
        rest_s = sum(map(self._cost_s, self._to_come))
        if not self._to_come:
            return ""
        if self._current is not None:
            begun_s, expected_s = self._current
            rest_s += max(0.0, expected_s - (self._clock() - begun_s))
        known = all(job.earlier is not None or self._outlook.knows(job.spec) for job in self._to_come)
        return f"{'' if known else 'at least '}{in_words(rest_s)} of the sweep left"

    def end(self) -> None:
        """It came to its end, or all that there was time for did."""
        self.record.ended = True
        self._keep()

    def stop(self) -> None:
        """Somebody has cancelled it."""
        self.record.stopped = True
        self._keep()

    @contextlib.contextmanager
    def _timed(self, job: Job) -> Iterator[None]:
        begun_s = self._clock()
        self._current = (begun_s, self._cost_s(job))
        yield
        self._current = None
        if job.earlier is None and job.spec.starts:
            self._outlook.took(job.spec, self._clock() - begun_s)

    def _cost_s(self, job: Job) -> float:
        return 0.0 if job.earlier is not None else self._outlook.rest_s([job.spec])

    def _keep(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_sweep(self.record, self.folder)
