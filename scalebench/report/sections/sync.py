"""The section `sync` of a report, what gradient synchronization costs a step and an epoch, and the terminal's tables of
collective operations and bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scalebench.analysis import step_breakdown
from scalebench.analysis.identity import OPERATION_COLUMNS
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.result import COLLECTIVES
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.core.units import format_binary_bytes
from scalebench.report.document import (
    DEVICES,
    Axis,
    Block,
    Cell,
    Cells,
    Chart,
    CurveGroup,
    CurveRow,
    Row,
    Section,
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
from scalebench.report.step_breakdown import TOO_FEW_BLOCKS, join_reasons
from scalebench.report.tables import move_to_footnotes

if TYPE_CHECKING:
    import pandas as pd

# Column, its name, what it is.
FIGURES = (
    ("sync_exposed_s", "exposed sync",
     "what gradient synchronization adds to a step, imbalance included; less is better"),
    ("sync_isolated_s", "isolated sync",
     "gradient synchronization of a step alone, with nothing to overlap; less is better"),
    ("imbalance_s", "imbalance", "how long a device waits for the slowest one, on average; less is better"),
)  # fmt: skip
NO_PROBES = "no probes were made (measure.probes=true makes them)"
EPOCH_CAPTION = (
    "exposed sync of all steps of an epoch over their number, one point for each number of devices; less is better. "
    "More devices make fewer steps: where a curve falls to the left, that saves more than the more expensive "
    "synchronization costs"
)
GIGA = 1e9


def section(report_data: ReportData) -> Section | None:
    """Return None if no run used several devices."""
    groups, left_out = group_curves(report_data.curves, lambda members: any(map(_rows_with_sync, members)))
    blocks: list[Block] = [*left_out]
    for group in groups:
        blocks += [*group.paragraphs, *_make_charts(group), _make_table(group, report_data)]
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


def _describe_missing(row: Cells, report_data: ReportData) -> str:
    """Say why figures of this row are missing, according to its first repeat."""
    missing = [(column, name) for column, name, _ in FIGURES if row[column] is None]
    if not missing:
        return ""
    result = report_data.result(str(row["run_id"]))
    if all(rank.probes is None for rank in result.ranks):
        return NO_PROBES
    reasons = step_breakdown.unmeasured_reasons(result)
    return join_reasons(
        (name, reasons.get(step_breakdown.REASON_KEYS[column], TOO_FEW_BLOCKS)) for column, name in missing
    )


def _format_count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def make_collective_tables(frame: pd.DataFrame) -> list[Table]:
    """Make the tables of scalebench.collectives: one for each operation and device count, with a row for each size and
    columns for each strategy."""
    order = {name: number for number, name in enumerate(COLLECTIVES)}
    groups = sorted(frame.groupby(OPERATION_COLUMNS), key=lambda group: (*group[0][:-1], order.get(group[0][-1], 0)))
    return [_make_collective_table(dict(zip(OPERATION_COLUMNS, key, strict=True)), rows) for key, rows in groups]


def _make_collective_table(key: dict[str, Any], rows: pd.DataFrame) -> Table:
    nodes = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    title = f"{key['name']} on {key['gpus']} devices{nodes} ({key['framework']}, {key['hardware']})"
    strategies = sorted(rows["strategy"].unique())
    columns = ["size", *(name for strategy in strategies for name in (f"{strategy} (95 %)", "busbw"))]
    made = []
    for size, same_size in rows.groupby("size_bytes"):
        cells = [format_binary_bytes(size)]
        for strategy in strategies:
            cells += _format_operation(same_size[same_size["strategy"] == strategy])
        made.append(Row([Cell(text) for text in cells]))
    return Table("collectives", title, columns, made, frozenset(columns))


def _format_operation(rows: pd.DataFrame) -> list[str]:
    """Format time and bus bandwidth, means over the runs, with limits from the lowest to the highest of theirs."""
    if rows.empty:
        return ["", ""]
    time_s, low_s, high_s = rows["time_s"].mean(), rows["time_low"].min(), rows["time_high"].max()
    busbw = format_rate(rows["busbw_bytes_per_s"].mean())
    return [f"{format_time(time_s)} ± {100 * (high_s - low_s) / 2 / time_s:.0f} %", busbw]


def make_bandwidth_table(frame: pd.DataFrame) -> Table:
    """Make the table of scalebench.bandwidth, with a row for each transfer."""
    columns = ("strategy", "gpus", "transfer", "ranks", "size", "GB/s (95 %)")
    rows = []
    for row in frame.to_dict("records"):
        rate, low, high = (row[f"bytes_per_s{end}"] for end in ("", "_low", "_high"))
        limits = "" if _is_null(high) else f" [{low / GIGA:.3g}, {high / GIGA:.3g}]"
        size = format_binary_bytes(row["size_bytes"])
        texts = (row["strategy"], str(row["gpus"]), row["kind"], _format_ranks(row), size, f"{rate / GIGA:.3g}{limits}")
        rows.append(Row([Cell(text) for text in texts]))
    return Table("bandwidth", "bandwidth", columns, rows, frozenset({"gpus", "size", "GB/s (95 %)"}))


def format_time(time_s: float) -> str:
    """Return `12.3 µs`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if time_s * factor < 1000:
            return f"{time_s * factor:.3g} {unit}"
    return f"{time_s:.3g} s"


def format_rate(bytes_per_s: float) -> str:
    """Return `12.3 MB/s`, in powers of ten, as link rates are stated."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.3g} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.3g} GB/s"


def _format_ranks(row: dict[str, Any]) -> str:
    if _is_null(row["source"]):
        return "all"
    if row["source"] == row["target"]:
        return str(row["source"])
    return f"{row['source']} {'<->' if 'both_ways' in row['kind'] else '->'} {row['target']}"


def _is_null(value: Any) -> bool:
    return str(value) in ("<NA>", "nan", "None")
