"""What a report is made of, before anybody knows whether it becomes a page, Markdown or figures of a paper. Layer 3.

Sections make blocks of the frame; renderers (report/html, markdown.py, paper.py) show them. Texts are plain: a renderer
escapes them, and nothing in them is markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
