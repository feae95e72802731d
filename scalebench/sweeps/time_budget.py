"""Select the runs of a sweep that are worth the time that `sweep.max_minutes` leaves.

The least informative runs wait, and run after all if the others were faster than expected.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalebench.analysis.identity import planned_curve_key
from scalebench.core.spec import RunSpec

INTERVAL_REPEATS = 3  # of a configuration, which give an interval over them


def select_affordable(
    rest: Sequence[RunSpec], planned: Sequence[RunSpec], costs_s: Sequence[float], left_s: float
) -> list[int]:
    """Return the positions in `rest` of the runs that fit into `left_s` seconds; the least informative are left out.

    From the least informative on: repeats beyond the third; further repeats on device counts between the ends of a
    curve; those counts themselves; second and third repeats; then the last runs of the sweep, several devices before
    one. `planned` are all runs of the sweep, which decide the ends of the curves; `costs_s` are those of `rest`. Runs
    without a cost always fit: those that cannot happen here, and those with an earlier result.
    """
    ends = _find_curve_ends(planned)
    selected = set(range(len(rest)))
    for position in sorted(selected, key=lambda position: _rank_information(rest[position], position, ends)):
        if sum(costs_s[other] for other in selected) <= left_s:
            break
        if costs_s[position] > 0:
            selected.remove(position)
    return sorted(selected)


def _rank_information(spec: RunSpec, position: int, ends: dict[str, tuple[int, int]]) -> tuple[int, int, bool, int]:
    """Return a sort key that is larger for more informative runs."""
    repeat = spec.config.repeat
    is_between = spec.gpus not in ends[planned_curve_key(spec.config)]
    if repeat >= INTERVAL_REPEATS:
        rank = 0
    elif is_between:
        rank = 1 if repeat else 2
    else:
        rank = 3 if repeat else 4
    return rank, -repeat, spec.gpus == 1, -position


def _find_curve_ends(planned: Sequence[RunSpec]) -> dict[str, tuple[int, int]]:
    """Return the fewest and the most devices of each curve; (0, 0) where none of its runs can happen here."""
    counts: dict[str, list[int]] = {}
    for spec in planned:
        counts.setdefault(planned_curve_key(spec.config), []).extend([spec.gpus] if spec.can_start else [])
    return {curve: (min(gpus), max(gpus)) if gpus else (0, 0) for curve, gpus in counts.items()}
