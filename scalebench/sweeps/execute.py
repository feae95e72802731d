"""Execute a sweep: which runs come next, how long the rest will take, and the sweep.json that records it."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock, read_holder
from scalebench.core.machine.machine import find_cache_folder
from scalebench.core.sweep_file import PlannedRun, SweepRecord, new_sweep_record, write_sweep
from scalebench.sweeps.console import Console, format_repeat
from scalebench.sweeps.estimate import TimeEstimate, format_about, select_affordable
from scalebench.sweeps.plan import SweepRun, find_unit

WAIT_INTERVAL_S = 1.0
FURTHER_TIMES = 2.1  # as long as its planned repeats took a sweep may take with further ones; one repeat is a third


class RunningSweep:
    """Decides which runs come next, and keeps sweep.json in the sweep's folder up to date."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        max_minutes: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arguments` are those of the command line."""
        self.folder = folder
        self._clock, self._started_s = clock, clock()
        self._planned_took_s: float | None = None  # once all planned runs are over
        self._limit_s = math.inf if max_minutes is None else 60 * max_minutes
        self._estimate = TimeEstimate()
        self._alone: set[SweepRun] = set()  # runs that could not take turns
        self._later: list[SweepRun] = []  # runs after the current ones that fit into the time
        self._current: tuple[float, float] | None = None  # (start, expected seconds) of the current runs
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.record: SweepRecord = new_sweep_record(list(arguments), now, platform.node(), max_minutes)
        self._records: dict[SweepRun, PlannedRun] = {}

    def add(self, runs: Sequence[SweepRun]) -> None:
        """Record runs that are planned, and with the first ones that the folder is a sweep's."""
        for run in runs:
            label = run.spec.label + format_repeat(run.spec)
            self._records[run] = PlannedRun(run.number, label, *run.key, place=run.place)
            self.record.runs.append(self._records[run])
        self._write()

    def do(
        self,
        rest: Sequence[SweepRun],
        planned: list[SweepRun],
        unused: Iterator[int],
        do_unit: Callable[[list[SweepRun]], Sequence[SweepRun]],
    ) -> None:
        """Have these runs of a sweep done, in order. Those that do not fit into the time wait for the end and are then
        left out. A run that has begun is finished.

        `do_unit` gets a single run, or runs that take turns, and returns those that it has done; the others get another
        chance, and are then done by themselves. Baselines that are repeated are added to `planned`, with numbers that
        are `unused`.
        """
        waiting = dict.fromkeys(rest)
        while waiting:
            left_s = self._limit_s - (self._clock() - self._started_s)
            affordable = select_affordable(list(waiting), planned, self._cost_s, left_s)
            if not affordable:
                break
            unit = find_unit(affordable, planned, unused, self._alone)
            if baselines := [run for run in unit if run not in waiting]:
                self.add(baselines)
            self._later = [run for run in affordable if run not in unit]
            started_s = self._clock()
            self._current = (started_s, sum(map(self._cost_s, unit)))
            done = do_unit(unit)
            self._current = None
            for run in filter(lambda run: run.starts, unit):
                self._estimate.record_duration(run.spec, (self._clock() - started_s) / len(unit))
            if waiting.keys().isdisjoint(done):
                self._alone.update(unit)
            for run in done:
                waiting.pop(run, None)
            for run in set(baselines).difference(done):
                self._records[run].left_out = True
        for run in waiting:
            self._records[run].left_out = True
        self._write()

    def has_time_for(self, more: Sequence[SweepRun]) -> bool:
        """Return whether these runs of a further repeat fit into sweep.max_minutes, and into as long again as the
        repeats took that were planned."""
        now_s = self._clock() - self._started_s
        if self._planned_took_s is None:
            self._planned_took_s = now_s
        end_s = now_s + sum(map(self._cost_s, more))
        return end_s <= self._limit_s and end_s <= FURTHER_TIMES * self._planned_took_s

    def format_time_left(self) -> str:
        """Format the time that the sweep will take from now on, in brackets; empty for its last run."""
        if not self._later:
            return ""
        left_s = sum(map(self._cost_s, self._later))
        if self._current is not None:
            started_s, expected_s = self._current
            left_s += max(0.0, expected_s - (self._clock() - started_s))
        has_basis = all(run.earlier is not None or self._estimate.has_basis(run.spec) for run in self._later)
        return f" ({'' if has_basis else 'at least '}{format_about(left_s)} of the sweep left)"

    def mark(self, *, ended: bool = False, stopped: bool = False) -> None:
        """Record that the sweep has done all its runs that there was time for, or that the user has stopped it."""
        self.record.ended, self.record.stopped = ended, stopped
        self._write()

    def _cost_s(self, run: SweepRun) -> float:
        return 0.0 if run.earlier is not None else self._estimate.expected_s(run.spec)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_sweep(self.record, self.folder)


def lock_machine(console: Console, waits: bool) -> FolderLock | None:
    """Return the lock of a program that measures on this machine; None where it is another's, or there is no cache
    folder. Name the other program of this user that measures, whose end is awaited if this one `waits`."""
    cache, is_named = find_cache_folder(), False
    while cache is not None:
        folder = cache / "measuring" / (platform.node() or "unknown")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return FolderLock(folder)
        except OSError:
            return None
        except InputError:
            end = (
                "this one begins after its end" if waits else "each disturbs the other; wait=true begins after its end"
            )
            if not is_named:
                console.print_line(f"{read_holder(folder) or 'another program'} measures on this machine: {end}")
            is_named = True
            if not waits:
                return None
            if process.cancelled.wait(WAIT_INTERVAL_S):
                raise KeyboardInterrupt from None
    return None
