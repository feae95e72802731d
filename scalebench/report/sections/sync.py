"""The section `sync` of a report: what gradient synchronization costs a step and an epoch, and its phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from scalebench.analysis import step_breakdown
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report.document import (
    DEVICES,
    Axis,
    Block,
    Cell,
    Cells,
    Chart,
    CurveGroup,
    CurveRow,
    Section,
    Series,
    Table,
    build_table,
    format_cell,
    format_duration_column,
    group_curves,
    join_sentences,
    make_bar_series,
    make_cell,
    make_series,
)
from scalebench.report.report_data import ReportData
from scalebench.report.step_breakdown import MAX_BARS, PHASE_NAMES, SYNC_PARTS, TOO_FEW_BLOCKS, join_reasons
from scalebench.report.tables import move_to_footnotes

# Column, its name, what it is.
FIGURES = (
    ("sync_exposed_s", "exposed sync",
     "what gradient synchronization adds to a step, imbalance included; less is better"),
    ("sync_isolated_s", "isolated sync",
     "gradient synchronization of a step alone, with nothing to overlap; less is better"),
    ("imbalance_s", "imbalance", "how long a device waits for the slowest one, on average; less is better"),
)  # fmt: skip
PHASE_CAPTION = (
    "Seconds of a step in which at least one tensor was in the phase, on rank 0, in steps after measuring. "
    "Negotiate: until all ranks have announced a tensor, so that waiting for a slower rank is part of it. "
    "Memory copies: in and out of the fusion buffer. The phases overlap each other and the backward pass: their sum "
    "means nothing"
)
PART_CAPTION = (
    "Parts of exposed sync where devices have no weights of their own: what a step saves with frozen copies of its "
    "slice of a batch and of the weights on each device, a loss on each device, and gradients that stay there, one "
    "after the other. They add up to exposed sync. Empty: not separable, the remarks above say why"
)
NO_PROBES = "no probes were made (measure.probes=true makes them)"
EPOCH_CAPTION = (
    "exposed sync of all steps of an epoch over their number, one point for each number of devices; less is better. "
    "More devices make fewer steps: where a curve falls to the left, that saves more than the more expensive "
    "synchronization costs"
)


def section(report_data: ReportData) -> Section | None:
    """Return None if no run used several devices."""
    groups, left_out = group_curves(report_data.curves, lambda members: any(map(_rows_with_sync, members)))
    blocks: list[Block] = [*left_out]
    for group in groups:
        blocks += [*group.paragraphs, *_make_charts(group), _make_table(group, report_data)]
        part_names = {column: part.name for column, part in SYNC_PARTS.items()}
        blocks += _make_detail_blocks(group, "part", part_names, PART_CAPTION)
        blocks += _make_detail_blocks(group, "phase", PHASE_NAMES, PHASE_CAPTION)
    return Section("sync", "Gradient synchronization", blocks) if groups else None


def _rows_with_sync(curve: Curve) -> list[dict[str, Any]]:
    return [row for row in curve.rows if row["gpus"] > 1]


def _make_charts(group: CurveGroup) -> Iterator[Chart]:
    """Draw exposed sync over devices and epochs; imbalance, which is part of it, and isolated sync are in the table."""
    column, name, about = FIGURES[0]
    if bars := make_bar_series([replace(curve, rows=_rows_with_sync(curve)) for curve in group.curves], column):
        axes = Axis(DEVICES), Axis("time of a step", unit="s")
        caption = join_sentences(about, _describe_probe_intervals(group))
        yield group.make_chart("sync", column, name.capitalize(), axes, bars, caption, "bars")
    yield from _make_epoch_chart(group)


def _describe_probe_intervals(group: CurveGroup) -> str:
    """Say what the intervals of the probes are taken over, which are not those of throughput."""
    most = max(row["repeats"] for curve in group.curves for row in _rows_with_sync(curve))
    several = ", over repeats where three and more were probed" if most >= MIN_REPEATS_FOR_LIMITS else ""
    return f"intervals: 95 %, over blocks of the probes of one repeat{several}"


def _make_epoch_chart(group: CurveGroup) -> Iterator[Chart]:
    """Show whether fewer steps per epoch save more than the more expensive synchronization of more devices costs."""
    column, lines = "sync_per_epoch_s", []
    for curve in group.curves:
        rows = [row for row in _rows_with_sync(curve) if None not in (row["steps_per_epoch"], row[column])]
        notes = [f"{row['gpus']} devices, {_format_count(row['syncs_per_epoch'])} messages an epoch"
                 for row in rows]  # fmt: skip
        line = make_series(curve.name, curve.tags, rows, "steps_per_epoch", column, column, notes)
        lines += [] if line is None else [line]
    if lines:
        axes = Axis("steps per epoch"), Axis("time per epoch", unit="s")
        yield group.make_chart("sync", "epoch", "Sync of an epoch", axes, lines, join_sentences(EPOCH_CAPTION))


def _make_table(group: CurveGroup, report_data: ReportData) -> Table:
    detailed = set(report_data.detailed_run_ids)

    def make_duration_column(name: str) -> Callable[[CurveRow], Cell]:
        return lambda item: make_cell(format_duration_column(item[1], name), item[1][name])

    columns: dict[str, Callable[[CurveRow], Cell]] = {
        "strategy": lambda item: make_cell(item[0].name),
        "gpus": lambda item: format_cell(item[1]["gpus"], str),
        **{head: make_duration_column(name) for name, head, _ in FIGURES},
        "sync per epoch": lambda item: format_cell(item[1]["sync_per_epoch_s"], units.format_seconds),
        "steps per epoch": lambda item: format_cell(item[1]["steps_per_epoch"], "{:,}".format),
        "messages": lambda item: format_cell(item[1]["syncs_per_epoch"], "{:,}".format),
        "remarks": lambda item: make_cell(
            _describe_missing(item[1], report_data) if item[1]["run_id"] in detailed else ""
        ),
    }
    what = (f"{name}: {about.partition(';')[0]}" for _, name, about in FIGURES)
    caption = join_sentences(*what, "messages are those of an epoch", "empty: not measured")
    items = [item for item in group.list_rows() if item[0][1]["gpus"] > 1]
    table_id = group.make_id("sync", "table")
    table = build_table(table_id, "Sync of a step and an epoch", columns, items, ("strategy", "remarks"), caption)
    return move_to_footnotes(table, "remarks")


def _make_detail_blocks(group: CurveGroup, kind: str, names: dict[str, str], caption: str) -> Iterator[Block]:
    """Draw and list columns of the rows that have one of them: `names` by column, of `kind` phase or part.

    Phases are those of a framework's timeline, as Horovod has; parts those of synchronization without own weights.
    """
    items = [item for item in group.list_rows() if any(item[0][1][name] is not None for name in names)]
    if not items:
        return
    series = []
    for (curve, row), tags in items[:MAX_BARS]:
        shown = {name: row[column] for column, name in names.items() if row[column] is not None}
        series.append(Series(f"{curve.name} x {row['gpus']}", [*shown], [*shown.values()], tags=tags))
    axes, title = (Axis(kind), Axis("time of a step", unit="s")), f"{kind.capitalize()}s of gradient synchronization"
    yield group.make_chart("sync", f"{kind}s", title, axes, series, join_sentences(caption), "bars")

    def make_column(column: str) -> Callable[[CurveRow], Cell]:
        if f"{column}_low" in items[0][0][1]:
            return lambda item: make_cell(format_duration_column(item[1], column), item[1][column])
        return lambda item: format_cell(item[1][column], units.format_seconds)

    columns: dict[str, Callable[[CurveRow], Cell]] = {
        "strategy": lambda item: make_cell(item[0].name),
        "gpus": lambda item: format_cell(item[1]["gpus"], str),
        **{name: make_column(column) for column, name in names.items()},
    }
    yield build_table(group.make_id("sync", f"{kind}-table"), title, columns, items, ("strategy",))


def _describe_missing(row: Cells, report_data: ReportData) -> str:
    """Say why figures of this row are missing, according to its first repeat, and which parts of sync."""
    result = report_data.result(str(row["run_id"]))
    if all(rank.probes is None for rank in result.ranks):
        return NO_PROBES
    reasons = step_breakdown.unmeasured_reasons(result)
    missing = [
        (name, reasons.get(step_breakdown.REASON_KEYS[column], TOO_FEW_BLOCKS))
        for column, name, _ in FIGURES
        if row[column] is None
    ]
    inseparable = [(part.name, reasons[part.reasons[0]]) for part in SYNC_PARTS.values() if part.reasons[0] in reasons]
    return join_reasons([*missing, *inseparable])


def _format_count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
