"""The one-device runs, among those loaded together, that a run's speedups are measured against."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scalebench.analysis.identity import comparison_key, placement_of
from scalebench.analysis.run_summary import Run, start_time, uses_default_options

R = TypeVar("R", bound=Run)


@dataclass
class Baselines(Generic[R]):
    """All good one-device runs by a key that covers the strategy, and by the name of the strategy and a key without it:
    `make_key(run, strategy)`, of which equal ones make runs comparable."""

    make_key: Callable[[Any, bool], Hashable] = comparison_key
    by_strategy_key: dict[Hashable, list[R]] = field(default_factory=dict)
    by_name_and_key: dict[tuple[str, Hashable], list[R]] = field(default_factory=dict)

    @classmethod
    def among(cls, runs: Iterable[R], make_key: Callable[[Any, bool], Hashable] = comparison_key) -> Baselines[R]:
        """Collect the good one-device runs."""
        baselines: Baselines[R] = cls(make_key)
        for run in runs:
            if run.status == "ok" and run.scale.gpus == 1:
                baselines.by_strategy_key.setdefault(make_key(run, True), []).append(run)
                if run.scale.framework == "none" or uses_default_options(run):
                    key = (run.scale.strategy, make_key(run, False))
                    baselines.by_name_and_key.setdefault(key, []).append(run)
        return baselines

    def find_self(self, run: Run, as_bare: bool = False) -> R | None:
        """Return the nearest run of the same strategy on one device."""
        return find_nearest(self.by_strategy_key.get(self.make_key(run, True), ()), run, as_bare)

    def find_bare(self, run: Run) -> R | None:
        """Return the nearest run without a wrapper: the strategy's key `baseline`, with its default options."""
        name = run.scale.baseline_bare
        if name == run.scale.strategy and run.scale.framework == "none":  # its options are its workload
            return self.find_self(run, as_bare=True)
        candidates = self.by_name_and_key.get((name, self.make_key(run, False)), ()) if name else ()
        if not candidates and name == run.scale.strategy:
            return self.find_self(run)
        return find_nearest(candidates, run, as_bare=True)


def find_nearest(candidates: Sequence[R], run: Run, as_bare: bool = False) -> R | None:
    """Return the run itself if it is a candidate, else one of the same repeat if there is one, and closest in time.

    The same placement comes before the default one, and that before all others. Runs close in time are preferred since
    machines drift. `as_bare`: a bare run on one device is compared with the default placement rather than with itself,
    so that a sweep over single devices compares these devices.
    """
    is_bare_itself = as_bare and run.scale.gpus == 1 and run.scale.baseline_bare == run.scale.strategy
    own_placement, started = placement_of(run), start_time(run)

    def distance(candidate: R) -> tuple[object, ...]:
        placement = variables, bind, first = placement_of(candidate)
        differing = [] if is_bare_itself else [a != b for a, b in zip(placement, own_placement, strict=True)]
        is_other, is_other_repeat = candidate.run_id != run.run_id, candidate.scale.repeat != run.scale.repeat
        apart = abs(start_time(candidate) - started)
        return differing, variables != (), bind != "numa", first, is_other, is_other_repeat, apart

    return min(candidates, key=distance, default=None)
