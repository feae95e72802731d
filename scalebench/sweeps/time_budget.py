"""Select the runs of a sweep that are worth the time that `sweep.max_minutes` leaves.

The least informative runs wait, and run after all if the others were faster than expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalebench.analysis.identity import planned_curve_key
from scalebench.core.spec import SWEEP_REPEATS, RunSpec


def select_affordable(
    rest: Sequence[RunSpec], planned: Sequence[RunSpec], costs_s: Sequence[float], left_s: float
) -> list[int]:
    """Return the positions in `rest` of the runs that fit into `left_s` seconds; the least informative are left out.

    From the least informative on: repeats beyond the third; then configurations, with all repeats that they still have
    before them, since one without three repeats allows no verdict. First those on device counts between the ends of a
    curve, then the last curves of the sweep, several devices before one. Of the last configuration as many repeats are
    kept as fit. `planned` are all runs of the sweep, which decide the ends of the curves; `costs_s` are those of
    `rest`. Runs without a cost always fit: those that cannot happen here, and those with an earlier result.
    """
    selected = set(range(len(rest)))

    def fits(positions: set[int]) -> bool:
        return sum(costs_s[position] for position in positions) <= left_s

    dropped: set[int] = set()
    for group in _group_from_least_informative(rest, planned):
        if fits(selected):
            break
        dropped = {position for position in group if costs_s[position] > 0} or dropped
        selected -= dropped
    if not any(costs_s[position] > 0 for position in selected):
        for position in sorted(dropped):
            selected |= {position} if fits(selected | {position}) else set()
    return sorted(selected)


def _group_from_least_informative(rest: Sequence[RunSpec], planned: Sequence[RunSpec]) -> list[set[int]]:
    """Return the positions in `rest` of runs that are left out together."""
    curves = {spec.fingerprint: planned_curve_key(spec.config) for spec in planned}
    ends = _find_curve_ends(planned, curves)
    curve_numbers = {curve: number for number, curve in enumerate(dict.fromkeys(curves.values()))}
    run_numbers = {fingerprint: number for number, fingerprint in enumerate(curves)}
    groups: dict[tuple[bool, int, bool, int, bool, int], set[int]] = {}
    for position, spec in enumerate(rest):
        curve, repeat = curves[spec.fingerprint], spec.config.repeat
        is_needed, is_end = repeat < SWEEP_REPEATS, spec.gpus in ends[curve]
        place = (is_end, -curve_numbers[curve], spec.gpus == 1, -run_numbers[spec.fingerprint])
        groups.setdefault((is_needed, 0 if is_needed else -repeat, *place), set()).add(position)
    return [groups[order] for order in sorted(groups)]


def _find_curve_ends(planned: Sequence[RunSpec], curves: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return the fewest and the most devices of each curve; (0, 0) where none of its runs can happen here."""
    counts: dict[str, list[int]] = {}
    for spec in planned:
        counts.setdefault(curves[spec.fingerprint], []).extend([spec.gpus] if spec.can_start else [])
    return {curve: (min(gpus), max(gpus)) if gpus else (0, 0) for curve, gpus in counts.items()}
