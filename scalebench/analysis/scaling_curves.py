"""Curves over devices: the rows of the pooled frame that are one configuration at several device counts. Layer 1.

What must agree to be drawn in one chart is the group: weak and strong scaling, models, data sets, hardware and batch
sizes are never mixed.

What a curve over devices comes to: its slope, its jumps where another node begins, how far it keeps an efficiency.
Layer 1.

`against` is `bare`, `self` or `given`: what the columns of speedup and efficiency are measured against.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.core.stats.estimates import CONFIDENCE, Interval, ratio_interval, scale, student_t

if TYPE_CHECKING:
    import pandas as pd

GROUP = ("model", "dataset", "hardware", "scaling", "batch")
SIZES = {"model_params": "parameters", "flops_per_sample": "flops_per_sample"}  # of models of one name
TRAINING = ("precision", "feed")  # what else is trained, and on what: told wherever rows of a group differ in it
UPDATES = ("optimizer", "learning_rate_rule", "weight_decay", "accumulate")  # how they are made
CHOICES = (
    *("prefetch", "data_format", "bind", "layout", "device_ids", "framework_version", "compiler_used", "seed"),
    *UPDATES,
)
SPOKEN = ("options", "environment", "train_options")  # texts of the form key=value, which need no name before them
IDENTITY = ("strategy", *SPOKEN, *TRAINING, *CHOICES)
# What rows of older records, which have none, ran with.
USUAL = {
    "bind": "numa",
    "layout": "sequence",
    "compiler_used": "none",
    "learning_rate_rule": "none",
    "weight_decay": 0.0,
    "accumulate": 1,
}


@dataclass(frozen=True)
class Curve:
    """One configuration over devices. `rows` are cells of the pooled frame by column, None for null: ok, with a
    throughput, one a device count, in the order of `gpus`."""

    name: str  # the shortest that tells it from the others of its group
    group: dict[str, str]  # GROUP, and SIZES or the machine where what has one name differs in them
    tags: dict[str, str]  # model, strategy, hardware
    rows: list[dict[str, Any]]

    @property
    def gpus(self) -> list[int]:
        return [row["gpus"] for row in self.rows]


def curves(pooled: pd.DataFrame) -> list[Curve]:
    """All curves of a frame with a row for each configuration, in the order in which it has them."""
    good = pooled[(pooled["status"] == "ok") & (pooled["throughput_samples_per_s"] > 0).fillna(False)]
    rows = plain_rows(good)
    sized = [column for column in SIZES if _differ_in(rows, column, "model")]
    sized += ["machine"] if _differ_in(rows, "machine", "hardware") else []
    by_group: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(tuple(_group(row, sized).values()), []).append(row)
    return [curve for members in by_group.values() for curve in _curves(_group(members[0], sized), members)]


def grouped(curves: Iterable[Curve]) -> list[tuple[dict[str, str], list[Curve]]]:
    """What may be drawn together, in the order in which it comes."""
    found: dict[tuple[tuple[str, str], ...], list[Curve]] = {}
    for curve in curves:
        found.setdefault(tuple(curve.group.items()), []).append(curve)
    return [(dict(key), members) for key, members in found.items()]


def title_of(group: Mapping[str, str]) -> str:
    """`materials_cnn on materials, hardware local, weak scaling, batch 75 per device`"""
    head = f"{group['model']} on {group['dataset']}, hardware {group['hardware']}, {group['scaling']} scaling"
    more = [f"{name.replace('_', ' ')} {text}" for name, text in group.items() if name not in GROUP]
    return ", ".join([head, f"batch {group['batch']}", *more])


def cells(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of a frame (a Series or a dict) in plain Python, None for null."""
    import pandas as pd

    plain = {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
    return {name: None if value is pd.NA or value != value else value for name, value in plain.items()}


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """All rows of a frame as `cells` makes them, by columns: a tenth of the time for thousands of rows."""
    names = [str(name) for name in frame.columns]
    columns = [frame[name].to_numpy(dtype=object, na_value=None).tolist() for name in frame.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def interval(row: Mapping[str, Any], name: str, stem: str | None = None) -> Interval | None:
    """The figure of that column between its limits, `stem`_low and `stem`_high; None where it has none.

    A limit that the data cannot give is null in a frame and infinite here.
    """
    stem = stem or name
    value, low, high = row[name], row[f"{stem}_low"], row[f"{stem}_high"]
    return None if value is None or low is None else Interval(value, low, math.inf if high is None else high)


def batch_of(row: Mapping[str, Any]) -> str:
    """What stays the same over devices: `75 per device` in weak scaling, `150 in all` in strong."""
    return f"{row['global_batch']} in all" if row["scaling"] == "strong" else f"{row['batch_per_device']} per device"


def _group(row: Mapping[str, Any], sized: Sequence[str]) -> dict[str, str]:
    found = {name: str(row[name]) for name in GROUP if name != "batch"}
    sizes = {SIZES[name]: f"{row[name]:,.0f}" for name in SIZES if name in sized and row[name] is not None}
    if "machine" in sized:
        sizes["machine"] = f"({row['machine']})"
    return {**found, "batch": batch_of(row), **sizes}


def _differ_in(rows: Iterable[Mapping[str, Any]], column: str, of: str) -> bool:
    """Whether models, or kinds of hardware, of one name do."""
    known: dict[str, Any] = {}
    return any(known.setdefault(row[of], row[column]) != row[column] for row in rows if row[column] is not None)


def _curves(group: dict[str, str], rows: list[dict[str, Any]]) -> list[Curve]:
    by_identity: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_identity.setdefault(identity_of(row), []).append(row)
    names = names_of(list(by_identity))
    found, told = [], Counter[str]()
    for identity, members in by_identity.items():
        tags = {"model": group["model"], "strategy": str(members[0]["strategy"]), "hardware": group["hardware"]}
        for part in _once_a_count(members):
            told[names[identity]] += 1
            name = f"{names[identity]} #{told[names[identity]]}" if told[names[identity]] > 1 else names[identity]
            found.append(Curve(name, group, tags, sorted(part, key=lambda row: row["gpus"])))
    return found


def identity_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(USUAL.get(name) if row[name] is None else row[name] for name in IDENTITY)


def _once_a_count(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows that differ in what no column tells (such as the learning rate) apart: by what they are compared with
    where that tells, else in their order."""
    if len({row["gpus"] for row in rows}) == len(rows):
        return [rows]
    by_baseline: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        by_baseline.setdefault(row["baseline_self_id"], []).append(row)
    return [part for members in by_baseline.values() for part in _dealt(members)]


def _dealt(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The first row of each device count, then the second of each, ..."""
    parts: list[list[dict[str, Any]]] = []
    seen: dict[int, int] = {}
    for row in rows:
        number = seen.get(row["gpus"], 0)
        seen[row["gpus"]] = number + 1
        if number == len(parts):
            parts.append([])
        parts[number].append(row)
    return parts


def names_of(identities: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """Of each curve of a group. A strategy's own settings are told where it comes with several; TRAINING wherever any
    two differ, for strategies that differ in them are not compared like for like."""
    chosen = {identity: dict(zip(IDENTITY, identity, strict=True)) for identity in identities}
    everywhere = [name for name in TRAINING if len({one[name] for one in chosen.values()}) > 1]
    return {identity: _name(one, list(chosen.values()), everywhere) for identity, one in chosen.items()}


def _name(one: dict[str, Any], all_of_group: list[dict[str, Any]], everywhere: Sequence[str]) -> str:
    mine = [other for other in all_of_group if other["strategy"] == one["strategy"]]
    parts = [str(one["strategy"])]
    for name in SPOKEN:
        common = set.intersection(*(set((other[name] or "").split()) for other in mine))
        parts += [word for word in (one[name] or "").split() if word not in common]
    for name in (*TRAINING, *CHOICES):
        if name in everywhere or len({other[name] for other in mine}) > 1:
            parts += [] if one[name] is None else [f"{name}={str(one[name]).replace(' ', ',')}"]
    return " ".join(parts)


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
