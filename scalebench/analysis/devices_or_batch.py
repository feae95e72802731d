"""More devices or a larger batch: N devices of b samples beside one device of N * b, and how much of a larger batch's
gain is that it exchanges less often. Layer 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.analysis.attribution.figures import Figure, combined, figure, inverse
from scalebench.analysis.scaling_curves import IDENTITY, UPDATES, USUAL, Curve, interval
from scalebench.analysis.time_to_target import Outcome
from scalebench.core.stats.estimates import Interval, ratio_interval

RATE = "throughput_samples_per_s"
ANY_SEED = tuple(name for name in IDENTITY if name != "seed")
# Which devices, and how they lie on nodes, cannot be the same for another number of them.
SAME = tuple(name for name in ANY_SEED if name not in ("device_ids", "layout"))
# A strategy's own options and its framework's version say nothing of its bare baseline.
OF_BARE = tuple(name for name in SAME if name not in ("strategy", "options", "framework_version"))
Key = tuple[Any, ...]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """N devices of b samples and one device of N * b: the same samples and as many updates an epoch. `many` and `one`
    are rows; `own`: one device of the same strategy, else of its bare baseline.

    `throughput`: that of N devices over that of one. `trainings`: what came of both over their seeds, None where they
    had no target, or different ones. `sooner`: seconds to it of one device over those of N devices, None unless every
    seed of both got there. Limits are 95 %.
    """

    many: Row
    one: Row
    own: bool
    throughput: Figure
    trainings: tuple[Outcome, Outcome] | None
    sooner: Figure | None


@dataclass(frozen=True)
class Gain:
    """From one batch of a device to the next larger one, on as many devices; seconds of an epoch.

    `predicted`: exposed sync of an update times the updates of an epoch, before minus after; None without probes.
    `measured`: the epoch before minus after. Above 0: the larger batch is faster.
    """

    before: Row
    after: Row
    predicted: Figure | None
    measured: Figure | None

    @property
    def share(self) -> float | None:
        """Of what was gained, that which fewer exchanges explain; None where nothing was."""
        if self.predicted is None or self.measured is None or not self.measured.above_zero:
            return None
        return self.predicted.value / self.measured.value


def choices(curves: Iterable[Curve], outcomes: Iterable[Outcome] = ()) -> list[Choice]:
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
            own.setdefault((_work(curve, row), _chosen(row, SAME)), row)
            bare.setdefault((_work(curve, row), row["strategy"], _chosen(row, OF_BARE)), row)
    firsts: dict[Key, tuple[Curve, Row]] = {}
    for curve, row in rows:
        if row["gpus"] > 1:
            firsts.setdefault((_work(curve, row), _chosen(row, ANY_SEED), row["gpus"]), (curve, row))
    found, trained = [], {str(one.first["training_id"]): one for one in outcomes}
    for curve, row in firsts.values():
        work = _work(curve, row)
        mine = own.get((work, _chosen(row, SAME)))
        plain = bare.get((work, name_of.get(row["baseline_bare_id"]), _chosen(row, OF_BARE)))
        found += [] if mine is None else [_choice(row, mine, True, trained)]
        found += [] if plain is None or plain is mine else [_choice(row, plain, False, trained)]
    return found


def gains(curve: Curve) -> Iterator[Gain]:
    """Of a curve over batches; none on one device, which exchanges nothing."""
    for before, after in itertools.pairwise(curve.rows):
        if before["gpus"] > 1:
            yield Gain(before, after, _less(_sync(before), _sync(after)), _less(_epoch(before), _epoch(after)))


def _work(curve: Curve, row: Row) -> Key:
    """What both do: the samples of an update of all devices among it."""
    shared = (text for name, text in curve.group.items() if name != "batch")
    return (*shared, row["global_batch"], row.get("learning_rate"), *(row.get(name) for name in UPDATES))


def _chosen(row: Row, names: Sequence[str]) -> Key:
    return tuple(USUAL.get(name) if row[name] is None else row[name] for name in names)


def _choice(many: Row, one: Row, own: bool, trained: Mapping[str, Outcome]) -> Choice:
    mine, base = (interval(row, RATE, "throughput") for row in (many, one))
    limits = None if mine is None or base is None else ratio_interval(mine, base)
    throughput = figure(many[RATE] / one[RATE], limits)
    left, right = (trained.get(str(row.get("training_id"))) for row in (many, one))
    if left is None or right is None or left.target is None or left.target != right.target:
        return Choice(many, one, own, throughput, None, None)
    return Choice(many, one, own, throughput, (left, right), _sooner(left, right))


def _sooner(many: Outcome, one: Outcome) -> Figure | None:
    if any(part.reached < part.seeds for part in (many, one)):
        return None
    (mine, own), (base, theirs) = (part.figures["time_to_target_s"] for part in (many, one))
    if not (mine and base):
        return None  # the first update, whose seconds do not count, was enough
    return figure(base / mine, None if own is None or theirs is None else ratio_interval(theirs, own))


def _less(before: Figure | None, after: Figure | None) -> Figure | None:
    if before is None or after is None:
        return None
    return combined({"before": 1.0, "after": -1.0}, {"before": before, "after": after})


def _sync(row: Row) -> Figure | None:
    """Seconds of an epoch."""
    step_s, updates = row["sync_exposed_s"], row["steps_per_epoch"]
    if step_s is None or not updates:
        return None
    limits = interval(row, "sync_exposed_s")
    scaled = None if limits is None else Interval(*(updates * one for one in (limits.value, limits.low, limits.high)))
    return figure(updates * step_s, scaled)


def _epoch(row: Row) -> Figure | None:
    epoch_s = row["epoch_s"]
    if epoch_s is None or not math.isfinite(epoch_s):
        return None
    return inverse(row[RATE], interval(row, RATE, "throughput"), epoch_s * row[RATE])
