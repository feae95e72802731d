"""More devices or a larger batch: N devices of b samples compared with one device of N * b, and how much of a larger
batch's gain comes from synchronizing gradients less often.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import (
    BARE_BASELINE_COLUMNS,
    DEVICES_OR_BATCH_COLUMNS,
    TRAINED_COLUMNS,
    Key,
    column_key,
    global_batch_key,
)
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, mean_of_factors
from scalebench.analysis.verdicts import decide_ratio, estimate_of, explain_no_verdict
from scalebench.core.stats.estimate_arithmetic import combine, estimate_around, rate_to_seconds
from scalebench.core.stats.estimates import Estimate

Row = Mapping[str, Any]


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
        work = global_batch_key(row, curve.group)
        if row["gpus"] == 1:
            self_rows.setdefault((work, column_key(row, DEVICES_OR_BATCH_COLUMNS)), row)
            bare_rows.setdefault((work, row["strategy"], column_key(row, BARE_BASELINE_COLUMNS)), row)
        else:
            several.setdefault((work, column_key(row, TRAINED_COLUMNS), row["gpus"]), (curve, row))
    comparisons, trained = [], {str(outcome.first_run["training_id"]): outcome for outcome in outcomes}
    for curve, row in several.values():
        work, bare_strategy = global_batch_key(row, curve.group), strategy_of.get(row["baseline_bare_id"])
        same = self_rows.get((work, column_key(row, DEVICES_OR_BATCH_COLUMNS)))
        bare = bare_rows.get((work, bare_strategy, column_key(row, BARE_BASELINE_COLUMNS)))
        for single, same_strategy in ((same, True), (None if bare is same else bare, False)):
            if single is not None:
                throughput = decide_ratio(row, single, estimate_ratio)
                trainings = _find_trainings(row, single, trained)
                time_ratio = None if trainings is None else _time_ratio(*trainings)
                comparisons.append(DevicesOrBatch(row, single, same_strategy, throughput, trainings, time_ratio))
    return comparisons


def _find_trainings(
    many: Row, single: Row, trained: Mapping[str, TrainingOutcome]
) -> tuple[TrainingOutcome, TrainingOutcome] | None:
    """Return the trainings of both rows if they had the same target."""
    left, right = (trained.get(str(row.get("training_id"))) for row in (many, single))
    if left is None or right is None or left.target is None or left.target != right.target:
        return None
    return left, right


def _time_ratio(many: TrainingOutcome, single: TrainingOutcome) -> Estimate | None:
    if any(outcome.reached < outcome.seeds or not all(outcome.target_s.values()) for outcome in (many, single)):
        return None  # after 0 s: the first step, whose seconds do not count, was enough
    ratios = [single.target_s[seed] / many.target_s[seed] for seed in single.target_s if seed in many.target_s]
    return mean_of_factors(ratios) if ratios else None


def list_batch_gains(curve: Curve) -> Iterator[BatchGain]:
    """Yield the gains along a curve over batches; none on one device, which synchronizes nothing."""
    for before, after in itertools.pairwise(curve.rows):
        if before["gpus"] > 1:
            predicted = _difference(_sync_s_per_epoch(before), _sync_s_per_epoch(after))
            yield BatchGain(before, after, predicted, _difference(_epoch_s(before), _epoch_s(after)))


def _difference(before: Estimate | None, after: Estimate | None) -> Estimate | None:
    if before is None or after is None:
        return None
    return combine({"before": 1.0, "after": -1.0}, {"before": before, "after": after})


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
