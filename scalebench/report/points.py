"""Curves of a training's metrics over its seeds: what the section `training` draws. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scalebench import trained
from scalebench.report.blocks import Series
from scalebench.report.thinning import thin
from scalebench.results import CurvePoint
from scalebench.time_to_target import Figure, over_levels

MOST_POINTS = 300  # of a line
Over = Callable[[CurvePoint], float]
Of = Callable[[CurvePoint], float | None]


class Drawn(NamedTuple):
    """One configuration: its name, and the curve of each of its seeds."""

    name: str
    tags: Mapping[str, str]
    curves: Sequence[Sequence[CurvePoint]]


def epochs(point: CurvePoint) -> float:
    return point.epochs


def seconds(point: CurvePoint) -> float:
    return point.train_s


def validation(metric: str) -> Of:
    return lambda point: point.metrics.get(metric)


def on_trained(metric: str) -> Of:
    """On samples that were trained on."""
    return lambda point: point.train_metrics.get(metric)


def gap(metric: str) -> Of:
    """How much worse it is on what it has not seen."""
    return lambda point: trained.gap(metric, point.metrics.get(metric), point.train_metrics.get(metric))


def series(drawn: Drawn, of: Of, over: Over) -> Series | None:
    """Means over the seeds as far as all of them went, with limits from three seeds on; of one seed its curve. None
    where nothing is known."""
    x: list[float] = []
    found: list[Figure] = []
    for points in _together(drawn.curves):
        values = [value for point in points if (value := of(point)) is not None]
        if len(values) == len(points):
            x.append(sum(map(over, points)) / len(points))
            found.append(over_levels(values))
    if not x:
        return None
    kept = [int(place) for place, _ in thin([(float(k), value) for k, (value, _) in enumerate(found)], MOST_POINTS)]
    low, high = ([None if i is None else (i.low, i.high)[end] for k in kept for i in [found[k][1]]] for end in (0, 1))
    limited = any(limit is not None for limit in low)
    return Series(
        drawn.name,
        [x[k] for k in kept],
        [found[k][0] for k in kept],
        low if limited else (),
        high if limited else (),
        drawn.tags,
        "points" if len(kept) == 1 else "line",
    )


def _together(curves: Sequence[Sequence[CurvePoint]]) -> list[list[CurvePoint]]:
    """Points of all seeds after the same number of updates. Those that were evaluated by the clock have few of them:
    then those of the first seed."""
    by_step = [{point.step: point for point in curve} for curve in curves]
    steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
    if 2 * len(steps) < min(map(len, by_step), default=0):
        return [[point] for point in curves[0]]
    return [[points[step] for points in by_step] for step in steps]
