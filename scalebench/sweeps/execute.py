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
from scalebench.sweeps.pace import read_pace
from scalebench.sweeps.plan import SweepRun, find_unit
from scalebench.sweeps.time_budget import select_affordable
from scalebench.sweeps.time_estimate import TimeEstimate, format_about

FURTHER_TIMES = 2.1  # as long as its planned repeats took a sweep may take with further ones; one repeat is a third


class RunningSweep:
    """Yields the runs of a sweep in turn and keeps sweep.json in its folder up to date."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        max_minutes: float | None,
        report: bool = True,
        export: str = "none",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of the command line; `report` asks for a report at the end, `export` names a
        tracker that gets the runs then."""
        self.folder, self.report, self.export = folder, report, export
        self._clock, self._started_s = clock, clock()
        self._planned_took_s: float | None = None  # once all planned runs are over
        self._limit_s = math.inf if max_minutes is None else 60 * max_minutes
        self._estimate = TimeEstimate(read_pace())
        self._by_itself: set[int] = set()  # positions of runs that could not take turns
        self._remaining: list[SweepRun] = []  # runs after the current one that fit into the time
        self._current: tuple[float, float] | None = None  # (start, expected seconds) of the current run
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.record: SweepRecord = new_sweep_record(list(arguments), now, platform.node(), max_minutes)

    def iterate(
        self,
        planned: list[SweepRun],
        unused: Iterator[int],
        jobs: Sequence[int] = (),
        follow: Callable[[], Iterator[int]] = lambda: iter(()),
        take_turns: Callable[[Sequence[int]], Iterator[int]] = iter,
    ) -> Iterator[SweepRun]:
        """Yield each run to be done, in order. Runs that do not fit into the time wait for the end and are then left
        out. A run that has begun is finished. Baselines that are repeated get numbers that are `unused`.

        `jobs` are the positions in `planned` of runs that a scheduler does: `follow` yields each as it ends, and the
        others begin when all of them have ended. Runs with the same cohort_key are given to `take_turns`, which yields
        those that have ended; the others get another chance, and are then done by themselves.
        """
        begin = len(self.record.runs)
        self.record.runs += map(self._plan_record, planned)
        self._write()  # it marks the folder as a sweep's
        for position in follow():
            yield planned[position]
        rest = [position for position in range(len(planned)) if position not in set(jobs)]
        while rest:
            left_s = self._limit_s - (self._clock() - self._started_s)
            costs_s = [self._cost_s(planned[position]) for position in rest]
            specs = [run.spec for run in planned]
            affordable = select_affordable([specs[position] for position in rest], specs, costs_s, left_s)
            if not affordable:
                break
            unit = find_unit([rest[number] for number in affordable], planned, unused, self._by_itself)
            self.record.runs += map(self._plan_record, planned[len(self.record.runs) - begin :])
            self._remaining = [planned[rest[number]] for number in affordable if rest[number] not in unit]
            if len(unit) > 1:
                with self._record_duration([planned[position] for position in unit]):
                    done = list(take_turns(unit))
                self._by_itself.update(() if set(done) & set(rest) else unit)
                rest = [position for position in rest if position not in done]
                for position in set(unit) - set(done) - set(rest):  # a baseline that was to be repeated
                    self.record.runs[begin + position].left_out = True
                yield from (planned[position] for position in done)
                continue
            rest.remove(unit[0])
            with self._record_duration([planned[unit[0]]]):
                yield planned[unit[0]]
        for position in rest:
            self.record.runs[begin + position].left_out = True
        self._write()

    def has_time_for(self, more: Sequence[SweepRun]) -> bool:
        """Return whether these runs of a further repeat fit into sweep.max_minutes, and into as long again as the
        repeats took that were planned."""
        now_s = self._clock() - self._started_s
        if self._planned_took_s is None:
            self._planned_took_s = now_s
        end_s = now_s + sum(self._cost_s(run) for run in more)
        return end_s <= self._limit_s and end_s <= FURTHER_TIMES * self._planned_took_s

    @staticmethod
    def _plan_record(run: SweepRun) -> PlannedRun:
        return PlannedRun(run.number, run.spec.label + format_repeat(run.spec), *run.key, place=run.place)

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

    def update_time_left(self, left_s: float | None) -> None:
        """Note how long the current run will still take by its own steps; None: that is unknown."""
        if self._current is not None and left_s is not None:
            started_s, _ = self._current
            self._current = (started_s, self._clock() - started_s + left_s)

    def mark_ended(self) -> None:
        """Record that the sweep has done all its runs, or all that there was time for."""
        self.record.ended = True
        self._write()

    def mark_stopped(self) -> None:
        """Record that the user has cancelled the sweep."""
        self.record.stopped = True
        self._write()

    @contextlib.contextmanager
    def _record_duration(self, runs: Sequence[SweepRun]) -> Iterator[None]:
        started_s = self._clock()
        self._current = (started_s, sum(map(self._cost_s, runs)))
        try:
            yield
        finally:
            self._current = None
        for run in runs:
            if run.starts:
                self._estimate.record_duration(run.spec, (self._clock() - started_s) / len(runs))

    def _cost_s(self, run: SweepRun) -> float:
        return 0.0 if run.earlier is not None else self._estimate.total_s([run.spec])

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_sweep(self.record, self.folder)
