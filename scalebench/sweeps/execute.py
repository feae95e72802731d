"""Execute a sweep: which run comes next, how long the rest will take, and the sweep.json that records it."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalebench.core.sweep_file import PlannedRun, SweepRecord, new_sweep_record, write_sweep
from scalebench.sweeps.console import format_repeat
from scalebench.sweeps.plan import SweepRun
from scalebench.sweeps.time_budget import select_affordable
from scalebench.sweeps.time_estimate import TimeEstimate, format_about


class Sweep:
    """Yields the runs of a sweep in turn and keeps sweep.json in its folder up to date."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        max_minutes: float | None,
        report: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of the command line; `report` asks for a report at the end."""
        self.folder, self.report, self._clock, self._started_s = folder, report, clock, clock()
        self._limit_s = math.inf if max_minutes is None else 60 * max_minutes
        self._estimate = TimeEstimate()
        self._remaining: list[SweepRun] = []  # runs after the current one that fit into the time
        self._current: tuple[float, float] | None = None  # (start, expected seconds) of the current run
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.record: SweepRecord = new_sweep_record(list(arguments), now, platform.node(), max_minutes)

    def iterate(
        self,
        planned: Sequence[SweepRun],
        first: int,
        jobs: Sequence[int] = (),
        follow: Callable[[Sequence[int]], Iterator[int]] = iter,
    ) -> Iterator[tuple[int, SweepRun]]:
        """Yield (number, run) for each run to be done, in order, numbered from `first`. Runs that do not fit into the
        time wait for the end and are then left out. A run that has begun is finished.

        `jobs` are the positions in `planned` of runs that a scheduler does: `follow` yields each as it ends, and the
        others begin when all of them have ended.
        """
        plan = [
            PlannedRun(n, run.spec.label + format_repeat(run.spec), *run.key) for n, run in enumerate(planned, first)
        ]
        self.record.runs += plan
        self._write()
        for position in follow(jobs):
            yield first + position, planned[position]
        rest = [position for position in range(len(planned)) if position not in set(jobs)]
        while rest:
            left_s = self._limit_s - (self._clock() - self._started_s)
            costs_s = [self._cost_s(planned[position]) for position in rest]
            specs = [run.spec for run in planned]
            affordable = select_affordable([specs[position] for position in rest], specs, costs_s, left_s)
            if not affordable:
                break
            self._remaining = [planned[rest[number]] for number in affordable[1:]]
            position = rest.pop(affordable[0])
            with self._record_duration(planned[position]):
                yield first + position, planned[position]
        for position in rest:
            plan[position].left_out = True
        self._write()

    def format_time_left(self) -> str:
        """Format the time that the sweep will take from now on; empty for its last run."""
        if not self._remaining:
            return ""
        left_s = sum(map(self._cost_s, self._remaining))
        if self._current is not None:
            started_s, expected_s = self._current
            left_s += max(0.0, expected_s - (self._clock() - started_s))
        has_basis = all(run.earlier is not None or self._estimate.has_basis(run.spec) for run in self._remaining)
        return f"{'' if has_basis else 'at least '}{format_about(left_s)} of the sweep left"

    def mark_ended(self) -> None:
        """Record that the sweep has done all its runs, or all that there was time for."""
        self.record.ended = True
        self._write()

    def mark_stopped(self) -> None:
        """Record that the user has cancelled the sweep."""
        self.record.stopped = True
        self._write()

    @contextlib.contextmanager
    def _record_duration(self, run: SweepRun) -> Iterator[None]:
        started_s = self._clock()
        self._current = (started_s, self._cost_s(run))
        yield
        self._current = None
        if run.earlier is None and run.spec.can_start:
            self._estimate.record_duration(run.spec, self._clock() - started_s)

    def _cost_s(self, run: SweepRun) -> float:
        return 0.0 if run.earlier is not None else self._estimate.total_s([run.spec])

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_sweep(self.record, self.folder)
