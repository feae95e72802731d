"""Curves over the batch of a device: the rows of the pooled frame that are one configuration on one number of devices,
measured with several batches. Layer 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scalebench.curves import Curve, identity_of, names_of

BATCH = "batch_per_device"
Key = tuple[Any, ...]


def over_batches(found: Iterable[Curve]) -> list[Curve]:
    """One for each configuration and number of devices that has two batches or more; its rows in the order of batches.
    The others of its group are those that may be drawn beside it."""
    by_group: dict[Key, dict[Key, list[Curve]]] = {}
    for curve in found:
        for row in curve.rows:
            one = Curve(curve.name, curve.group, curve.tags, [row])
            shared = tuple(text for name, text in curve.group.items() if name != "batch")
            key = (identity_of(row), row["gpus"])
            by_group.setdefault(shared, {}).setdefault(key, []).append(one)
    return [curve for members in by_group.values() for curve in _of_group(members)]


def _of_group(members: dict[Key, list[Curve]]) -> Iterator[Curve]:
    several = {key: parts for key, ones in members.items() if (parts := _dealt(ones))}
    names = names_of(list(dict.fromkeys(identity for identity, _ in several)))
    sizes = [row[BATCH] for parts in several.values() for rows in parts for row in rows]
    for (identity, gpus), parts in several.items():
        first = members[identity, gpus][0]
        group = {**first.group, "batch": f"{min(sizes):,} to {max(sizes):,} per device"}
        for number, rows in enumerate(parts, 1):
            name = f"{names[identity]}, {gpus} device{'s' if gpus > 1 else ''}{f' #{number}' if number > 1 else ''}"
            yield Curve(name, group, first.tags, rows)


def _dealt(ones: Sequence[Curve]) -> list[list[dict[str, Any]]]:
    """Rows of two batches or more; what was measured twice with one batch, and differs in what no column tells, is a
    part of its own."""
    parts: list[list[dict[str, Any]]] = []
    for row in sorted((one.rows[0] for one in ones), key=lambda row: row[BATCH]):
        free = next((part for part in parts if all(other[BATCH] != row[BATCH] for other in part)), None)
        if free is None:
            parts.append(free := [])
        free.append(row)
    return [part for part in parts if len(part) > 1]
