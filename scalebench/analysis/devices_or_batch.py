"""More devices or a larger batch: N devices of b samples beside one device of N * b, and how much of a larger batch's
gain is that it exchanges less often. Layer 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.identity import (
    BARE_BASELINE_COLUMNS,
    DEVICES_OR_BATCH_COLUMNS,
    OPTIMIZER_COLUMNS,
    TRAINED_COLUMNS,
    column_key,
)
from scalebench.analysis.scaling_curves import Curve, estimate_of
from scalebench.analysis.time_to_target import TrainingOutcome
from scalebench.core.stats.estimate_arithmetic import combine, estimate_around, is_above_zero, rate_to_seconds
from scalebench.core.stats.estimates import Estimate, divide_estimates

RATE = "throughput_samples_per_s"
Key = tuple[Any, ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class DevicesOrBatch:
    """N devices of b samples and one device of N * b: the same samples and as many updates an epoch. `many` and `one`
    are rows; `own`: one device of the same strategy, else of its bare baseline.

    `throughput`: that of N devices over that of one. `trainings`: what came of both over their seeds, None where they
    had no target, or different ones. `sooner`: seconds to it of one device over those of N devices, None unless every
    seed of both got there. Limits are 95 %.
    """

    many: Row
    one: Row
    own: bool
    throughput: Estimate
    trainings: tuple[TrainingOutcome, TrainingOutcome] | None
    sooner: Estimate | None


@dataclass(frozen=True)
class BatchGain:
    """From one batch of a device to the next larger one, on as many devices; seconds of an epoch.

    `predicted`: exposed sync of an update times the updates of an epoch, before minus after; None without probes.
    `measured`: the epoch before minus after. Above 0: the larger batch is faster.
    """

    before: Row
    after: Row
    predicted: Estimate | None
    measured: Estimate | None

    @property
    def share(self) -> float | None:
        """Of what was gained, that which fewer exchanges explain; None where nothing was."""
        if self.predicted is None or self.measured is None or not is_above_zero(self.measured):
            return None
        return self.predicted.value / self.measured.value


def compare_devices_with_batch(
    curves: Iterable[Curve], outcomes: Iterable[TrainingOutcome] = ()
) -> list[DevicesOrBatch]:
    """Of curves over devices, in their order, and of the trainings of the same runs.

    In weak scaling only: in strong scaling every speedup is such a comparison. Of several seeds throughput is that of
    the first, time to the target that of all.
    """
    rows: list[tuple[Curve, Row]] = [(one, row) for one in curves for row in one.rows if row["scaling"] != "strong"]
    name_of = {row["run_id"]: row["strategy"] for _, row in rows}
    own: dict[Key, Row] = {}
    bare: dict[Key, Row] = {}
    for curve, row in rows:
        if row["gpus"] == 1:
            own.setdefault((_work(curve, row), column_key(row, DEVICES_OR_BATCH_COLUMNS)), row)
            bare.setdefault((_work(curve, row), row["strategy"], column_key(row, BARE_BASELINE_COLUMNS)), row)
    firsts: dict[Key, tuple[Curve, Row]] = {}
    for curve, row in rows:
        if row["gpus"] > 1:
            firsts.setdefault((_work(curve, row), column_key(row, TRAINED_COLUMNS), row["gpus"]), (curve, row))
    found, trained = [], {str(one.first["training_id"]): one for one in outcomes}
    for curve, row in firsts.values():
        work = _work(curve, row)
        mine = own.get((work, column_key(row, DEVICES_OR_BATCH_COLUMNS)))
        plain = bare.get((work, name_of.get(row["baseline_bare_id"]), column_key(row, BARE_BASELINE_COLUMNS)))
        found += [] if mine is None else [_compare_pair(row, mine, True, trained)]
        found += [] if plain is None or plain is mine else [_compare_pair(row, plain, False, trained)]
    return found


def list_batch_gains(curve: Curve) -> Iterator[BatchGain]:
    """Of a curve over batches; none on one device, which exchanges nothing."""
    for before, after in itertools.pairwise(curve.rows):
        if before["gpus"] > 1:
            yield BatchGain(
                before,
                after,
                _difference(_sync_s_per_epoch(before), _sync_s_per_epoch(after)),
                _difference(_epoch_s(before), _epoch_s(after)),
            )


def _work(curve: Curve, row: Row) -> Key:
    """What both do: the samples of an update of all devices among it."""
    shared = (text for name, text in curve.group.items() if name != "batch")
    return (*shared, row["global_batch"], row.get("learning_rate"), *(row.get(name) for name in OPTIMIZER_COLUMNS))


def _compare_pair(many: Row, one: Row, own: bool, trained: Mapping[str, TrainingOutcome]) -> DevicesOrBatch:
    mine, base = (estimate_of(row, RATE, "throughput") for row in (many, one))
    limits = None if mine is None or base is None else divide_estimates(mine, base)
    throughput = estimate_around(many[RATE] / one[RATE], limits)
    left, right = (trained.get(str(row.get("training_id"))) for row in (many, one))
    if left is None or right is None or left.target is None or left.target != right.target:
        return DevicesOrBatch(many, one, own, throughput, None, None)
    return DevicesOrBatch(many, one, own, throughput, (left, right), _time_ratio(left, right))


def _time_ratio(many: TrainingOutcome, one: TrainingOutcome) -> Estimate | None:
    if any(part.reached < part.seeds for part in (many, one)):
        return None
    (mine, own), (base, theirs) = (part.figures["time_to_target_s"] for part in (many, one))
    if not (mine and base):
        return None  # the first update, whose seconds do not count, was enough
    return estimate_around(base / mine, None if own is None or theirs is None else divide_estimates(theirs, own))


def _difference(before: Estimate | None, after: Estimate | None) -> Estimate | None:
    if before is None or after is None:
        return None
    return combine({"before": 1.0, "after": -1.0}, {"before": before, "after": after})


def _sync_s_per_epoch(row: Row) -> Estimate | None:
    """Seconds of an epoch."""
    step_s, updates = row["sync_exposed_s"], row["steps_per_epoch"]
    if step_s is None or not updates:
        return None
    limits = estimate_of(row, "sync_exposed_s")
    scaled = None if limits is None else Estimate(*(updates * one for one in (limits.value, limits.low, limits.high)))
    return estimate_around(updates * step_s, scaled)


def _epoch_s(row: Row) -> Estimate | None:
    epoch_s = row["epoch_s"]
    if epoch_s is None or not math.isfinite(epoch_s):
        return None
    return rate_to_seconds(row[RATE], estimate_of(row, RATE, "throughput"), epoch_s * row[RATE])
