"""What a curve over devices comes to: its slope, its jumps where another node begins, how far it keeps an efficiency.
Layer 1.

`against` is `bare`, `self` or `given`: what the columns of speedup and efficiency are measured against.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from scalebench.curves import Curve, interval
from scalebench.stats import CONFIDENCE, Interval, ratio_interval, scale
from scalebench.student import student_t


@dataclass(frozen=True)
class Slope:
    """Speedup per device, with its 95 % limits (None for two device counts); `intercept` is the line's speedup at 0
    devices, `points` are (devices, speedup)."""

    value: float
    low: float | None
    high: float | None
    intercept: float
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Jump:
    """From the last device count on fewer nodes to the first on more. Efficiencies before and after; `ratio` of after
    to before with its 95 % limits, and whether that is a difference (None: there is no interval)."""

    gpus: tuple[int, int]
    nodes: tuple[int, int]
    before: float | None
    after: float | None
    ratio: float
    low: float | None
    high: float | None
    resolved: bool | None


@dataclass(frozen=True)
class Keeps:
    """How many devices keep the efficiency `wanted`: `value` by the figures, `surely` by their lower limits; None for
    not even the fewest. `again`: larger counts that have it all the same. `measured`: the largest count with a figure,
    None for no figure at all."""

    wanted: float
    value: int | None
    surely: int | None
    again: tuple[int, ...]
    measured: int | None


def slope(curve: Curve, against: str = "bare") -> Slope | None:
    """The line of ordinary least squares through speedup over devices, with an intercept; None for fewer than two
    device counts with a speedup.

    The interval is that of the regression: Student's t with n - 2 degrees of freedom, from the scatter of the n points
    around the line. A curve that bends counts as scatter too, for the line is a summary and no law. It does not hold
    what all points share, the error of the baseline, which scales the slope as it scales every speedup: by the width
    of the baseline's own interval. With three points t is 12.7; such a slope is known roughly at best.

    Sources: P. Orlob 2022, "Parallelization of GPUs based on Horovod" (interim presentation, TU Dresden: speedup per
    GPU as the slope of the line through its points); Draper and Smith 1998, "Applied Regression Analysis", chapter 1.
    """
    name = f"speedup_{against}"
    points = tuple((row["gpus"], row[name]) for row in curve.rows if row[name] is not None)
    if len(points) < 2:
        return None
    mean_x, mean_y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    value = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - value * mean_x
    if len(points) < 3:
        return Slope(value, None, None, intercept, points)
    freedom = len(points) - 2
    around = math.fsum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in points)
    reach = student_t(freedom, CONFIDENCE) * math.sqrt(around / freedom / spread)
    return Slope(value, value - reach, value + reach, intercept, points)


def jumps(curve: Curve, against: str = "bare") -> list[Jump]:
    """Where a curve goes on to more nodes: the last device count before, the first after.

    The ratio of the two efficiencies is that of throughputs per device, in which the baseline cancels; its interval is
    of those two alone (stats.ratio_interval), and not as wide as limits of the efficiencies themselves would make it.
    Part of a jump is what as many more devices would have cost without the boundary.
    """
    found = []
    for before, after in itertools.pairwise(curve.rows):
        if after["nodes"] <= before["nodes"]:
            continue
        ratio = _per_device(after) / _per_device(before)
        limits = _ratio(after, before)
        found.append(
            Jump(
                (before["gpus"], after["gpus"]), (before["nodes"], after["nodes"]),
                before[f"efficiency_{against}"], after[f"efficiency_{against}"], ratio,
                None if limits is None else limits.low,
                None if limits is None or math.isinf(limits.high) else limits.high,
                None if limits is None else not limits.low <= 1 <= limits.high,
            )
        )  # fmt: skip
    return found


def keeps(curve: Curve, wanted: float, against: str = "bare") -> Keeps:
    """The most devices that keep the efficiency `wanted` (a share, above 0): the largest count up to which every
    measured count keeps it, so that one that is fine again beyond a bad one does not hide it.

    `surely` asks for the lower limit of the 95 % interval; a row that is its own baseline is 1 exactly. A count
    without an efficiency ends what can be said. ValueError for no share.
    """
    if not wanted > 0:
        raise ValueError(f"a wanted efficiency is a share above 0, not {wanted}")
    figures = [(row["gpus"], row[f"efficiency_{against}"], _lowest(row, against)) for row in curve.rows]
    good = [gpus for gpus, _, _ in itertools.takewhile(lambda one: _at_least(one[1], wanted), figures)]
    sure = [gpus for gpus, _, _ in itertools.takewhile(lambda one: _at_least(one[2], wanted), figures)]
    again = tuple(gpus for gpus, value, _ in figures[len(good) :] if _at_least(value, wanted))
    known = [gpus for gpus, value, _ in figures if value is not None]
    return Keeps(wanted, max(good, default=None), max(sure, default=None), again, max(known, default=None))


def _at_least(value: float | None, wanted: float) -> bool:
    return value is not None and value >= wanted


def _lowest(row: dict[str, Any], against: str) -> float | None:
    itself = row["run_id"] == row[f"baseline_{against}_id"]
    low: float | None = row[f"efficiency_{against}"] if itself else row[f"efficiency_{against}_low"]
    return low


def _per_device(row: dict[str, Any]) -> float:
    rate: float = row["throughput_samples_per_s"] / row["gpus"]
    return rate


def _ratio(after: dict[str, Any], before: dict[str, Any]) -> Interval | None:
    late, early = (interval(row, "throughput_samples_per_s", "throughput") for row in (after, before))
    if late is None or early is None:
        return None
    return ratio_interval(scale(late, 1 / after["gpus"]), scale(early, 1 / before["gpus"]))
