"""The section `epochs` of a report: what an epoch, and getting to the target, takes of time, devices and energy.
Layer 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalebench.curves import Curve
from scalebench.report import tables, units
from scalebench.report.blocks import Axis, Block, Cell, Chart, Row, Section, Table
from scalebench.report.drawing import (
    Cells,
    Group,
    bands,
    cell,
    devices_axis,
    duration,
    groups,
    lines,
    sentences,
    with_epoch_limits,
)
from scalebench.report.evidence import Evidence
from scalebench.report.words import number

# Column, head of the table, title of the chart (none: too few rows have it), unit.
COSTS = (
    ("device_hours_per_epoch", "device-hours an epoch", "Devices' time of an epoch", "device-hours"),
    ("energy_j_per_epoch", "energy an epoch", "Energy of an epoch", "joules"),
    ("time_to_target_s", "time to target", "", "seconds"),
    ("device_hours_to_target", "device-hours to target", "", "device-hours"),
    ("energy_j_to_target", "energy to target", "", "joules"),
)


def section(evidence: Evidence) -> Section | None:
    """None where no epoch's time is known."""
    found, words = groups(_across_hardware(evidence.curves), lambda members: any(map(_known, members)))
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*group.words, *_charts(group), _table(group)]
    return Section("epochs", "Epochs: time, devices and energy", blocks) if found else None


def _known(curve: Curve) -> bool:
    return any(row["epoch_s"] is not None for row in curve.rows)


def _across_hardware(found: Sequence[Curve]) -> list[Curve]:
    """Seconds may stand beside each other where speedups may not: curves of several machines as one group, each with
    the name of its own."""
    hardware: dict[tuple[str, ...], list[str]] = {}
    for curve in found:
        hardware.setdefault(_elsewhere(curve), []).append(curve.group["hardware"])
    made = []
    for curve in found:
        machines = list(dict.fromkeys(hardware[_elsewhere(curve)]))
        name = f"{curve.name} on {curve.group['hardware']}" if len(machines) > 1 else curve.name
        rows = [with_epoch_limits(row) for row in curve.rows]
        made.append(replace(curve, name=name, group={**curve.group, "hardware": ", ".join(machines)}, rows=rows))
    return made


def _elsewhere(curve: Curve) -> tuple[str, ...]:
    """What it shares with the same work on another machine."""
    return tuple(text for name, text in curve.group.items() if name != "hardware")


def _charts(group: Group) -> Iterator[Chart]:
    what = "seconds that all samples of the training set take at the measured throughput; less is better"
    several = len({curve.tags["hardware"] for curve in group.curves}) > 1
    more = "machines share this chart, since it is in seconds, and each curve names its own" if several else ""
    yield from _chart(group, "epoch_s", "Epoch", "seconds an epoch", sentences(what, more, bands(group.curves)))
    for column, head, title, unit in COSTS:
        if title:
            yield from _chart(group, column, title, f"{unit} an epoch", sentences(f"{head}, less is better"))


def _chart(group: Group, column: str, title: str, axis: str, caption: str) -> Iterator[Chart]:
    if drawn := lines(group.curves, column):
        axes = devices_axis(drawn), Axis(axis)
        yield Chart(group.id("epochs", column), f"{title}: {group.title}", *axes, drawn, "lines", caption)


def _table(group: Group) -> Table:
    rows = [row for curve in group.curves for row in curve.rows]
    costs = [
        (column, head, unit) for column, head, _, unit in COSTS if any(row.get(column) is not None for row in rows)
    ]
    heads = ["gpus", "epoch (95 %)", "updates an epoch", *(head for _, head, _ in costs)]
    made = [
        Row([cell(curve.name), *_times(row), *(_cost(row, column, unit) for column, _, unit in costs)], curve.tags)
        for curve in group.curves
        for row in curve.rows
    ]
    caption = sentences("less is better in all of them, but of updates", "not measured is empty", bands(group.curves))
    title = f"Epochs: {group.title}"
    return Table(group.id("epochs", "table"), title, ["strategy", *heads], made, frozenset(heads), caption)


def _times(row: Cells) -> list[Cell]:
    updates = row["updates_per_epoch"]
    return [
        cell(str(row["gpus"]), row["gpus"]),
        cell(duration(row, "epoch_s"), row["epoch_s"]),
        Cell("") if updates is None else cell(f"{updates:,}", updates),
    ]


def _cost(row: Cells, column: str, unit: str) -> Cell:
    value = number(row.get(column))
    if value is None:
        return Cell("")
    shown = {"joules": f"{units.figure(value)} J", "seconds": tables.seconds(value), "device-hours": _hours(value)}
    return cell(shown[unit], value)


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
