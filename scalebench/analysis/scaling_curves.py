"""Scaling curves: rows of the pooled frame that are one configuration on several numbers of devices, and their slope,
node boundaries and scaling limit.

Curves of one group may share a chart: weak and strong scaling, models, data sets, hardware and batch sizes are never
mixed. `against` is `bare`, `self` or `given`: the baseline of the columns of speedup and efficiency that are used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.analysis.identity import (
    CURVE_COLUMNS,
    INPUT_COLUMNS,
    KEY_VALUE_COLUMNS,
    SETTING_COLUMNS,
    curve_key,
)
from scalebench.core.stats.estimates import CONFIDENCE, Estimate, divide_estimates, scale_estimate, student_t

if TYPE_CHECKING:
    import pandas as pd

GROUP_COLUMNS = ("model", "dataset", "hardware", "scaling", "batch")
MODEL_SIZES = {"model_params": "parameters", "flops_per_sample": "flops_per_sample"}  # of models of one name


@dataclass(frozen=True)
class Curve:
    """One configuration over devices. `rows` are cells of the pooled frame by column, None for null: ok, with a
    throughput, one for each number of devices, in ascending order."""

    name: str  # the shortest that is unique in its group
    group: dict[str, str]  # GROUP_COLUMNS, and MODEL_SIZES or the machine where these differ under one name
    tags: dict[str, str]  # model, strategy, hardware
    rows: list[dict[str, Any]]

    @property
    def gpus(self) -> list[int]:
        return [row["gpus"] for row in self.rows]


def make_curves(pooled: pd.DataFrame) -> list[Curve]:
    """Return all curves of the pooled frame, in its order."""
    measured = pooled[(pooled["status"] == "ok") & (pooled["throughput_samples_per_s"] > 0).fillna(False)]
    rows = plain_rows(measured)
    distinguishing = [column for column in MODEL_SIZES if _is_ambiguous(rows, "model", column)]
    distinguishing += ["machine"] if _is_ambiguous(rows, "hardware", "machine") else []
    by_group: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(tuple(_group_of(row, distinguishing).values()), []).append(row)
    return [
        curve
        for members in by_group.values()
        for curve in _curves_of_group(_group_of(members[0], distinguishing), members)
    ]


def group_curves(curves: Iterable[Curve]) -> list[tuple[dict[str, str], list[Curve]]]:
    """Return (group, its curves), in order; the curves of a group may share a chart."""
    by_group: dict[tuple[tuple[str, str], ...], list[Curve]] = {}
    for curve in curves:
        by_group.setdefault(tuple(curve.group.items()), []).append(curve)
    return [(dict(key), members) for key, members in by_group.items()]


def format_group_title(group: Mapping[str, str]) -> str:
    """Return `materials_cnn on materials, hardware local, weak scaling, batch 75 per device`."""
    head = f"{group['model']} on {group['dataset']}, hardware {group['hardware']}, {group['scaling']} scaling"
    more = [f"{name.replace('_', ' ')} {text}" for name, text in group.items() if name not in GROUP_COLUMNS]
    return ", ".join([head, f"batch {group['batch']}", *more])


def plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row of a frame (a Series or a dict) in plain Python, None for null."""
    import pandas as pd

    plain = {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
    return {name: None if value is pd.NA or value != value else value for name, value in plain.items()}


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return all rows as `plain_row` does, but column by column: a tenth of the time for thousands of rows."""
    names = [str(name) for name in frame.columns]
    columns = [frame[name].to_numpy(dtype=object, na_value=None).tolist() for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def estimate_of(row: Mapping[str, Any], name: str, stem: str | None = None) -> Estimate | None:
    """Return the figure of a column with its limits, `stem`_low and `stem`_high; None if it has no limits.

    An upper limit that the data do not give is null in a frame and infinite here.
    """
    stem = stem or name
    value, low, high = row[name], row[f"{stem}_low"], row[f"{stem}_high"]
    return None if value is None or low is None else Estimate(value, low, math.inf if high is None else high)


def format_batch(row: Mapping[str, Any]) -> str:
    """Return the batch that is constant over devices: `75 per device` in weak scaling, `150 in all` in strong."""
    return f"{row['global_batch']} in all" if row["scaling"] == "strong" else f"{row['batch_per_device']} per device"


def _group_of(row: Mapping[str, Any], distinguishing: Sequence[str]) -> dict[str, str]:
    group = {name: str(row[name]) for name in GROUP_COLUMNS if name != "batch"}
    sizes = {
        MODEL_SIZES[name]: f"{row[name]:,.0f}"
        for name in MODEL_SIZES
        if name in distinguishing and row[name] is not None
    }
    if "machine" in distinguishing:
        sizes["machine"] = f"({row['machine']})"
    return {**group, "batch": format_batch(row), **sizes}


def _is_ambiguous(rows: Iterable[Mapping[str, Any]], name_column: str, column: str) -> bool:
    """Return whether models, or kinds of hardware, with one name differ in this column."""
    first: dict[str, Any] = {}
    return any(
        first.setdefault(row[name_column], row[column]) != row[column] for row in rows if row[column] is not None
    )


def _curves_of_group(group: dict[str, str], rows: list[dict[str, Any]]) -> list[Curve]:
    by_key: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(curve_key(row), []).append(row)
    names = name_curves(list(by_key))
    curves, uses = [], Counter[str]()
    for key, members in by_key.items():
        tags = {"model": group["model"], "strategy": str(members[0]["strategy"]), "hardware": group["hardware"]}
        for part in _split_repeated_counts(members):
            uses[names[key]] += 1
            name = f"{names[key]} #{uses[names[key]]}" if uses[names[key]] > 1 else names[key]
            curves.append(Curve(name, group, tags, sorted(part, key=lambda row: row["gpus"])))
    return curves


def _split_repeated_counts(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split rows that share all columns of the curve key (but not, say, the learning rate) into separate curves: by
    their self baseline if possible, else in their order."""
    if len({row["gpus"] for row in rows}) == len(rows):
        return [rows]
    by_baseline: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        by_baseline.setdefault(row["baseline_self_id"], []).append(row)
    return [part for members in by_baseline.values() for part in _split_in_order(members)]


def _split_in_order(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the first rows of each number of devices, then the second ones, and so on."""
    parts: list[list[dict[str, Any]]] = []
    counts: dict[int, int] = {}
    for row in rows:
        number = counts.get(row["gpus"], 0)
        counts[row["gpus"]] = number + 1
        if number == len(parts):
            parts.append([])
        parts[number].append(row)
    return parts


def name_curves(keys: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """Return names for the curve keys of a group. A setting is named if one strategy comes with several values of it;
    INPUT_COLUMNS if any two curves differ in them, since such strategies are not compared like for like."""
    settings = {key: dict(zip(CURVE_COLUMNS, key, strict=True)) for key in keys}
    everywhere = [name for name in INPUT_COLUMNS if len({curve[name] for curve in settings.values()}) > 1]
    return {key: _name_curve(curve, list(settings.values()), everywhere) for key, curve in settings.items()}


def _name_curve(curve: dict[str, Any], group: list[dict[str, Any]], everywhere: Sequence[str]) -> str:
    same_strategy = [other for other in group if other["strategy"] == curve["strategy"]]
    parts = [str(curve["strategy"])]
    for name in KEY_VALUE_COLUMNS:
        common = set.intersection(*(set((other[name] or "").split()) for other in same_strategy))
        parts += [text for text in (curve[name] or "").split() if text not in common]
    for name in (*INPUT_COLUMNS, *SETTING_COLUMNS):
        if name in everywhere or len({other[name] for other in same_strategy}) > 1:
            parts += [] if curve[name] is None else [f"{name}={str(curve[name]).replace(' ', ',')}"]
    return " ".join(parts)


@dataclass(frozen=True)
class Slope:
    """Speedup per device, with its 95 % limits (None for two numbers of devices); `intercept` is the line's speedup at
    0 devices, `points` are (devices, speedup)."""

    value: float
    low: float | None
    high: float | None
    intercept: float
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class NodeBoundary:
    """The last number of devices on fewer nodes and the first on more. Efficiencies before and after; `ratio` of after
    to before with its 95 % limits, and whether they exclude 1 (`resolved`; None: there is no interval)."""

    gpus: tuple[int, int]
    nodes: tuple[int, int]
    before: float | None
    after: float | None
    ratio: float
    low: float | None
    high: float | None
    resolved: bool | None


@dataclass(frozen=True)
class ScalingLimit:
    """The number of devices that keep an efficiency: `gpus` by the figures, `certain_gpus` by their lower limits.

    Both are None if not even the fewest devices keep it. `regained_gpus` are larger numbers that have it again;
    `largest_measured` is the most devices with a figure, None if there is no figure at all.
    """

    efficiency: float
    gpus: int | None
    certain_gpus: int | None
    regained_gpus: tuple[int, ...]
    largest_measured: int | None


def fit_slope(curve: Curve, against: str = "bare") -> Slope | None:
    """Fit a line by ordinary least squares to speedup over devices, with an intercept; None for fewer than two numbers
    of devices with a speedup.

    The interval is that of the regression: Student's t with n - 2 degrees of freedom, from the scatter of the n points
    around the line. A curve that bends counts as scatter too, since the line is a summary and no law. It does not
    include what all points share, the error of the baseline, which scales the slope as it scales every speedup: by the
    width of the baseline's own interval. With three points t is 12.7, so that such a slope is a rough figure at best.

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


def find_node_boundaries(curve: Curve, against: str = "bare") -> list[NodeBoundary]:
    """Return where a curve continues on more nodes: the last number of devices before, the first after.

    The ratio of the two efficiencies is that of throughputs per device, in which the baseline cancels; its interval is
    of those two alone (estimates.divide_estimates), and not as wide as limits of the efficiencies themselves would make
    it. Part of the loss is what as many more devices would have cost without the boundary.
    """
    boundaries = []
    for before, after in itertools.pairwise(curve.rows):
        if after["nodes"] <= before["nodes"]:
            continue
        ratio = _rate_per_device(after) / _rate_per_device(before)
        limits = _efficiency_ratio(after, before)
        boundaries.append(
            NodeBoundary(
                (before["gpus"], after["gpus"]), (before["nodes"], after["nodes"]),
                before[f"efficiency_{against}"], after[f"efficiency_{against}"], ratio,
                None if limits is None else limits.low,
                None if limits is None or math.isinf(limits.high) else limits.high,
                None if limits is None else not limits.low <= 1 <= limits.high,
            )
        )  # fmt: skip
    return boundaries


def find_scaling_limit(curve: Curve, efficiency: float, against: str = "bare") -> ScalingLimit:
    """Return the most devices that keep an efficiency (a share above 0): the largest number up to which every measured
    number keeps it, so that a larger one that is fine again does not hide a bad one.

    `certain_gpus` compares the lower limit of the 95 % interval; a row that is its own baseline is 1 exactly. The
    search ends at a row without an efficiency. Raises ValueError for an efficiency that is no share.
    """
    if not efficiency > 0:
        raise ValueError(f"a wanted efficiency is a share above 0, not {efficiency}")
    figures = [(row["gpus"], row[f"efficiency_{against}"], _lower_limit(row, against)) for row in curve.rows]
    kept = [gpus for gpus, _, _ in itertools.takewhile(lambda figure: _is_at_least(figure[1], efficiency), figures)]
    certain = [gpus for gpus, _, _ in itertools.takewhile(lambda figure: _is_at_least(figure[2], efficiency), figures)]
    regained = tuple(gpus for gpus, value, _ in figures[len(kept) :] if _is_at_least(value, efficiency))
    measured = [gpus for gpus, value, _ in figures if value is not None]
    return ScalingLimit(
        efficiency, max(kept, default=None), max(certain, default=None), regained, max(measured, default=None)
    )


def _is_at_least(value: float | None, minimum: float) -> bool:
    return value is not None and value >= minimum


def _lower_limit(row: dict[str, Any], against: str) -> float | None:
    is_own_baseline = row["run_id"] == row[f"baseline_{against}_id"]
    low: float | None = row[f"efficiency_{against}"] if is_own_baseline else row[f"efficiency_{against}_low"]
    return low


def _rate_per_device(row: dict[str, Any]) -> float:
    rate: float = row["throughput_samples_per_s"] / row["gpus"]
    return rate


def _efficiency_ratio(after: dict[str, Any], before: dict[str, Any]) -> Estimate | None:
    rate_after, rate_before = (estimate_of(row, "throughput_samples_per_s", "throughput") for row in (after, before))
    if rate_after is None or rate_before is None:
        return None
    return divide_estimates(
        scale_estimate(rate_after, 1 / after["gpus"]), scale_estimate(rate_before, 1 / before["gpus"])
    )
