"""What a report is made of, before anybody knows whether it becomes a page, Markdown or figures of a paper. Layer 3.

Sections make blocks of the frame; renderers (report/html, markdown.py, paper.py) show them. Texts are plain: a renderer
escapes them, and nothing in them is markup.

Rows of the frame as parts of charts and tables: what sections of a report have in common. Layer 3.

Long series with fewer points, on which a short dip or peak can still be seen. Layer 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from scalebench.analysis.scaling_curves import Curve, group_curves, format_group_title
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.report.flag_text import intervals, number, text

Number = float | None  # None: not measured
Tags = Mapping[str, str]  # model, strategy, hardware: what a reader can filter by; a missing one is never filtered


@dataclass(frozen=True)
class Axis:
    """`title` with its unit; `log` where figures go over decades."""

    title: str
    log: bool = False
    percent: bool = False  # figures are shares
    from_zero: bool = True
    ticks: Sequence[float] | None = None  # such as the numbers of devices


@dataclass(frozen=True)
class Series:
    """Points of one line, or bars; `low` and `high` are 95 % limits, absent or None where there is no interval."""

    name: str
    x: Sequence[float | str]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    tags: Tags = field(default_factory=dict)
    style: Literal["line", "ideal", "published", "points"] = "line"
    notes: Sequence[str] = ()  # one for each point, shown beside it on demand
    point_tags: Sequence[Tags] = ()  # one for each point, where they differ: bars of several strategies


@dataclass(frozen=True)
class Chart:
    """`lines` over numbers; `bars` beside each other, `stacked` upon each other (negative ones below zero)."""

    id: str  # unique in a report; [a-z0-9-]+
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    caption: str = ""  # what it shows and of what the band is the interval


@dataclass(frozen=True)
class Cell:
    """`text` is shown; `value` is what a column is sorted by, and what tests compare with the frame."""

    text: str
    value: float | str | None = None
    link: str | None = None  # a file beside the report, relative to it


@dataclass(frozen=True)
class Row:
    cells: Sequence[Cell]
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """`numeric` columns stand to the right."""

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    numeric: frozenset[str] = frozenset()
    caption: str = ""


@dataclass(frozen=True)
class Words:
    """A paragraph; `warning` is set apart."""

    text: str
    kind: Literal["plain", "answer", "warning"] = "plain"
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True)
class Code:
    """Lines to copy: a command or a few lines of a program. `log`: the end of a log, folded away."""

    text: str
    language: str = "sh"  # sh | python | yaml | log
    title: str = ""
    tags: Tags = field(default_factory=dict)


Block = Chart | Table | Words | Code


@dataclass(frozen=True)
class Section:
    id: str  # [a-z0-9-]+
    title: str
    blocks: Sequence[Block]
    folded: bool = False  # opened on demand


Points = list[tuple[float, float]]


def thin(points: Sequence[tuple[float, float]], most: int) -> Points:
    """At most `most` (four or more) of these points, in their order: the first, the last, and the lowest and the
    highest of each of as many stretches, equal in points, as there is room for."""
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], (most - 2) // 2
    kept = [points[0]]
    for stretch in range(stretches):
        begin, end = (len(inner) * edge // stretches for edge in (stretch, stretch + 1))
        values = [value for _, value in inner[begin:end]]
        kept += [inner[begin + i] for i in sorted({values.index(min(values)), values.index(max(values))})]
    return [*kept, points[-1]]


MOST_CURVES = 24  # of a chart; more cannot be told apart
MOST_GROUPS = 12  # of a section
MOST_ROWS = 200  # of a table
TAGS = ("model", "strategy", "hardware")
SLUG = 60  # characters
THROUGHPUT = "throughput_samples_per_s"
DEVICES = "devices"

Cells = Mapping[str, Any]  # of one row of the frame


def tags(row: Cells) -> dict[str, str]:
    return {name: text(row[name]) for name in TAGS}


def cell(shown: str, figure: Any = None) -> Cell:
    """One that shows a figure of the frame, or words."""
    return Cell(shown, (shown or None) if figure is None else number(figure))


def lines(curves: Iterable[Curve], column: str, stem: str = "") -> list[Series]:
    """A column over devices, with the limits that `<stem>_low` and `_high` have, of the curves of which anything is
    known. A row without the figure is a gap."""
    made = [series(curve.name, curve.tags, curve.rows, "gpus", column, stem or column) for curve in curves]
    return [one for one in made if one is not None]


def bars(curves: Iterable[Curve], column: str) -> list[Series]:
    """The same to stand beside each other, with no bar where a figure is missing."""
    made = []
    for one in lines(curves, column):
        kept = [i for i, y in enumerate(one.y) if y is not None]
        low, high = ([limits[i] for i in kept] if limits else () for limits in (one.low, one.high))
        made.append(replace(one, x=[one.x[i] for i in kept], y=[one.y[i] for i in kept], low=low, high=high))
    return made


def series(
    name: str,
    tagged: Mapping[str, str],
    rows: Sequence[Cells],
    x: str,
    column: str,
    stem: str,
    notes: Sequence[str] = (),
) -> Series | None:
    """A column of rows over the column `x`, which all of them have; None where nothing of it is known."""
    figures = [number(row.get(column)) for row in rows]
    known = sum(figure is not None for figure in figures)
    if not known:
        return None
    low, high = ([number(row.get(f"{stem}_{end}")) for row in rows] for end in ("low", "high"))
    limited = any(limit is not None for limit in (*low, *high))
    return Series(
        name,
        [float(row[x]) for row in rows],
        figures,
        low if limited else (),
        high if limited else (),
        dict(tagged),
        "points" if known == 1 else "line",
        notes,
    )


def duration(row: Cells, column: str) -> str:
    """`1.35 ms [1.20, 1.51]`; empty where it was not measured."""
    value, low, high = (number(row[name]) for name in (column, f"{column}_low", f"{column}_high"))
    if value is None:
        return ""
    return units.format_seconds(value) if low is None or high is None else units.format_duration(Estimate(value, low, high))


def with_epoch_limits(row: Cells) -> dict[str, Any]:
    """The row with the limits of an epoch's time: throughput's, turned round."""
    epoch_s, rate = row["epoch_s"], row[THROUGHPUT]
    limits = {"epoch_s_low": row["throughput_high"], "epoch_s_high": row["throughput_low"]}
    return {**row, **{name: epoch_s * rate / one if epoch_s and one else None for name, one in limits.items()}}


def devices_axis(drawn: Sequence[Series]) -> Axis:
    return Axis(DEVICES, ticks=sorted({float(x) for one in drawn for x in one.x}))


def bands(curves: Sequence[Curve]) -> str:
    """What the intervals of these curves are over; empty where there are none."""
    import pandas as pd

    kept = ["interval_over", "repeats", "status"]
    rows = [{name: row[name] for name in kept} for curve in curves for row in curve.rows]
    return intervals(pd.DataFrame(rows, columns=kept))


def sentences(*parts: str) -> str:
    """Each with a capital and a full stop; empty ones are left out."""
    return " ".join(f"{part[0].upper()}{part[1:].rstrip('.')}." for part in parts if part)


@dataclass(frozen=True)
class Group:
    """What may be drawn together, and what was left out of it."""

    number: int  # in the report
    shared: dict[str, str]
    curves: list[Curve]
    words: list[Words]

    @property
    def title(self) -> str:
        return format_group_title(self.shared)

    def id(self, *words: str) -> str:
        """Of a block: of the section and the figure, the number of the group, which makes it the only one, and what
        the group is."""
        named = re.sub(r"[^a-z0-9]+", "-", " ".join((*words, str(self.number), self.title)).lower())
        return named.strip("-")[:SLUG].strip("-")

    @property
    def tags(self) -> dict[str, str]:
        """Of what belongs to all its curves, whose strategies differ."""
        return {"model": self.shared["model"], "hardware": self.shared["hardware"]}


def groups(found: Iterable[Curve], wanted: Callable[[list[Curve]], bool] = bool) -> tuple[list[Group], list[Words]]:
    """(groups of curves that are `wanted`, what was left out in words): of many the MOST_GROUPS with the most rows,
    of each the MOST_CURVES best."""
    all_of_them = [(shared, members) for shared, members in group_curves(found) if wanted(members)]
    rows = [sum(len(curve.rows) for curve in members) for _, members in all_of_them]
    kept = sorted(sorted(range(len(rows)), key=lambda i: (-rows[i], i))[:MOST_GROUPS])
    made = [Group(n, all_of_them[i][0], *best(all_of_them[i][1])) for n, i in enumerate(kept, 1)]
    said = f"{len(rows)} combinations of model, data set, hardware, scaling and batch were measured: drawn are the"
    left = [Words(f"{said} {MOST_GROUPS} with the most rows; the frame has all of them.")]
    return made, left if len(kept) < len(rows) else []


def best(curves: Sequence[Curve], most: int = MOST_CURVES) -> tuple[list[Curve], list[Words]]:
    """(the curves that are best or nearest to it at some number of devices, in order; what was left out, in words)."""
    if len(curves) <= most:
        return list(curves), []
    by_gpus: dict[int, list[tuple[float, int]]] = {}
    for i, curve in enumerate(curves):
        for row in curve.rows:
            by_gpus.setdefault(row["gpus"], []).append((-row[THROUGHPUT], i))
    place: dict[int, int] = {}
    for rates in by_gpus.values():
        for rank, (_, i) in enumerate(sorted(rates)):
            place[i] = min(place.get(i, rank), rank)
    kept = sorted(sorted(place, key=lambda i: (place[i], i))[:most])
    said = f"{len(curves)} curves are more than a chart can show: these are the {most} that come first in throughput at"
    return [curves[i] for i in kept], [Words(f"{said} some number of devices; the frame has all of them.")]
