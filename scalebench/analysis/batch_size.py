"""Curves over the batch of a device: the rows of the pooled frame that are one configuration on one number of devices,
measured with several batches. Layer 1.

Where a larger batch stops to pay: the knee of throughput over the batch of a device, and what an update costs before
its first sample. Layer 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.identity import curve_key
from scalebench.analysis.scaling_curves import Curve, estimate_of, name_curves
from scalebench.core.stats.estimates import CONFIDENCE, divide_estimates, student_t

BATCH = "batch_per_device"
Key = tuple[Any, ...]


def make_batch_curves(found: Iterable[Curve]) -> list[Curve]:
    """One for each configuration and number of devices that has two batches or more; its rows in the order of batches.
    The others of its group are those that may be drawn beside it."""
    by_group: dict[Key, dict[Key, list[Curve]]] = {}
    for curve in found:
        for row in curve.rows:
            one = Curve(curve.name, curve.group, curve.tags, [row])
            shared = tuple(text for name, text in curve.group.items() if name != "batch")
            key = (curve_key(row), row["gpus"])
            by_group.setdefault(shared, {}).setdefault(key, []).append(one)
    return [curve for members in by_group.values() for curve in _batch_curves_of_group(members)]


def _batch_curves_of_group(members: dict[Key, list[Curve]]) -> Iterator[Curve]:
    several = {key: parts for key, ones in members.items() if (parts := _split_by_batch(ones))}
    names = name_curves(list(dict.fromkeys(identity for identity, _ in several)))
    sizes = [row[BATCH] for parts in several.values() for rows in parts for row in rows]
    for (identity, gpus), parts in several.items():
        first = members[identity, gpus][0]
        group = {**first.group, "batch": f"{min(sizes):,} to {max(sizes):,} per device"}
        for number, rows in enumerate(parts, 1):
            name = f"{names[identity]}, {gpus} device{'s' if gpus > 1 else ''}{f' #{number}' if number > 1 else ''}"
            yield Curve(name, group, first.tags, rows)


def _split_by_batch(ones: Sequence[Curve]) -> list[list[dict[str, Any]]]:
    """Rows of two batches or more; what was measured twice with one batch, and differs in what no column tells, is a
    part of its own."""
    parts: list[list[dict[str, Any]]] = []
    for row in sorted((one.rows[0] for one in ones), key=lambda row: row[BATCH]):
        free = next((part for part in parts if all(other[BATCH] != row[BATCH] for other in part)), None)
        if free is None:
            parts.append(free := [])
        free.append(row)
    return [part for part in parts if len(part) > 1]


SATURATION_SHARE = 0.9  # of the highest throughput, which the knee has at least
RATE = "throughput_samples_per_s"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class SaturatingBatch:
    """`batch`: the smallest batch of a device whose throughput is at least SHARE of the highest measured one.

    `share`: its own; `highest`: the batch that has the highest; `candidates`: the measured batches that could be the
    knee by the intervals, None where there are none. At an end of what was measured the knee itself may lie beyond:
    `first`: no smaller batch was measured; `last`: no larger one, so that throughput still rises.
    """

    batch: int
    share: float
    rate: float  # samples/s over all devices at the knee
    highest: int
    highest_rate: float
    candidates: tuple[int, ...] | None
    first: bool
    last: bool


@dataclass(frozen=True)
class StepFit:
    """step_s = alpha_s + beta_s * samples of a device. `half_batch` (n_1/2) is alpha_s / beta_s in samples: there half
    of an update is not the samples', and throughput half of `limit` = 1 / beta_s, in samples/s of one device.

    None where the line has none: an update that starts with less than nothing, or takes no longer for more samples.
    Limits are None for two points, and where the data give none. `r_squared` is of the relative deviations, `worst` the
    largest of them (a share).
    """

    alpha_s: float
    beta_s: float
    half_batch: float | None
    low: float | None
    high: float | None
    r_squared: float
    worst: float
    points: int

    @property
    def limit(self) -> float | None:
        return 1 / self.beta_s if self.beta_s > 0 else None


def find_saturating_batch(rows: Sequence[Row], share: float = SATURATION_SHARE) -> SaturatingBatch | None:
    """Of rows of one configuration, one a batch, in the order of batches; None for fewer than two.

    A batch could be the knee where the 95 % intervals of its throughput over each other one (stats.ratio_interval) all
    reach `share`, and no smaller batch is surely there: each pair for itself, so that several comparisons err more
    often than 5 % in all. The highest measured throughput is that of a finite series and no limit: StepFit has one.
    """
    if len(rows) < 2:
        return None
    best = max(rows, key=lambda row: row[RATE])
    found = next(row for row in rows if row[RATE] >= share * best[RATE])
    return SaturatingBatch(
        found["batch_per_device"], found[RATE] / best[RATE], found[RATE], best["batch_per_device"], best[RATE],
        _saturation_candidates(rows, share), found is rows[0], found is rows[-1],
    )  # fmt: skip


def _saturation_candidates(rows: Sequence[Row], share: float) -> tuple[int, ...] | None:
    rates = [estimate_of(row, RATE, "throughput") for row in rows]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    made = []
    for row, rate in zip(rows, known, strict=True):
        ratios = [divide_estimates(rate, other) for other in known if other is not rate]
        if min(ratio.high for ratio in ratios) >= share:
            made.append(row["batch_per_device"])
        if min(ratio.low for ratio in ratios) >= share:
            break
    return tuple(made)


def batch_and_step_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(samples of a device, seconds) of the mean update of each row, in which the smaller last one of an epoch is as
    well; rows without step_s are left out."""
    known = [row for row in rows if row["step_s"] is not None]
    return [(row[RATE] * row["step_s"] / row["gpus"], row["step_s"]) for row in known]


