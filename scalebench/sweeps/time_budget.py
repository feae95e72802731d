"""Select the runs of a sweep that are worth the time that `sweep.max_minutes` leaves.

The least informative runs wait, and run after all if the others were faster than expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalebench.analysis.identity import planned_curve_key
from scalebench.core.spec import SWEEP_REPEATS
from scalebench.sweeps.plan import SweepRun


def select_affordable(
    rest: Sequence[SweepRun], planned: Sequence[SweepRun], cost_s: Callable[[SweepRun], float], left_s: float
) -> list[SweepRun]:
    """Return the runs of `rest` that fit into `left_s` seconds; the least informative are left out.

    From the least informative on: repeats beyond the third; then configurations, with all repeats that they still have
    before them, since one without three repeats allows no verdict. First those on device counts between the ends of a
    curve, then the last curves of the sweep, several devices before one. Of the last configuration as many repeats are
    kept as fit. `planned` are all runs of the sweep, which decide the ends of the curves. Runs without a cost always
    fit: those that cannot happen here, and those with an earlier result.
    """
    costs_s = {run: cost_s(run) for run in rest}
    selected = dict(costs_s)
    dropped: list[SweepRun] = []
    for group in _group_from_least_informative(rest, planned):
        if sum(selected.values()) <= left_s:
            break
        dropped = [run for run in group if costs_s[run] > 0] or dropped
        for run in dropped:
            selected.pop(run, None)
    if not any(selected.values()):
        for run in dropped:
            if sum(selected.values()) + costs_s[run] <= left_s:
                selected[run] = costs_s[run]
    return [run for run in rest if run in selected]


def _group_from_least_informative(rest: Sequence[SweepRun], planned: Sequence[SweepRun]) -> list[list[SweepRun]]:
    """Return the runs of `rest` in groups that are left out together."""
    curves = {run.spec.fingerprint: planned_curve_key(run.spec.config) for run in planned}
    counts: dict[str, list[int]] = {}
    for run in planned:
        counts.setdefault(curves[run.spec.fingerprint], []).extend([run.spec.gpus] * run.spec.can_start)
    curve_numbers = {curve: number for number, curve in enumerate(counts)}
    run_numbers = {fingerprint: number for number, fingerprint in enumerate(curves)}
    groups: dict[tuple[bool, int, bool, int, bool, int], list[SweepRun]] = {}
    for run in rest:
        curve, repeat, gpus = curves[run.spec.fingerprint], run.spec.config.repeat, run.spec.gpus
        is_needed, is_end = (
            repeat < SWEEP_REPEATS,
            gpus in (min(counts[curve], default=0), max(counts[curve], default=0)),
        )
        place = (is_end, -curve_numbers[curve], gpus == 1, -run_numbers[run.spec.fingerprint])
        groups.setdefault((is_needed, 0 if is_needed else -repeat, *place), []).append(run)
    return [groups[order] for order in sorted(groups)]
