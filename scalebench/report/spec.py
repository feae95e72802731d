"""Parts of a section as data: which columns of the frame a chart draws and a table lists, for each group of curves.

A table is made of rows that map the heads of its columns to values: figures, estimates, texts or cells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_intervals
from scalebench.report.report_data import ReportData

# A part makes blocks for a group of curves.
Part = Callable[[doc.CurveGroup, ReportData], Iterable[doc.Block]]
TableRow = tuple[doc.Tags, Mapping[str, Any]]  # tags, and values by the heads of their columns


def to_cell(value: Any) -> doc.Cell:
    """Make a cell of a count, a text, a ratio with its limits, or a pair of a figure and the function that writes it;
    empty for None."""
    if isinstance(value, doc.Cell):
        return value
    if isinstance(value, Estimate):
        return doc.format_cell(value, units.format_ratio)
    if isinstance(value, tuple):
        return doc.format_cell(*value)
    return doc.Cell(f"{value:,}", value) if isinstance(value, int) else doc.make_cell(value or "")


def make_table(
    table_id: str,
    title: str,
    rows: Iterable[TableRow],
    words: Collection[str] = (),
    caption: str = "",
    optional: Collection[str] = (),
) -> doc.Table:
    """Make a table, whose caption counts the rows above doc.MAX_ROWS. Columns other than the `words` are numbers, the
    first one if its values are; `optional` ones without a value are left out."""
    pairs = [(tags, {head: to_cell(value) for head, value in values.items()}) for tags, values in rows]
    if len(pairs) > doc.MAX_ROWS:
        caption = doc.join_sentences(caption, f"{doc.MAX_ROWS} of {len(pairs):,} rows")
    all_heads = dict.fromkeys(head for _, cells in pairs for head in cells)
    heads = [head for head in all_heads if head not in optional or any(cells[head].text for _, cells in pairs)]
    empty = doc.Cell("")
    table_rows = [doc.Row([cells.get(head, empty) for head in heads], tags) for tags, cells in pairs[: doc.MAX_ROWS]]
    first = 0 if table_rows and isinstance(table_rows[0].cells[0].value, (int, float)) else 1
    return doc.Table(table_id, title, heads, table_rows, frozenset(heads[first:]) - {*words}, caption)


def draw_lines(
    group: doc.CurveGroup,
    name: str,
    title: str,
    lines: Sequence[doc.Series],
    axis: doc.Axis,
    *about: str,
    x: str = "gpus",
    ideals: Mapping[str, tuple[float, float]] | None = None,
) -> Iterator[doc.Chart]:
    """Yield a chart of these lines over the column `x`, with what their intervals are taken over; nothing without a
    line. `ideals` are more lines, each of a level and a slope."""
    if lines:
        x_axis = doc.make_axis(x, lines)
        places = list(x_axis.ticks or [])
        ideal_lines = [
            doc.Series(head, places, [level + slope * place for place in places], tags=group.tags, style="ideal")
            for head, (level, slope) in (ideals or {}).items()
        ]
        intervals = describe_intervals(row for _, row in group.list_rows()) if any(line.low for line in lines) else ""
        caption = doc.join_sentences(*about, intervals)
        yield doc.Chart(group.make_id(name), title, x_axis, axis, [*lines, *ideal_lines], caption=caption)


@dataclass(frozen=True)
class Drawing:
    """A chart of a column as lines over another one; `note` makes the text beside a point."""

    column: str
    title: str
    axis: str
    about: str
    x: str = "gpus"
    note: Callable[[doc.Cells], str] | None = None

    def __call__(self, group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
        unit = tables.find_kind(self.column).unit
        axis = doc.Axis(self.axis, percent=unit == "share", unit="" if unit == "share" else unit)
        lines = doc.make_lines(group.curves, self.column, self.x, self.note)
        return draw_lines(group, self.column, self.title, lines, axis, self.about, x=self.x)


@dataclass(frozen=True)
class Listing:
    """A table of columns, with a row for each row of the curves that has one of them. `remark` says in footnotes what a
    row lacks; then rows without any are listed, too."""

    title: str
    heads: Mapping[str, str]  # of the columns
    caption: str = ""
    always: Collection[str] = ()  # columns that are in the table even if they are empty
    remark: Callable[[ReportData, doc.Cells], str] | None = None
    limits: bool = False  # those of throughput: the caption says what they are taken over
    id: str = "table"
    name_heads: tuple[str, str, str] = ("strategy", doc.DEVICES, "remarks")  # of the columns that are not figures

    def __call__(self, group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Table]:
        name, gpus, remarks = self.name_heads
        rows: list[tuple[doc.Tags, dict[str, Any]]] = []
        notes = tables.Footnotes()
        for curve, row in group.list_rows():
            if self.remark is None and all(row.get(column) is None for column in self.heads):
                continue
            values = {head: tables.make_cell(row, column) for column, head in self.heads.items()}
            rows.append((curve.tags, {name: curve.name, gpus: row["gpus"], **values}))
            if self.remark is not None:
                text = self.remark(report_data, row)
                rows[-1][1][remarks] = notes.make_cell([text] if text else [])
        optional = [head for column, head in self.heads.items() if column not in self.always]
        intervals = describe_intervals(row for _, row in group.list_rows()) if self.limits else ""
        caption = doc.join_sentences(self.caption, intervals)
        table = make_table(group.make_id(self.id), self.title, rows, [remarks], caption, optional)
        yield replace(table, footnotes=notes.list_notes())


@dataclass(frozen=True)
class Groups:
    """Parts that repeat for each group of curves with a curve that `shows`, of the rows that `keep` selects."""

    section: str  # as the ids of its blocks begin
    parts: Sequence[Part]
    keep: Callable[[doc.Cells], bool] = lambda row: True
    shows: Callable[[Curve, ReportData], bool] = lambda curve, report_data: True
    prepare: Callable[[Sequence[Curve]], Sequence[Curve]] = lambda curves: curves
    notes: Callable[[ReportData], Sequence[doc.Paragraph]] = lambda report_data: ()  # before the first group

    def __call__(self, report_data: ReportData) -> Iterator[doc.Block]:
        curves = [replace(curve, rows=[row for row in curve.rows if self.keep(row)])
                  for curve in self.prepare(report_data.curves)]  # fmt: skip
        notes = self.notes(report_data)
        for group in doc.group_curves(self.section, curves, lambda c: bool(c.rows) and self.shows(c, report_data)):
            selection = replace(group, curves=[curve for curve in group.curves if curve.rows])
            content = [block for part in self.parts for block in part(selection, report_data) if doc.has_content(block)]
            if content:
                yield from [*notes, *group.paragraphs, *content]
                notes = ()
