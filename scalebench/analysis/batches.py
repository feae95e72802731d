"""Batches: the saturating batch of a device, from which more samples per step bring nearly nothing; N devices of b
samples beside one device of N * b."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.analysis import identity
from scalebench.analysis.columns import RATE
from scalebench.analysis.identity import Key, curve_key, group_by, name_curves
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve, split_repeats
from scalebench.analysis.verdicts import decide_ratio
from scalebench.core.stats.estimates import Estimate
from scalebench.core.units import format_count

BATCH = "batch_per_device"
SATURATION_SHARE = 0.9  # of the highest throughput, which the saturating batch reaches
Row = Mapping[str, Any]


def make_batch_curves(curves: Iterable[Curve]) -> list[Curve]:
    """Return a curve for each configuration and number of devices with two batches or more, its rows in ascending order
    of batches. Curves of one group may share a chart."""
    batch_curves = []
    groups = group_by(curves, lambda curve: tuple(text for name, text in curve.group.items() if name != "batch"))
    for of_group in groups.values():
        points = [(curve, row) for curve in of_group for row in curve.rows]
        members = group_by(points, lambda point: (curve_key(point[1]), point[1]["gpus"]))
        parts = [(key, of_key[0][0], part) for key, of_key in members.items()
                 for part in split_repeats(sorted((row for _, row in of_key), key=lambda row: row[BATCH]), BATCH)
                 if len(part) > 1]  # fmt: skip
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


@dataclass(frozen=True)
class SaturatingBatch:
    """`batch` is the smallest batch of a device whose throughput is at least SATURATION_SHARE of the highest measured
    one. At an end of the measured range the true one may be beyond."""

    batch: int
    share: float  # its own
    rate: float  # samples/s over all devices at `batch`
    highest: int  # the batch with the highest throughput
    candidates: tuple[int, ...] | None  # batches that it could be by their intervals; None without limits over repeats
    first: bool  # no smaller batch was measured
    last: bool  # no larger one was, so that throughput still rises


def find_saturating_batch(rows: Sequence[Row], estimate_ratio: EstimateRatio) -> SaturatingBatch | None:
    """Find the saturating batch among rows of one configuration, one for each batch in ascending order; None for fewer
    than two.

    A batch is a candidate if the 95 % intervals of its throughput over that of each other batch all reach that share,
    and no smaller batch certainly does. Each pair is tested by itself, so that several comparisons together err more
    often than 5 %. The highest measured throughput is not a limit.
    """
    if len(rows) < 2:
        return None
    ratios = [[decide_ratio(row, other, estimate_ratio) for other in rows if other is not row] for row in rows]
    surely = [n for n, of_row in enumerate(ratios) if min(ratio.low for ratio in of_row) >= SATURATION_SHARE]
    possible = ratios[: surely[0] + 1] if surely else ratios
    candidates = None
    if all(ratio.has_limits for of_row in possible for ratio in of_row):
        candidates = tuple(row[BATCH] for row, of_row in zip(rows, possible, strict=False)
                           if min(ratio.high for ratio in of_row) >= SATURATION_SHARE)  # fmt: skip
    best = max(rows, key=lambda row: row[RATE])
    row = next(row for row in rows if row[RATE] >= SATURATION_SHARE * best[RATE])
    return SaturatingBatch(
        row[BATCH], row[RATE] / best[RATE], row[RATE], best[BATCH], candidates, row is rows[0], row is rows[-1]
    )


@dataclass(frozen=True)
class DevicesOrBatch:
    """N devices of b samples (`many_devices`) and one device of N * b (`one_device`): the same samples and as many
    steps in an epoch. The ratio is N devices over one, with 95 % limits over repeats."""

    many_devices: Row
    one_device: Row
    same_strategy: bool  # else the one device runs the bare baseline
    throughput: Estimate


def compare_devices_with_batch(curves: Iterable[Curve], estimate_ratio: EstimateRatio) -> list[DevicesOrBatch]:
    """Compare N devices with one device at the same global batch, on scaling curves. In weak scaling only: in strong
    scaling every speedup is such a comparison. The first of several seeds counts."""
    column_key = identity.column_key
    pairs = ((curve, row) for curve in curves for row in curve.rows if row["scaling"] != "strong")
    rows: list[tuple[Key, Row]] = [(identity.global_batch_key(row, curve.group), row) for curve, row in pairs]
    strategy_of = {row["run_id"]: row["strategy"] for _, row in rows}
    self_rows: dict[Key, Row] = {}
    bare_rows: dict[Key, Row] = {}
    several: dict[Key, tuple[Key, Row]] = {}
    for work, row in rows:
        if row["gpus"] == 1:
            self_rows.setdefault((work, column_key(row, identity.DEVICES_OR_BATCH_COLUMNS)), row)
            bare_rows.setdefault((work, row["strategy"], column_key(row, identity.BARE_BASELINE_COLUMNS)), row)
        else:
            several.setdefault((work, column_key(row, identity.TRAINED_COLUMNS), row["gpus"]), (work, row))
    comparisons = []
    for work, row in several.values():
        bare_strategy = strategy_of.get(row["baseline_bare_id"])
        same = self_rows.get((work, column_key(row, identity.DEVICES_OR_BATCH_COLUMNS)))
        bare = bare_rows.get((work, bare_strategy, column_key(row, identity.BARE_BASELINE_COLUMNS)))
        for single, same_strategy in ((same, True), (None if bare is same else bare, False)):
            if single is not None:
                throughput = decide_ratio(row, single, estimate_ratio)
                comparisons.append(DevicesOrBatch(row, single, same_strategy, throughput))
    return comparisons
