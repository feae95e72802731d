"""Scaling curves: rows of the pooled frame that are one configuration on several numbers of devices, and their slope,
node boundaries and scaling limit.

Curves of one group may share a chart: weak and strong scaling, models, data sets, hardware and batch sizes are never
mixed. `against` is `bare`, `self` or `given`: the baseline of the columns of speedup and efficiency that are used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scalebench.analysis import user_program
from scalebench.analysis.columns import estimate_of
from scalebench.analysis.identity import curve_key, group_by, name_curves
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict
from scalebench.core.stats.estimate_arithmetic import fit_least_squares
from scalebench.core.stats.estimates import Estimate, scale_estimate

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("model", "dataset", "hardware", "scaling", "batch")
MAX_CORRELATION = 0.5  # of the errors of speedups that share a baseline
# By these, models of one name differ: their options, else what was counted.
MODEL_SIZES = {"model_params": "parameters", "flops_per_sample": "flops_per_sample"}
LENGTH = "sequence_length"
MODEL_COLUMNS = {"model_options": "options", LENGTH: LENGTH, **MODEL_SIZES}


@dataclass(frozen=True)
class Curve:
    """One configuration over devices. `rows` are cells of the pooled frame by column, None for null: ok, with a
    throughput, one for each number of devices, in ascending order."""

    name: str  # the shortest that is unique in its group
    group: dict[str, str]  # GROUP_COLUMNS, and MODEL_COLUMNS or the machine where these differ under one name
    tags: dict[str, str]  # model, strategy, hardware
    rows: list[dict[str, Any]]

    @property
    def gpus(self) -> list[int]:
        return [row["gpus"] for row in self.rows]


def make_curves(pooled: pd.DataFrame) -> list[Curve]:
    """Return all curves of the pooled frame, in its order."""
    rows = plain_rows(pooled[(pooled["status"] == "ok") & (pooled["throughput_samples_per_s"] > 0).fillna(False)])

    def is_ambiguous(column: str, *names: str) -> bool:
        """Return whether rows that agree in the columns `names` differ in this one."""
        pairs = {(*(row[name] for name in names), row[column]) for row in rows if row[column] is not None}
        return len({pair[:-1] for pair in pairs}) < len(pairs)

    models = ["model_options"] if is_ambiguous("model_options", "model") else []
    models += [LENGTH] if is_ambiguous(LENGTH, "model", "model_options") else []
    models += [column for column in MODEL_SIZES if is_ambiguous(column, "model", "model_options", LENGTH)]
    has_other_machines = is_ambiguous("machine", "hardware")

    def name_group(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        group = {name: str(row[name]) for name in GROUP_COLUMNS if name != "batch"} | {"batch": format_batch(row)}
        for column in models:
            if row[column] is not None:
                text = f"{row[column]:,.0f}" if column in MODEL_SIZES else str(row[column])
                group[MODEL_COLUMNS[column]] = text
        if has_other_machines:
            group["machine"] = f"({row['machine']})"
        return tuple(group.items())

    curves = []
    for items, of_group in group_by(rows, name_group).items():
        group, by_key, uses = dict(items), group_by(of_group, curve_key), Counter[str]()
        names = name_curves(list(by_key))
        for key, members in by_key.items():
            strategy, name = str(members[0]["strategy"]), names[key]
            if strategy == user_program.PROGRAM:  # named by its file, as everybody calls it
                name = name.replace(strategy, group["model"], 1)
            tags = {"model": group["model"], "strategy": strategy, "hardware": group["hardware"]}
            parts = [members]
            if len({row["gpus"] for row in members}) < len(members):  # by their self baseline if possible
                of_baselines = group_by(members, lambda row: row["baseline_self_id"]).values()
                parts = [part for of_baseline in of_baselines for part in split_repeats(of_baseline, "gpus")]
            for part in parts:
                uses[name] += 1
                number = f" #{uses[name]}" if uses[name] > 1 else ""
                curves.append(Curve(name + number, group, tags, sorted(part, key=lambda row: row["gpus"])))
    return curves


def split_repeats(rows: Iterable[dict[str, Any]], column: str) -> list[list[dict[str, Any]]]:
    """Return lists of rows in which no value of a column comes twice: the first row of each value, the second ones, and
    so on. Such rows differ in something without a column, or not part of a curve's name, as the learning rate."""
    parts: dict[int, list[dict[str, Any]]] = {}
    counts = Counter[Any]()
    for row in rows:
        parts.setdefault(counts[row[column]], []).append(row)
        counts[row[column]] += 1
    return list(parts.values())


