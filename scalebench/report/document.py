"""The document model of a report, and how rows of the frame become parts of it.

Sections make blocks from the frame; renderers (html/, figures.py, terminal.py) show them. All texts are
plain: a renderer escapes them, and nothing in them is markup.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from scalebench.analysis.columns import limit_names
from scalebench.analysis.scaling_curves import Curve, format_group_title
from scalebench.analysis.scaling_curves import group_curves as group_by_workload
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate

MAX_CURVES = 24  # of a chart; more are not distinguishable
MAX_ROWS = 200  # of a table
MAX_ID_LENGTH = 60
MAX_LABELLED_BARS = 24  # of a chart; the values of more do not fit above them
TAG_COLUMNS = ("model", "strategy", "hardware")
THROUGHPUT = "throughput_samples_per_s"
# The parts that stacked bars consist of: those of a step, those of a loss, and the remainder of either.
PARTS = (
    *("efficiency", "data", "forward", "backward", "optimizer", "sync", "imbalance", "contention", "wrapper"),
    *("batch", "rest"),
)
DEVICES = "devices"
REPEAT_ROWS = "repeat_rows"  # key of a curve's row: the rows of its repeats, where there are several

Number = float | None  # None: not measured
Points = list[tuple[float, float]]
Cells = Mapping[str, Any]  # the cells of one row of the frame
Tags = Mapping[str, str]  # model, strategy, hardware: what a reader can filter by; without a tag, a block always shows
CurveRow = tuple[Curve, Mapping[str, Any]]  # a row of a curve


@dataclass(frozen=True)
class Axis:
    """An axis of a chart. `title` includes the unit; `log` is for values over several decades."""

    title: str
    log: bool = False
    percent: bool = False  # values are shares
    from_zero: bool = True
    ticks: Sequence[float] | None = None  # such as the numbers of devices
    unit: str = ""  # of units.UNITS, in which values are; `scale_units` shows them in one that suits their size


@dataclass(frozen=True)
class Series:
    """The points of one line, or bars. `low` and `high` are 95 % limits, absent or None where there is no interval;
    `repeats` are the figures of the single repeats behind each point, which lines and bars show as dots."""

    name: str
    x: Sequence[float | str]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    tags: Tags = field(default_factory=dict)
    style: Literal["line", "ideal", "points"] = "line"
    notes: Sequence[str] = ()  # one for each point, shown beside it on demand
    point_tags: Sequence[Tags] = ()  # one for each point, where they differ: bars of several strategies
    repeats: Sequence[Sequence[float]] = ()
    part: str = ""  # of PARTS, whose colour is the same in every chart of every report
    fit: Sequence[float] = ()  # y at each x of a line fitted to the points, which is dotted; only of lines

    @cached_property
    def limits(self) -> list[tuple[Number, Number]]:
        """Both limits of each point; None for both where one is missing or infinite."""
        pairs = zip(self.low, self.high, strict=True) if self.low else itertools.repeat((None, None), len(self.x))
        return [
            (None, None) if low is None or high is None or math.isinf(low) or math.isinf(high) else (low, high)
            for low, high in pairs
        ]

    def list_dots(self, places: Sequence[Any] | None = None) -> list[tuple[Any, float]]:
        """Return (x, y) of each single repeat; `places` are other x of the points, as of bars side by side."""
        return [(x, y) for x, values in zip(places or self.x, self.repeats, strict=False) for y in values]

    def list_tops(self) -> list[float]:
        """Return the y above which nothing of a bar is drawn, neither its limit nor a dot; 0 without a value."""
        dots = itertools.chain(self.repeats, itertools.repeat(()))
        return [
            max([0.0, *dots_of_bar, *(each for each in (y, high) if each is not None)])
            for y, (_, high), dots_of_bar in zip(self.y, self.limits, dots, strict=False)
        ]


@dataclass(frozen=True)
class Chart:
    """A chart: `lines` over numbers, `bars` side by side, or `stacked` bars, which lie one below the other.

    Negative values of a stack are markers beside its bars, and a stack of shares is drawn up to 100 %.
    """

    id: str  # unique in a report; [a-z0-9-]+
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    caption: str = ""  # what it shows, and what its intervals are taken over

    @property
    def has_bar_labels(self) -> bool:
        """Return whether each bar has its value above it."""
        return self.kind == "bars" and sum(len(series.x) for series in self.series) <= MAX_LABELLED_BARS


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `text` is shown; the column is sorted by `value`, which tests compare with the frame."""

    text: str
    value: float | str | None = None
    link: str | None = None  # a file beside the report, relative to it
    note: str = ""  # more about the cell, shown on demand
    chip: Literal["", "good", "bad", "off"] = ""  # sets a status apart by its colour


