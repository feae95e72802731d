"""The one-device runs, among those loaded together, that a run's speedups are measured against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from scalebench.analysis.identity import comparison_key, placement_of
from scalebench.analysis.run_summary import Placement, Run, start_time, uses_default_options

R = TypeVar("R", bound=Run)


@dataclass
class Baselines(Generic[R]):
    """All good one-device runs by their comparison keys: with the strategy, and without it."""

    by_strategy_key: dict[str, Candidates[R]]
    by_name_and_key: dict[tuple[str, str], Candidates[R]]

    @classmethod
    def among(cls, runs: Iterable[R]) -> Baselines[R]:
        """Collect the good one-device runs."""
        baselines: Baselines[R] = cls({}, {})
        for run in runs:
            if run.status == "ok" and run.scale.gpus == 1:
                baselines.by_strategy_key.setdefault(comparison_key(run, True), Candidates()).add(run)
                if run.scale.framework == "none" or uses_default_options(run):
                    key = (run.scale.strategy, comparison_key(run, False))
                    baselines.by_name_and_key.setdefault(key, Candidates()).add(run)
        return baselines

    def find_self(self, run: Run, as_bare: bool = False) -> R | None:
        """Return the nearest run of the same strategy on one device."""
        candidates = self.by_strategy_key.get(comparison_key(run, True))
        return None if candidates is None else candidates.nearest(run, as_bare)

    def find_bare(self, run: Run) -> R | None:
        """Return the nearest run without a wrapper: the strategy's key `baseline`, with its default options."""
        name = run.scale.baseline_bare
        if name == run.scale.strategy and run.scale.framework == "none":  # its options are its workload
            return self.find_self(run, as_bare=True)
        candidates = self.by_name_and_key.get((name, comparison_key(run, False))) if name else None
        if candidates is not None:
            return candidates.nearest(run, as_bare=True)
        return self.find_self(run) if name == run.scale.strategy else None


@dataclass
class Candidates(Generic[R]):
    """Runs with one comparison key, of which the nearest is chosen. There may be thousands."""

    by_placement: dict[Placement, list[tuple[int, R]]] = field(default_factory=dict)  # numbered in order of arrival
    count: int = 0
    indexes: dict[tuple[Placement, ...], RunsByRepeat[R]] = field(default_factory=dict)

    def add(self, run: R) -> None:
        """Add a run; the indexes are built anew on the next search."""
        self.by_placement.setdefault(placement_of(run), []).append((self.count, run))
        self.count += 1
        self.indexes.clear()

    def nearest(self, run: Run, as_bare: bool = False) -> R:
        """Return the run itself if it is a candidate, else one of the same repeat if there is one, and closest in time.

        The same placement comes before the default one, and that before all others. Runs close in time are preferred
        since machines drift. `as_bare`: a bare run on one device is compared with the default placement rather than
        with itself, so that a sweep over single devices compares these devices.
        """
        is_bare_itself = as_bare and run.scale.gpus == 1 and run.scale.baseline_bare == run.scale.strategy
        own_placement = placement_of(run)

        def distance(placement: Placement) -> tuple[list[bool], bool, bool, int]:
            differing = [] if is_bare_itself else [a != b for a, b in zip(placement, own_placement, strict=True)]
            variables, bind, first = placement
            return differing, variables != (), bind != "numa", first

        nearest = tuple(self.by_placement)
        if len(nearest) > 1:
            least = min(map(distance, nearest))
            nearest = tuple(placement for placement in nearest if distance(placement) == least)
        if nearest not in self.indexes:
            numbered = sorted(
                (pair for placement in nearest for pair in self.by_placement[placement]), key=lambda pair: pair[0]
            )
            self.indexes[nearest] = RunsByRepeat([candidate for _, candidate in numbered])
        return self.indexes[nearest].nearest(run)


class RunsByRepeat(Generic[R]):
    """Runs of equally near placements in the order of time: all of them, and those of each repeat."""

    def __init__(self, runs: Sequence[R]) -> None:
        self.by_id: dict[str, list[R]] = {}
        repeats: dict[int, list[R]] = {}
        for run in runs:
            self.by_id.setdefault(run.run_id, []).append(run)
            repeats.setdefault(run.scale.repeat, []).append(run)
        self.all = RunsByTime(runs)
        self.by_repeat = {repeat: RunsByTime(runs_of_repeat) for repeat, runs_of_repeat in repeats.items()}

    def nearest(self, run: Run) -> R:
        """Return the run itself, else the closest in time of the same repeat, else of all."""
        if run.run_id in self.by_id:
            return self._nearest_copy(self.by_id[run.run_id], run)
        return self.by_repeat.get(run.scale.repeat, self.all).nearest(start_time(run))

    @staticmethod
    def _nearest_copy(copies: Sequence[R], run: Run) -> R:
        """Choose among copies of the run, or among runs that happen to have its run_id."""

        def distance(copy: R) -> tuple[bool, float]:
            return copy.scale.repeat != run.scale.repeat, abs((start_time(copy) - start_time(run)).total_seconds())

        return min(copies, key=distance)


class RunsByTime(Generic[R]):
    """Non-empty. Ties go to the run that arrived first."""

    def __init__(self, runs: Sequence[R]) -> None:
        self.numbered = sorted(enumerate(runs), key=lambda pair: (start_time(pair[1]), pair[0]))
        self.times = [start_time(run) for _, run in self.numbered]

    def nearest(self, time: datetime) -> R:
        """Return the run that started closest to `time`."""
        after = bisect_left(self.times, time)
        sides = [after] if after < len(self.times) else []
        if after > 0:
            sides.append(bisect_left(self.times, self.times[after - 1]))
        at = min(sides, key=lambda side: (abs(self.times[side] - time), self.numbered[side][0]))
        return self.numbered[at][1]
