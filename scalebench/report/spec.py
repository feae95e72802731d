"""Parts of a section as data: which columns of the frame a chart draws and a table lists.

The name of a column says its unit (`_s`, `_bytes`, `_share`) and its limits (`_low`, `_high`), so that `make_cell`
shows any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import to_number
from scalebench.report.report_data import ReportData

Format = Callable[[Any], str]
# The ending of a column's name: the unit of its axis, how a figure is written.
KINDS: dict[str, tuple[str, Format]] = {
    "_bytes_per_s": ("bytes/s", lambda value: f"{units.format_bytes(value)}/s"),
    "_bytes_per_step": ("bytes", units.format_bytes),
    "_bytes": ("bytes", units.format_bytes),
    "_bytes_max": ("bytes", units.format_bytes),
    "_mhz_mean": ("", "{:,.0f} MHz".format),
    "_mhz_min": ("", "{:,.0f} MHz".format),
    "_w_mean": ("", "{:,.0f} W".format),
    "_util_mean": ("share", units.format_percent),
    "_share": ("share", units.format_percent),
    "_to_target_s": ("s", tables.format_seconds),
    "_s": ("s", units.format_seconds),
    "hours_per_epoch": ("device-hours", units.format_device_hours),
    "hours_to_target": ("device-hours", units.format_device_hours),
    "_j_per_epoch": ("J", lambda value: f"{units.format_number(value)} J"),
    "_j_to_target": ("J", lambda value: f"{units.format_number(value)} J"),
}  # fmt: skip
# What a caption says, or how it follows from the curves that are shown.
Caption = str | Callable[[doc.CurveGroup], str]
# A part makes blocks for a group of curves. It takes the id of the section, the group, and the data of the report.
Part = Callable[[str, doc.CurveGroup, ReportData], Iterable[doc.Block]]


def find_kind(column: str) -> tuple[str, Format]:
    return next((kind for ending, kind in KINDS.items() if column.endswith(ending)), ("", "{:,}".format))


def make_cell(row: doc.Cells, column: str) -> doc.Cell:
    """Show any column, with limits if it is a throughput or a time; empty where nothing was measured."""
    if (value := row.get(column)) is None:
        return doc.Cell("")
    if isinstance(value, str):
        return doc.make_cell(value)
    unit, show = find_kind(column)
    if column == doc.THROUGHPUT:
        return doc.make_cell(tables.format_throughput(row), value)
    low, high = (to_number(row.get(f"{column}_{end}")) for end in ("low", "high"))
    limited = unit == "s" and low is not None and high is not None
    return doc.make_cell(doc.format_duration(value, low, high) if limited else show(value), value)


def to_cell(value: Any) -> doc.Cell:
    """Make a cell of a count, a text, or a ratio with its limits; empty for None."""
    if isinstance(value, doc.Cell):
        return value
    if isinstance(value, Estimate):
        return doc.make_cell(tables.format_ratio(value.value, *value.limits), value.value)
    return doc.Cell(f"{value:,}", value) if isinstance(value, int) else doc.make_cell(value or "")


def make_table(
    table_id: str,
    title: str,
    heads: Sequence[str],
    rows: Iterable[tuple[doc.Tags, Iterable[Any]]],
    words: Iterable[str] = (),
    caption: str = "",
) -> doc.Table:
    """Make a table of rows, each of tags and of values for `to_cell`; the caption counts those above doc.MAX_ROWS.
    Columns other than the `words` are numbers, the first one if its values are."""
    all_rows = list(rows)
    if len(all_rows) > doc.MAX_ROWS:
        caption = doc.join_sentences(caption, f"{doc.MAX_ROWS} of {len(all_rows):,} rows")
    cells = [doc.Row([*map(to_cell, values)], tags) for tags, values in all_rows[: doc.MAX_ROWS]]
    first = 0 if cells and isinstance(cells[0].cells[0].value, (int, float)) else 1
    return doc.Table(table_id, title, heads, cells, frozenset(heads[first:]) - {*words}, caption)


@dataclass(frozen=True)
class Drawing:
    """A chart of a column: lines over the devices, or else bars."""

    column: str
    title: str
    axis: str
    caption: Caption = ""
    lines: bool = False

    def __call__(self, section: str, group: doc.CurveGroup, report_data: ReportData) -> Iterable[doc.Block]:
        """Yield the chart; nothing without a value, or with bars of 0, which cannot be seen."""
        series = doc.make_line_series(group.curves, self.column, gaps=self.lines)
        if any(y for each in series for y in each.y):
            unit, _ = find_kind(self.column)
            y = doc.Axis(self.axis, percent=unit == "share", unit="" if unit == "share" else unit)
            axes = (doc.make_devices_axis(series) if self.lines else doc.Axis(doc.DEVICES)), y
            caption = _write_caption(self.caption, group)
            kind: Literal["lines", "bars"] = "lines" if self.lines else "bars"
            yield group.make_chart(section, self.column, self.title, axes, series, caption, kind)


@dataclass(frozen=True)
class Listing:
    """A table of columns, with a row for each row of the curves that has one of them. `remark` says in footnotes what a
    row lacks; then rows without any are listed, too."""

    title: str
    heads: Mapping[str, str]  # of the columns
    caption: Caption = ""
    always: Sequence[str] = ()  # columns that stand in the table even if they are empty
    remark: Callable[[ReportData, doc.Cells], str] | None = None
    id: str = "table"
    name_heads: tuple[str, str, str] = ("strategy", "gpus", "remarks")  # of the columns that are no figures

    def __call__(self, section: str, group: doc.CurveGroup, report_data: ReportData) -> Iterable[doc.Block]:
        """Yield the table with the columns that have a value; nothing if none of them has."""
        items = [
            (tags, curve, row)
            for (curve, row), tags in group.list_rows()
            if self.remark is not None or any(row.get(name) is not None for name in self.heads)
        ]
        columns = [name for name in self.heads
                   if name in self.always or any(row.get(name) is not None for _, _, row in items)]  # fmt: skip
        if not items or not columns:
            return
        rows: list[tuple[doc.Tags, list[Any]]] = []
        notes = tables.Footnotes()
        for tags, curve, row in items:
            rows.append((tags, [curve.name, row["gpus"], *(make_cell(row, name) for name in columns)]))
            if self.remark is not None:
                rows[-1][1].append(notes.make_cell([text] if (text := self.remark(report_data, row)) else []))
        name, gpus, remarks = self.name_heads
        heads = [name, gpus, *(self.heads[name] for name in columns), *([remarks] if self.remark is not None else [])]
        table = make_table(group.make_id(section, self.id), self.title, heads, rows, [remarks],
                           _write_caption(self.caption, group))  # fmt: skip
        yield replace(table, footnotes=notes.list_notes())


def _write_caption(caption: Caption, group: doc.CurveGroup) -> str:
    return caption if isinstance(caption, str) else caption(group)


@dataclass(frozen=True)
class SectionSpec:
    """A section that repeats its parts for each group of curves, of the rows that `keep` selects."""

    id: str
    title: str
    parts: Sequence[Part]
    keep: Callable[[doc.Cells], bool] = lambda row: True
    prepare: Callable[[Sequence[Curve]], Sequence[Curve]] = lambda curves: curves

    def __call__(self, report_data: ReportData) -> doc.Section | None:
        """Make the section; None if no part has anything to show."""

        def has_rows(members: list[Curve]) -> bool:
            return any(self.keep(row) for curve in members for row in curve.rows)

        groups, notes = doc.group_curves(self.prepare(report_data.curves), has_rows)
        blocks: list[doc.Block] = []
        for group in groups:
            curves = [replace(curve, rows=[row for row in curve.rows if self.keep(row)]) for curve in group.curves]
            selection = replace(group, curves=[curve for curve in curves if curve.rows])
            content = [block for part in self.parts for block in part(self.id, selection, report_data)]
            blocks += [*group.paragraphs, *content] if content else []
        return doc.Section(self.id, self.title, [*notes, *blocks]) if blocks else None
