"""The section `batch_size` of a report: throughput and epoch time over the batch of a device. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalebench.curves import Curve, identity_of, interval, names_of
from scalebench.report import tables
from scalebench.report.blocks import Axis, Block, Cell, Chart, Row, Section, Series, Table
from scalebench.report.drawing import (
    MOST_ROWS,
    THROUGHPUT,
    Cells,
    Group,
    bands,
    cell,
    duration,
    groups,
    sentences,
    series,
    with_epoch_limits,
)
from scalebench.report.evidence import Evidence
from scalebench.stats import ratio_interval

BATCH = "batch_per_device"
Key = tuple[Any, ...]


def section(evidence: Evidence) -> Section | None:
    """None where no configuration was measured with two batches."""
    found, words = groups(_over_batches(evidence.curves))
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*group.words, *_charts(group), _table(group)]
    return Section("batch-size", "Batch size", blocks) if found else None


def _over_batches(found: Sequence[Curve]) -> list[Curve]:
    """One for each configuration and number of devices that has two batches or more; rows in the order of batches."""
    by_group: dict[Key, dict[Key, list[Curve]]] = {}
    for curve in found:
        for row in curve.rows:
            one = Curve(curve.name, curve.group, curve.tags, [with_epoch_limits(row)])
            shared = tuple(text for name, text in curve.group.items() if name != "batch")
            by_group.setdefault(shared, {}).setdefault((identity_of(row), row["gpus"]), []).append(one)
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


def _dealt(ones: list[Curve]) -> list[list[dict[str, Any]]]:
    """Rows of two batches or more; what was measured twice with one batch, and differs in what no column tells, is a
    part of its own."""
    parts: list[list[dict[str, Any]]] = []
    for row in sorted((one.rows[0] for one in ones), key=lambda row: row[BATCH]):
        free = next((part for part in parts if all(other[BATCH] != row[BATCH] for other in part)), None)
        if free is None:
            parts.append(free := [])
        free.append(row)
    return [part for part in parts if len(part) > 1]


def _charts(group: Group) -> Iterator[Chart]:
    band = bands(group.curves)
    told = (
        (THROUGHPUT, "throughput", "Throughput", "samples/s", "samples/s over all devices; more is better"),
        ("epoch_s", "epoch_s", "Epoch", "seconds an epoch", "seconds of an epoch; less is better"),
    )
    for column, stem, title, axis, what in told:
        drawn = [one for curve in group.curves if (one := _line(curve, column, stem)) is not None]
        if drawn:
            caption = sentences(f"{what}. A larger batch makes fewer updates an epoch, and may learn less of it", band)
            x = Axis("batch per device", log=True, ticks=sorted({float(x) for one in drawn for x in one.x}))
            head = f"{title} over batch: {group.title}"
            yield Chart(group.id("batch_size", title), head, x, Axis(axis), drawn, "lines", caption)


def _line(curve: Curve, column: str, stem: str) -> Series | None:
    return series(curve.name, curve.tags, curve.rows, BATCH, column, stem)


def _table(group: Group) -> Table:
    heads = [BATCH.replace("_", " "), "global batch", "samples/s (95 %)", "over the smallest", "epoch (95 %)"]
    rows = [Row(_cells(curve, row), curve.tags) for curve in group.curves for row in curve.rows][:MOST_ROWS]
    what = "over the smallest: throughput over that with the smallest batch of the same row's strategy and devices"
    title, caption = f"Batch size: {group.title}", sentences(what, bands(group.curves))
    return Table(group.id("batch_size", "table"), title, ["strategy", *heads], rows, frozenset(heads), caption)


def _cells(curve: Curve, row: Cells) -> list[Cell]:
    return [
        cell(curve.name),
        *(cell(f"{row[name]:,}", row[name]) for name in (BATCH, "global_batch")),
        cell(tables.throughput(dict(row)), row[THROUGHPUT]),
        _gain(row, curve.rows[0]),
        cell(duration(row, "epoch_s"), row["epoch_s"]),
    ]


def _gain(row: Cells, smallest: Cells) -> Cell:
    if row is smallest:
        return cell("1.00", 1.0)
    mine, base = (interval(one, THROUGHPUT, "throughput") for one in (row, smallest))
    value = row[THROUGHPUT] / smallest[THROUGHPUT]
    limits = None if mine is None or base is None else ratio_interval(mine, base)
    low, high = (None, None) if limits is None else (limits.low, limits.high)
    return cell(tables.ratio({"gain": value, "gain_low": low, "gain_high": high}, "gain"), value)