def group_curves(curves: Iterable[Curve]) -> list[tuple[dict[str, str], list[Curve]]]:
    """Return (group, its curves), in order; the curves of a group may share a chart."""
    by_group = group_by(curves, lambda curve: tuple(curve.group.items()))
    return [(dict(key), members) for key, members in by_group.items()]


def format_group_title(group: Mapping[str, str]) -> str:
    """Return `materials_cnn on materials, hardware local, weak scaling, batch 75 per device`."""
    head = f"{group['model']} on {group['dataset']}, hardware {group['hardware']}, {group['scaling']} scaling"
    more = [f"{name.replace('_', ' ')} {text}" for name, text in group.items() if name not in GROUP_COLUMNS]
    return ", ".join([head, f"batch {group['batch']}", *more])


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame in plain Python, None for null, with times and flags as texts, whatever
    `convert_types` made."""
    names = [str(name) for name in frame.columns]
    cells = frame.to_numpy(dtype=object, na_value=None).tolist()
    rows: list[dict[str, Any]] = [dict(zip(names, values, strict=True)) for values in cells]
    for row in rows:
        if isinstance(started_at := row.get("started_at"), datetime):
            row["started_at"] = started_at.isoformat(timespec="milliseconds")
        if isinstance(flags := row.get("flags"), list):
            row["flags"] = " ".join(flags) or None
    return rows


def format_batch(row: Mapping[str, Any]) -> str:
    """Return the batch that is constant over devices: `75 per device` in weak scaling, `150 in all` in strong; empty
    where no sample of a program was counted."""
    key, where = ("global_batch", "in all") if row["scaling"] == "strong" else ("batch_per_device", "per device")
    return "" if row[key] is None else f"{row[key]} {where}"


@dataclass(frozen=True)
class Slope:
    """The line of speedup over devices."""

    speedup: Estimate  # per device, with its 95 % limits
    intercept: float  # speedup at 0 devices
    points: tuple[tuple[int, float], ...]  # devices, speedup
    worst: float  # largest deviation of a speedup from the line, as a share of that speedup


@dataclass(frozen=True)
class NodeBoundary:
    """The last number of devices on fewer nodes and the first on more: their rows, their efficiencies, and the ratio of
    the later one to the earlier, with 95 % limits over repeats."""

    rows: tuple[dict[str, Any], dict[str, Any]]
    efficiencies: tuple[float | None, float | None]
    ratio: Estimate


@dataclass(frozen=True)
class ScalingLimit:
    """The number of devices that keep an efficiency; None if not even the fewest do."""

    efficiency: float
    gpus: int | None  # by the figures
    certain_gpus: int | None  # by their lower limits
    largest_measured: int | None  # None if there is no figure at all


def fit_slope(curve: Curve, against: str = "bare") -> Slope | None:
    """Fit a line by ordinary least squares to speedup over devices, with an intercept; None for fewer than two numbers
    of devices with a speedup.

    The limits of the slope follow from those of the speedups, of which each needs limits over repeats. That a curve
    bends is not noise: `worst` shows it. All speedups share the error of their baseline, so that their errors have a
    correlation between 0 and MAX_CORRELATION; the limits are the wider of those for both.

    Sources: P. Orlob 2022, "Parallelization of GPUs based on Horovod" (interim presentation, TU Dresden: speedup per
    GPU as the slope of the line through its points); Draper and Smith 1998, "Applied Regression Analysis", chapter 1;
    Zou and Donner 2008, as at estimate_arithmetic.combine.
    """
    name = f"speedup_{against}"
    rows = [row for row in curve.rows if row[name] is not None]
    points = tuple((row["gpus"], row[name]) for row in rows)
    if len(points) < 2:
        return None
    fit = fit_least_squares([(1.0, x) for x, _ in points], [y for _, y in points])
    if fit is None:
        return None
    (intercept, value), factors = fit.coefficients.tolist(), fit.weights[1].tolist()
    worst = max(abs(off) / y for off, (_, y) in zip(fit.deviations.tolist(), points, strict=True))
    limits = [_limits_over_repeats(row, name, against) for row in rows]
    if not all(each.has_limits for each in limits):
        return Slope(Estimate(value), intercept, points, worst)
    distances = []
    for side in (0, 1):  # of the lower and the upper limit
        terms = [factor * (each.value - each.low, each.high - each.value)[side if factor > 0 else 1 - side]
                 for factor, each in zip(factors, limits, strict=True)]  # fmt: skip
        independent, common = math.fsum(term * term for term in terms), math.fsum(terms) ** 2
        correlated = (1 - MAX_CORRELATION) * independent + MAX_CORRELATION * common
        distances.append(math.sqrt(max(independent, correlated)))
    return Slope(Estimate(value, value - distances[0], value + distances[1]), intercept, points, worst)


def _limits_over_repeats(row: dict[str, Any], name: str, against: str) -> Estimate:
    """Return a figure of a row with limits that carry a verdict; a row that is its own baseline has it exactly."""
    value: float = row[name]
    if row["run_id"] == row[f"baseline_{against}_id"]:
        return Estimate(value, value, value)
    return (None if explain_no_verdict(row) else estimate_of(row, name)) or Estimate(value)


def find_node_boundaries(curve: Curve, estimate_ratio: EstimateRatio, against: str = "bare") -> list[NodeBoundary]:
    """Return where a curve continues on more nodes: the last number of devices before, the first after.

    The ratio of the two efficiencies is that of throughputs per device, in which the baseline and its error cancel.
    Part of the loss is what as many more devices would have cost without the boundary.
    """
    name = f"efficiency_{against}"
    return [
        NodeBoundary(
            (before, after),
            (before[name], after[name]),
            scale_estimate(decide_ratio(after, before, estimate_ratio), before["gpus"] / after["gpus"]),
        )
        for before, after in itertools.pairwise(curve.rows)
        if after["nodes"] > before["nodes"]
    ]


def find_scaling_limit(curve: Curve, efficiency: float, against: str = "bare") -> ScalingLimit:
    """Return the most devices that keep an efficiency (a share above 0): the largest number up to which every measured
    number keeps it, so that a larger one that is fine again does not hide a bad one.

    `certain_gpus` compares the lower 95 % limit over repeats; a row that is its own baseline is 1 exactly. The search
    ends at a row without an efficiency. Raises ValueError for an efficiency that is not a share.
    """
    if not efficiency > 0:
        raise ValueError(f"a wanted efficiency is a share above 0, not {efficiency}")
    name = f"efficiency_{against}"
    measured = [row for row in curve.rows if row[name] is not None]
    keeping = [row["gpus"] for row in measured if row[name] >= efficiency]
    surely = [row["gpus"] for row in measured if _limits_over_repeats(row, name, against).low >= efficiency]
    reached, certain = ([*itertools.takewhile(good.__contains__, curve.gpus)] for good in (keeping, surely))
    return ScalingLimit(
        efficiency, max(reached, default=None), max(certain, default=None),
        max((row["gpus"] for row in measured), default=None),
    )  # fmt: skip
