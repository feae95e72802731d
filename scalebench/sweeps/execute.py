"""Execute a sweep: which run comes next, how long the rest will take, and the sweep.json that records it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalebench.core.sweep_file import PlannedRun, SweepRecord, new_sweep_record, write_sweep
from scalebench.sweeps.console import format_repeat
from scalebench.sweeps.pace import read_pace
from scalebench.sweeps.plan import SweepRun, cohort_key
from scalebench.sweeps.time_budget import select_affordable
from scalebench.sweeps.time_estimate import TimeEstimate, format_about

FURTHER_TIMES = 2.1  # as long as its planned repeats took a sweep may take with further ones; one repeat is a third
MAX_COHORT_RUNS = 16  # a round should be short beside the changes of the machine


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
        self._unused: Iterator[int] = iter(())  # numbers that no run has
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
        follow: Callable[[Sequence[int]], Iterator[int]] = iter,
        take_turns: Callable[[Sequence[int]], Iterator[int]] = iter,
    ) -> Iterator[SweepRun]:
        """Yield each run to be done, in order. Runs that do not fit into the time wait for the end and are then left
        out. A run that has begun is finished. Baselines that are repeated get numbers that are `unused`.

        `jobs` are the positions in `planned` of runs that a scheduler does: `follow` yields each as it ends, and the
        others begin when all of them have ended. Runs with the same cohort_key are given to `take_turns`, which yields
        those that have ended; the others get another chance, and are then done by themselves.
        """
        begin = len(self.record.runs)
        self._unused = unused
        self.add_planned(planned)
        for position in follow(jobs):
            yield planned[position]
        rest = [position for position in range(len(planned)) if position not in set(jobs)]
        while rest:
            left_s = self._limit_s - (self._clock() - self._started_s)
            costs_s = [self._cost_s(planned[position]) for position in rest]
            specs = [run.spec for run in planned]
            affordable = select_affordable([specs[position] for position in rest], specs, costs_s, left_s)
            if not affordable:
                break
            unit = self._next_unit([rest[number] for number in affordable], planned)
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

    def add_planned(self, planned: Sequence[SweepRun]) -> None:
        """Write the runs that are to be done into sweep.json, which marks the folder as a sweep's."""
        self.record.runs += map(self._plan_record, planned)
        self._write()

    def _next_unit(self, affordable: Sequence[int], planned: list[SweepRun]) -> list[int]:
        """Return the positions of the next run and of those that take turns with it, the reference first."""
        first = affordable[0]
        key = self._cohort_key(first, planned)
        if key is None:
            return [first]
        unit = [position for position in affordable if self._cohort_key(position, planned) == key]
        bares = {run.bare for run in planned}
        unit = sorted(unit, key=lambda position: planned[position].spec.fingerprint not in bares)[:MAX_COHORT_RUNS]
        return [*self._repeat_baselines(unit, planned), *unit]

    def _repeat_baselines(self, unit: Sequence[int], planned: list[SweepRun]) -> list[int]:
        """Plan the bare baselines of these runs once more, where others have taken turns with them: ratios between the
        runs of different cohorts rest on baselines in each. Return their positions."""
        present = {planned[position].spec.fingerprint for position in unit}
        key = cohort_key(planned[unit[0]].spec)
        added = []
        for bare in dict.fromkeys(planned[position].bare for position in unit):
            same = (run for run in planned if run.spec.fingerprint == bare and cohort_key(run.spec) == key)
            if bare not in present and (run := next(same, None)) is not None:
                added.append(len(planned))
                planned.append(dataclasses.replace(run, added=True, earlier=None, number=next(self._unused)))
                self.record.runs.append(self._plan_record(planned[-1]))
        return added

    @staticmethod
    def _plan_record(run: SweepRun) -> PlannedRun:
        return PlannedRun(run.number, run.spec.label + format_repeat(run.spec), *run.key, place=run.place)

    def _cohort_key(self, position: int, planned: Sequence[SweepRun]) -> object:
        run = planned[position]
        return None if run.earlier is not None or position in self._by_itself else cohort_key(run.spec)

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
