"""Batches: the saturating batch of a device, from which more samples per step bring nearly nothing, and the fixed cost
of a step; N devices of b samples beside one device of N * b; and how much of a larger batch's gain comes from
synchronizing gradients less often.

A curve over batches is the rows of the pooled frame that are one configuration on one number of devices, measured with
several batches.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalebench.analysis import identity
from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import Key, curve_key, name_curves
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, mean_of_factors
from scalebench.analysis.verdicts import decide_ratio, estimate_of, explain_no_verdict
from scalebench.core.stats.estimate_arithmetic import (
    LeastSquares,
    combine,
    estimate_around,
    fit_least_squares,
    rate_to_seconds,
)
from scalebench.core.stats.estimates import CONFIDENCE, Estimate, student_t
from scalebench.core.units import format_count

BATCH = "batch_per_device"
SATURATION_SHARE = 0.9  # of the highest throughput, which the saturating batch reaches
Row = Mapping[str, Any]


def make_batch_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Return a curve for each configuration and number of devices with two batches or more, its rows in ascending order
    of batches. Curves of one group may share a chart."""
    by_group: dict[Key, dict[tuple[Key, int], list[tuple[Curve, dict[str, Any]]]]] = {}
    for curve in curves:
        group_key = tuple(text for name, text in curve.group.items() if name != "batch")
        for row in curve.rows:
            points = by_group.setdefault(group_key, {}).setdefault((curve_key(row), row["gpus"]), [])
            points.append((curve, row))
    batch_curves = []
    for members in by_group.values():
        parts = [(key, points[0][0], part) for key, points in members.items()
                 for part in _split_by_batch([row for _, row in points])]  # fmt: skip
        names = name_curves(list(dict.fromkeys(key for (key, _), _, _ in parts)))
        sizes = [row[BATCH] for _, _, rows in parts for row in rows]
        numbers = Counter[tuple[Key, int]]()
        for (key, gpus), first, rows in parts:
            numbers[key, gpus] += 1
            number = f" #{numbers[key, gpus]}" if numbers[key, gpus] > 1 else ""
            name = f"{names[key]}, {format_count(gpus, 'device')}{number}"
            group = {**first.group, "batch": f"{min(sizes):,} to {max(sizes):,} per device"}
            batch_curves.append(Curve(name, group, first.tags, rows))
    return batch_curves


