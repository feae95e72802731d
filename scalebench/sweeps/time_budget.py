"""`sweep.max_minutes`: which runs of a sweep are worth the time that is left. Layer 1.

The least informative ones wait, and run after all if the others were quicker than thought.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from scalebench.core.spec import RunSpec

LAUNCHES = 3  # of a configuration, that give an interval over them


def affordable(
    rest: Sequence[RunSpec], planned: Sequence[RunSpec], costs_s: Sequence[float], left_s: float
) -> list[int]:
    """Places in `rest` of the runs that fit into `left_s` seconds, in its order; those that say least are left out.

    From the least informative: launches beyond the third; further launches on device counts between the least and the
    most of a curve; those counts themselves; second and third launches; then the last ones of the sweep, several
    devices before one. `planned` are all runs of the sweep, of which curves have their ends; `costs_s` are those of
    `rest`. What costs nothing always fits: runs that cannot happen here, and those that are there already.
    """
    ends = _ends(planned)
    kept = set(range(len(rest)))
    for place in sorted(kept, key=lambda place: _worth(rest[place], place, ends)):
        if sum(costs_s[other] for other in kept) <= left_s:
            break
        if costs_s[place] > 0:
            kept.remove(place)
    return sorted(kept)


def _worth(spec: RunSpec, place: int, ends: dict[str, tuple[int, int]]) -> tuple[int, int, bool, int]:
    """The larger, the more the run says."""
    repeat, between = spec.config.repeat, spec.gpus not in ends[_curve(spec)]
    if repeat >= LAUNCHES:
        kind = 0
    elif between:
        kind = 1 if repeat else 2
    else:
        kind = 3 if repeat else 4
    return kind, -repeat, spec.gpus == 1, -place


def _ends(planned: Sequence[RunSpec]) -> dict[str, tuple[int, int]]:
    """The fewest and the most devices of each curve."""
    counts: dict[str, list[int]] = {}
    for spec in planned:
        if spec.starts:
            counts.setdefault(_curve(spec), []).append(spec.gpus)
        else:
            counts.setdefault(_curve(spec), [])
    return {curve: (min(found), max(found)) if found else (0, 0) for curve, found in counts.items()}


def _curve(spec: RunSpec) -> str:
    """What the runs of one curve share: everything but the devices and the launch."""
    tree = dataclasses.asdict(spec.config)
    for key in ("gpus", "repeat"):
        del tree[key]
    return json.dumps(tree, sort_keys=True, default=str)
