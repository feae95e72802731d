"""Curves over devices: the rows of the pooled frame that are one configuration at several device counts. Layer 1.

What must agree to be drawn in one chart is the group: weak and strong scaling, models, data sets, hardware and batch
sizes are never mixed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.stats import Interval

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
SPOKEN = ("options", "environment", "recipe")  # texts of the form key=value, which need no name before them
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