def _split_by_batch(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return lists of rows with two batches or more; rows with one batch, which differ in something that has no column,
    are in separate lists."""
    parts: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: row[BATCH]):
        free = next((part for part in parts if part[-1][BATCH] != row[BATCH]), None)  # each is in ascending order
        if free is None:
            parts.append(free := [])
        free.append(row)
    return [part for part in parts if len(part) > 1]


@dataclass(frozen=True)
class SaturatingBatch:
    """`batch` is the smallest batch of a device whose throughput is at least SATURATION_SHARE of the highest measured
    one.

    `share` is its own share; `highest` is the batch with the highest throughput; `candidates` are the measured batches
    that could be the saturating one by their intervals, None without limits over repeats. At an end of the measured
    range the true saturating batch may be beyond: `first` says that no smaller batch was measured; `last` that no
    larger one was, so that throughput still rises.
    """

    batch: int
    share: float
    rate: float  # samples/s over all devices at `batch`
    highest: int
    highest_rate: float
    candidates: tuple[int, ...] | None
    first: bool
    last: bool


@dataclass(frozen=True)
class StepFit:
    """step_s = alpha_s + beta_s * samples of a device. `half_batch` (n_1/2) is alpha_s / beta_s in samples: with it
    half of a step is fixed cost, and throughput is half of `limit` = 1 / beta_s, in samples/s of one device.

    Both are None if the line has a negative fixed cost, or does not rise with the samples. The limits `low` and `high`
    are None for two points, and where the data give none. `r_squared` is that of the relative deviations, `worst` the
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


def find_saturating_batch(
    rows: Sequence[Row], estimate_ratio: EstimateRatio, share: float = SATURATION_SHARE
) -> SaturatingBatch | None:
    """Find the saturating batch among rows of one configuration, one for each batch in ascending order; None for fewer
    than two.

    A batch is a candidate if the 95 % intervals of its throughput over that of each other batch all reach `share`, and
    no smaller batch certainly does. Each pair is tested by itself, so that several comparisons together err more often
    than 5 %. The highest measured throughput belongs to a finite
    series and is no limit: StepFit has one.
    """
    if len(rows) < 2:
        return None
    best = max(rows, key=lambda row: row[RATE])
    row = next(row for row in rows if row[RATE] >= share * best[RATE])
    return SaturatingBatch(
        row[BATCH], row[RATE] / best[RATE], row[RATE], best[BATCH], best[RATE],
        _saturation_candidates(rows, estimate_ratio, share), row is rows[0], row is rows[-1],
    )  # fmt: skip


def _saturation_candidates(rows: Sequence[Row], estimate_ratio: EstimateRatio, share: float) -> tuple[int, ...] | None:
    candidates = []
    for row in rows:
        ratios = [decide_ratio(row, other, estimate_ratio) for other in rows if other is not row]
        if not all(ratio.has_limits for ratio in ratios):
            return None
        if min(ratio.high for ratio in ratios) >= share:
            candidates.append(row[BATCH])
        if min(ratio.low for ratio in ratios) >= share:
            break
    return tuple(candidates)


def batch_and_step_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (samples of a device, seconds) of the mean step of each row, which includes the smaller last step of an
    epoch; rows without step_s are left out."""
    return [(row[RATE] * row["step_s"] / row["gpus"], row["step_s"]) for row in rows if row["step_s"] is not None]


def fit_step_time(points: Sequence[tuple[float, float]]) -> StepFit | None:
    """Fit a line by least squares of the relative deviations, since times of small batches are as precise as those of
    large ones; None for fewer than two batches. Raises ValueError for a size or a time that is not positive.

    n_1/2 has its 95 % interval by Fieller's theorem, with n - 2 degrees of freedom, from the scatter around the line. A
    curve that is no line (caches, another algorithm for larger batches) counts as scatter too: `worst` shows it.

    Sources: Hockney and Jesshope 1988, "Parallel Computers 2", chapter 1.3 (r_inf and n_1/2); Fieller 1954, "Some
    problems in interval estimation"; Draper and Smith 1998, "Applied Regression Analysis", chapter 9 (weights).
    """
    if not all(samples > 0 and seconds > 0 for samples, seconds in points):
        raise ValueError("a batch has samples, and a step takes time")
    if len({samples for samples, _ in points}) < 2:
        return None
    fit = fit_least_squares([(1 / seconds, samples / seconds) for samples, seconds in points], [1.0] * len(points))
    if fit is None:
        return None  # sizes that differ by rounding only
    (alpha, beta), worst = map(float, fit.coefficients), float(np.abs(fit.deviations).max())
    limits = _ratio_limits(fit) if alpha > 0 and beta > 0 else None
    low, high = (None, None) if limits is None else (max(0.0, limits[0]), limits[1])
    inverse_s = np.array([1 / seconds for _, seconds in points])
    around, flat = float(fit.deviations @ fit.deviations), len(points) - inverse_s.sum() ** 2 / (inverse_s @ inverse_s)
    r_squared = 1 - around / float(flat) if flat > 0 else 0.0
    half_batch = alpha / beta if alpha > 0 and beta > 0 else None
    return StepFit(alpha, beta, half_batch, low, high, r_squared, worst, len(points))


def _ratio_limits(fit: LeastSquares) -> tuple[float, float] | None:
    """Return the limits of alpha / beta by Fieller's theorem; None for two points, and if beta, which is positive, is
    not significantly different from 0."""
    freedom = len(fit.deviations) - 2
    if freedom < 1:
        return None
    (alpha, beta), t = fit.coefficients.tolist(), student_t(freedom, CONFIDENCE)
    (v11, v12), (_, v22) = (fit.inverse * float(fit.deviations @ fit.deviations) / freedom).tolist()
    g, ratio = t * t * v22 / (beta * beta), alpha / beta
    if g >= 1:
        return None
    inner = v11 - 2 * ratio * v12 + ratio * ratio * v22 - g * (v11 - v12 * v12 / v22 if v22 > 0 else 0.0)
    middle = ratio - (g * v12 / v22 if v22 > 0 else 0.0)
    reach = t / beta * math.sqrt(max(0.0, inner))
    return (middle - reach) / (1 - g), (middle + reach) / (1 - g)


@dataclass(frozen=True)
class DevicesOrBatch:
    """N devices of b samples (`many_devices`) and one device of N * b (`one_device`): the same samples and as many
    steps in an epoch. With `same_strategy` the one device runs the strategy itself, else its bare baseline.

    `throughput` is that of N devices over that of one. `trainings` are both over their seeds, None if they had no
    target, or different ones. `time_ratio` is the one device's seconds to the target over those of N devices, None
    unless every seed of both reached it, and they share one; seeds are paired. Limits are 95 %, over repeats and over
    seeds, of which it takes three.
    """

    many_devices: Row
    one_device: Row
    same_strategy: bool
    throughput: Estimate
    trainings: tuple[TrainingOutcome, TrainingOutcome] | None
    time_ratio: Estimate | None


@dataclass(frozen=True)
class BatchGain:
    """One batch of a device and the next larger one, on as many devices; seconds of an epoch.

    `predicted` is the exposed sync of a step times the steps of an epoch, before minus after; None without probes.
    `measured` is the time of the epoch before minus after, with limits over repeats. Above 0: the larger batch is
    faster.
    """

    before: Row
    after: Row
    predicted: Estimate | None
    measured: Estimate | None

    @property
    def share(self) -> float | None:
        """The share of the gain that less frequent synchronization explains; None if there is surely no gain."""
        if self.predicted is None or self.measured is None or self.measured.low <= 0:
            return None
        return self.predicted.value / self.measured.value


def compare_devices_with_batch(
    curves: Iterable[Curve], estimate_ratio: EstimateRatio, outcomes: Iterable[TrainingOutcome] = ()
) -> list[DevicesOrBatch]:
    """Compare N devices with one device at the same global batch, on scaling curves and the trainings of the same runs.

    In weak scaling only: in strong scaling every speedup is such a comparison. Throughput is that of the first of
    several seeds, the time to the target that of all.
    """
    pairs = ((curve, row) for curve in curves for row in curve.rows)
    rows: list[tuple[Curve, Row]] = [(curve, row) for curve, row in pairs if row["scaling"] != "strong"]
    strategy_of = {row["run_id"]: row["strategy"] for _, row in rows}
    self_rows: dict[Key, Row] = {}
    bare_rows: dict[Key, Row] = {}
    several: dict[Key, tuple[Curve, Row]] = {}
    for curve, row in rows:
        work = identity.global_batch_key(row, curve.group)
        if row["gpus"] == 1:
            self_rows.setdefault((work, identity.column_key(row, identity.DEVICES_OR_BATCH_COLUMNS)), row)
            bare_rows.setdefault((work, row["strategy"], identity.column_key(row, identity.BARE_BASELINE_COLUMNS)), row)
        else:
            several.setdefault((work, identity.column_key(row, identity.TRAINED_COLUMNS), row["gpus"]), (curve, row))
    comparisons, trained = [], {str(outcome.first_run["training_id"]): outcome for outcome in outcomes}
    for curve, row in several.values():
        work, bare_strategy = identity.global_batch_key(row, curve.group), strategy_of.get(row["baseline_bare_id"])
        same = self_rows.get((work, identity.column_key(row, identity.DEVICES_OR_BATCH_COLUMNS)))
        bare = bare_rows.get((work, bare_strategy, identity.column_key(row, identity.BARE_BASELINE_COLUMNS)))
        for single, same_strategy in ((same, True), (None if bare is same else bare, False)):
            if single is not None:
                throughput = decide_ratio(row, single, estimate_ratio)
                left, right = (trained.get(str(each.get("training_id"))) for each in (row, single))
                has_target = left is not None and right is not None and left.target is not None
                trainings = (left, right) if left and right and has_target and left.target == right.target else None
                time_ratio = None if trainings is None else _time_ratio(*trainings)
                comparisons.append(DevicesOrBatch(row, single, same_strategy, throughput, trainings, time_ratio))
    return comparisons


def _time_ratio(many: TrainingOutcome, single: TrainingOutcome) -> Estimate | None:
    if any(outcome.reached < outcome.seeds or not all(outcome.target_s.values()) for outcome in (many, single)):
        return None  # after 0 s: the first step, whose seconds do not count, was enough
    ratios = [single.target_s[seed] / many.target_s[seed] for seed in single.target_s if seed in many.target_s]
    return mean_of_factors(ratios) if ratios else None


def list_batch_gains(curve: Curve) -> Iterator[BatchGain]:
    """Yield the gains along a curve over batches; none on one device, which synchronizes nothing."""
    for before, after in itertools.pairwise(curve.rows):
        if before["gpus"] > 1:
            differences = []
            for seconds_of in (_sync_s_per_epoch, _epoch_s):
                both = {"before": seconds_of(before), "after": seconds_of(after)}
                present = {name: seconds for name, seconds in both.items() if seconds is not None}
                differences.append(combine({"before": 1.0, "after": -1.0}, present) if len(present) == 2 else None)
            yield BatchGain(before, after, *differences)


def _sync_s_per_epoch(row: Row) -> Estimate | None:
    sync_s, steps = row["sync_exposed_s"], row["steps_per_epoch"]
    if sync_s is None or not steps:
        return None
    per_step = estimate_of(row, "sync_exposed_s")
    limits = None if per_step is None else Estimate(*(steps * s for s in (per_step.value, per_step.low, per_step.high)))
    return estimate_around(steps * sync_s, limits)


def _epoch_s(row: Row) -> Estimate | None:
    epoch_s = row["epoch_s"]
    if epoch_s is None or not math.isfinite(epoch_s):
        return None
    limits = None if explain_no_verdict(row) else estimate_of(row, RATE, "throughput")
    return rate_to_seconds(row[RATE], limits, epoch_s * row[RATE])