@dataclass(frozen=True)
class Row:
    cells: Sequence[Cell]
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table. The columns named in `numeric` are aligned to the right."""

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    numeric: frozenset[str] = frozenset()
    caption: str = ""
    footnotes: Sequence[tuple[str, str]] = ()  # mark in the cells, and its text


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; answers and warnings are set apart, a heading begins a part of a section, a label the
    blocks of a group of curves."""

    text: str
    kind: Literal["plain", "answer", "warning", "heading", "label"] = "plain"
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """Lines to copy: a command or a few lines of a program. `log` is the end of a log, folded away."""

    text: str
    language: str = "sh"  # sh | python | yaml | log
    title: str = ""
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True)
class Tile:
    """A figure of a verdict. `note` says which runs it is of; texts that do not apply are empty."""

    name: str
    figure: str
    unit: str = ""
    interval: str = ""
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer for one group of runs in a dozen words, its figures, the largest loss, and `doubts`: reasons not to
    rely on it. `group` is empty where a report has one group."""

    text: str
    tiles: Sequence[Tile] = ()
    reason: str = ""
    doubts: Sequence[str] = ()
    group: str = ""
    tags: Tags = field(default_factory=dict)


Block = Chart | Table | Paragraph | Code | Verdict


@dataclass(frozen=True)
class Section:
    id: str  # [a-z0-9-]+
    title: str
    blocks: Sequence[Block]
    folded: bool = True  # opened on demand


@dataclass(frozen=True)
class CurveGroup:
    """Curves that may be drawn in one chart. The paragraphs before it are the group's label, if the report has
    several groups, and which curves were left out."""

    section: str
    number: int  # in the section
    shared: dict[str, str]
    curves: list[Curve]
    paragraphs: list[Paragraph]

    def make_id(self, *words: str) -> str:
        """Make the id of a block from the section, the words, the number of the group, which makes it unique, and the
        group's title."""
        return make_id(self.section, *words, str(self.number), format_group_title(self.shared))

    def list_rows(self) -> list[CurveRow]:
        return [(curve, row) for curve in self.curves for row in curve.rows]

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a block that belongs to all curves of the group, whose strategies differ."""
        return {"model": self.shared["model"], "hardware": self.shared["hardware"]}


def make_id(*words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:MAX_ID_LENGTH].strip("-")


def group_curves(
    section: str, curves: Iterable[Curve], is_shown: Callable[[Curve], bool] = lambda curve: True
) -> list[CurveGroup]:
    """Group the curves of a section that may be drawn together, and return the groups with a curve for which `is_shown`
    is true, each with its MAX_CURVES best curves."""
    workloads, groups = group_by_workload(curves), list[CurveGroup]()
    for shared, members in workloads:
        if any(map(is_shown, members)):
            group = CurveGroup(section, len(groups) + 1, shared, *select_best_curves(members))
            if len(workloads) > 1:
                group.paragraphs.insert(0, Paragraph(format_group_title(shared), "label", group.tags))
            groups.append(group)
    return groups


def select_best_curves(curves: Sequence[Curve], count: int = MAX_CURVES) -> tuple[list[Curve], list[Paragraph]]:
    """Return the curves that rank best in throughput at some number of devices, in order, and a paragraph if others
    were left out."""
    if len(curves) <= count:
        return list(curves), []
    by_gpus: dict[int, list[tuple[float, int]]] = {}
    for i, curve in enumerate(curves):
        for row in curve.rows:
            by_gpus.setdefault(row["gpus"], []).append((-row[THROUGHPUT], i))
    best_rank: dict[int, int] = {}
    for rates in by_gpus.values():
        for rank, (_, i) in enumerate(sorted(rates)):
            best_rank[i] = min(best_rank.get(i, rank), rank)
    best = sorted(sorted(best_rank, key=lambda i: (best_rank[i], i))[:count])
    text = f"The fastest {count} of {len(curves)} curves are shown, each among the first at some number of devices"
    return [curves[i] for i in best], [Paragraph(f"{text}; results.csv has all.")]


def note_left_out(limit: int, count: int, what: str) -> list[Paragraph]:
    """Return the paragraph `8 of 20 runs are shown.` if there are more than the limit."""
    return [Paragraph(f"{limit} of {count:,} {what}.")] if count > limit else []


def limit_texts(texts: Sequence[str], count: int, rest: str) -> list[str]:
    """Return the first `count` texts, and `rest` with the number of the others if there are more."""
    return [*texts[:count], *([rest.format(len(texts) - count)] if len(texts) > count else [])]


def get_tags(row: Cells) -> dict[str, str]:
    return {name: str(row[name] or "") for name in TAG_COLUMNS}


def make_cell(text: str, value: Any = None) -> Cell:
    """Make a cell for a value of the frame, or for a text, by which it is sorted then."""
    return Cell(text, (text or None) if value is None else float(value))


def format_cell(figure: Any, show: Callable[[Any], str]) -> Cell:
    """Make a cell for a figure, with its limits if it is an estimate; empty if it is None."""
    if figure is None:
        return Cell("")
    return make_cell(show(figure), figure.value if isinstance(figure, Estimate) else figure)


def make_lines(
    curves: Iterable[Curve], column: str, x: str = "gpus", note: Callable[[Cells], str] | None = None
) -> list[Series]:
    """Make a series of a column over the column `x`, with its limits and the figures of repeats, for each curve that
    has a value; `note` makes the text beside a point. A row without a value is a gap of a line."""
    lines = []
    for curve in curves:
        rows = [row for row in curve.rows if row[x] is not None]
        values, low, high = ([row.get(name) for row in rows] for name in (column, *limit_names(column)))
        if not (count := sum(value is not None for value in values)):
            continue
        if all(limit is None for limit in (*low, *high)):
            low, high = [], []
        repeats = [[y for each in row.get(REPEAT_ROWS) or () if (y := each.get(column)) is not None] for row in rows]
        notes = () if note is None else [note(row) for row in rows]
        style: Literal["points", "line"] = "points" if count == 1 else "line"
        places = [float(row[x]) for row in rows]
        tags = dict(curve.tags)
        lines.append(Series(curve.name, places, values, low or (), high or (), tags, style, notes, repeats=repeats))
    return lines


def make_axis(column: str, lines: Sequence[Series]) -> Axis:
    """Make the axis of a column over which lines are drawn, with a tick at each of their places."""
    ticks = sorted({float(x) for line in lines for x in line.x})
    if column == "gpus":
        return Axis(DEVICES, ticks=ticks, from_zero=False)
    is_batch = column.startswith(("batch", "global_batch"))
    return Axis(column.replace("_", " "), log=is_batch, ticks=ticks if is_batch else None)


def has_content(block: Block) -> bool:
    """Return whether a table has rows, and a chart shows more than its table does, which are lines and bars over two
    places or more. Ideal lines have no measured places."""
    if isinstance(block, Table):
        return bool(block.rows)
    if not isinstance(block, Chart):
        return True
    measured = [series for series in block.series if series.style != "ideal"]
    return len({x for series in measured for x, y in zip(series.x, series.y, strict=True) if y is not None}) > 1


def scale_units(chart: Chart) -> Chart:
    """Return the chart with its values in a unit that suits the largest of them, which the axis names: ms, MB."""
    if not chart.y.unit:
        return chart
    figures = (abs(y) for series in chart.series for y in series.y if y is not None and math.isfinite(y))
    size, unit = units.choose_unit(max(figures, default=0.0), units.UNITS[chart.y.unit])

    def scale(values: Sequence[Number]) -> list[Number]:
        return [None if value is None else value / size for value in values]

    scaled = [
        replace(series, y=scale(series.y), low=scale(series.low), high=scale(series.high),
                fit=[value / size for value in series.fit],
                repeats=[[value / size for value in values] for values in series.repeats])
        for series in chart.series
    ]  # fmt: skip
    return replace(chart, y=replace(chart.y, title=f"{chart.y.title} ({unit})", unit=""), series=scaled)


def stack_lengths(chart: Chart) -> list[list[Number]]:
    """Return the lengths of the bars of each series of a stack: none below zero, and shares only up to 100 %."""
    ends: dict[float | str, float] = {}
    lengths: list[list[Number]] = []
    for series in chart.series:
        lengths.append([])
        for x, y in zip(series.x, series.y, strict=True):
            begin = ends.get(x, 0.0)
            length = None if y is None or y < 0 else max(0.0, min(y, 1.0 - begin)) if chart.y.percent else y
            ends[x] = begin + (length or 0.0)
            lengths[-1].append(length)
    return lengths


def format_value(value: float, axis: Axis) -> str:
    """Return `93.0 %` for a share, `1,234` or `12.34` for another figure."""
    if axis.percent:
        return f"{100 * value:z.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def join_sentences(*parts: str) -> str:
    """Join parts as sentences, each with a capital and a full stop; empty parts are left out."""
    return " ".join(f"{part[0].upper()}{part[1:].rstrip('.')}." for part in parts if part)


def downsample(points: Sequence[tuple[float, float]], max_points: int) -> Points:
    """Reduce a series to at most `max_points` points (four or more): the first, the last, and the lowest and highest of
    each of several stretches of equal length, so that short dips and peaks stay visible."""
    if len(points) <= max_points:
        return list(points)
    inner, stretches = points[1:-1], (max_points - 2) // 2
    selected = [points[0]]
    for number in range(stretches):
        begin, end = (len(inner) * edge // stretches for edge in (number, number + 1))
        values = [value for _, value in inner[begin:end]]
        selected += [inner[begin + i] for i in sorted({values.index(min(values)), values.index(max(values))})]
    return [*selected, points[-1]]