def fit_step_time(points: Sequence[tuple[float, float]]) -> StepFit | None:
    """The line of least squares of the relative deviations, for times of small batches are as well known as those of
    large ones; None for fewer than two batches. ValueError for a size or a time that is not positive.

    n_1/2 has its 95 % interval by Fieller's theorem, with n - 2 degrees of freedom, from the scatter around the line. A
    curve that is no line (caches, another algorithm for larger batches) counts as scatter too: `worst` tells.

    Sources: Hockney and Jesshope 1988, "Parallel Computers 2", chapter 1.3 (r_inf and n_1/2); Fieller 1954, "Some
    problems in interval estimation"; Draper and Smith 1998, "Applied Regression Analysis", chapter 9 (weights).
    """
    if not all(samples > 0 and seconds > 0 for samples, seconds in points):
        raise ValueError("a batch has samples, and an update takes time")
    if len({samples for samples, _ in points}) < 2:
        return None
    # Divided by the time: 1 = alpha / t + beta * b / t. Sizes and times by their largest, so that sums stay numbers.
    most, longest = (max(values) for values in zip(*points, strict=True))
    rows = [(longest / seconds, samples / most * longest / seconds) for samples, seconds in points]
    s11, s12, s22 = (math.fsum(one[i] * one[j] for one in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    t1, t2 = (math.fsum(one[i] for one in rows) for i in (0, 1))
    determinant = s11 * s22 - s12 * s12
    if not determinant > 0:
        return None  # sizes that differ by rounding only
    alpha, beta = (s22 * t1 - s12 * t2) / determinant, (s11 * t2 - s12 * t1) / determinant
    off = [1 - alpha * one - beta * other for one, other in rows]
    around, flat = math.fsum(value * value for value in off), len(rows) - t1 * t1 / s11
    half = alpha / beta if alpha > 0 and beta > 0 else None
    limits = _ratio_limits(
        (alpha, beta), (s22 / determinant, -s12 / determinant, s11 / determinant), around, len(rows) - 2
    )
    low, high = (None, None) if half is None or limits is None else limits
    return StepFit(
        alpha * longest, beta * longest / most, None if half is None else half * most,
        None if low is None else max(0.0, low) * most, None if high is None else high * most,
        1 - around / flat if flat > 0 else 0.0, max(map(abs, off)), len(rows),
    )  # fmt: skip


def _ratio_limits(
    line: tuple[float, float], inverse: tuple[float, float, float], around: float, freedom: int
) -> tuple[float, float] | None:
    """Limits of alpha / beta; None where beta cannot be told from 0. `inverse` is the matrix of normal equations'."""
    alpha, beta = line
    if freedom < 1 or not beta > 0:
        return None
    variance, t = around / freedom, student_t(freedom, CONFIDENCE)
    v11, v12, v22 = (variance * part for part in inverse)
    g, ratio = t * t * v22 / (beta * beta), alpha / beta
    if g >= 1:
        return None
    inner = v11 - 2 * ratio * v12 + ratio * ratio * v22 - g * (v11 - v12 * v12 / v22 if v22 > 0 else 0.0)
    middle = ratio - (g * v12 / v22 if v22 > 0 else 0.0)
    reach = t / beta * math.sqrt(max(0.0, inner))
    return (middle - reach) / (1 - g), (middle + reach) / (1 - g)
