"""Sections as what the template writes down: nothing is decided there, and nothing is markup here. Layer 3."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.report.document import Axis, Block, Cell, Chart, Code, Number, Section, Series, Table, Words
from scalebench.report.html.escaping import for_script, relative
from scalebench.report.html.plots import Looks, figure

DIMENSIONS = ("model", "strategy", "hardware")  # what a reader can filter by
FIGURES = 400  # points that the table of a chart has at most; of more it has each second, third ...
View = dict[str, Any]


@dataclass
class Renderer:
    """`home`: the folder that links of blocks are relative to; `beside`: the page's own."""

    sections: Sequence[Section]
    home: Path
    beside: Path
    looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        blocks = [block for section in self.sections for block in section.blocks]
        self.looks = Looks(block for block in blocks if isinstance(block, Chart))

    def views(self) -> list[View]:
        return [
            {"id": section.id, "title": section.title, "folded": section.folded, "groups": self._groups(section.blocks)}
            for section in self.sections
        ]

    def _groups(self, blocks: Sequence[Block]) -> list[list[View]]:
        """Charts that follow each other share a row where there is room; any other block has one of its own."""
        groups: list[list[View]] = []
        for block in blocks:
            view = self._view(block)
            if groups and view["kind"] == "chart" == groups[-1][0]["kind"]:
                groups[-1].append(view)
            else:
                groups.append([view])
        return groups

    def _view(self, block: Block) -> View:
        if isinstance(block, Chart):
            return self._chart(block)
        if isinstance(block, Table):
            return self._table(block)
        if isinstance(block, Words):
            return {"kind": "words", "text": block.text, "manner": block.kind, "tags": filtered(block.tags)}
        return _code(block)

    def _chart(self, chart: Chart) -> View:
        points = sum(len(series.x) for series in chart.series)
        step = max(1, math.ceil(points / FIGURES))
        return {
            "kind": "chart", "id": chart.id, "title": chart.title, "caption": chart.caption,
            "label": spoken(chart), "data": for_script(figure(chart, self.looks.of(chart))), "step": step,
            "heads": [chart.x.title, chart.y.title], "limits": any(series.low for series in chart.series),
            "notes": any(any(series.notes) for series in chart.series),
            "series": [_figures(chart, series, step) for series in chart.series],
        }  # fmt: skip

    def _table(self, table: Table) -> View:
        right = [column in table.numeric for column in table.columns]
        return {
            "kind": "table", "id": table.id, "title": table.title, "caption": table.caption,
            "columns": list(zip(table.columns, right, strict=True)),
            "rows": [
                {"tags": filtered(row.tags),
                 "cells": [self._cell(cell, number) for cell, number in zip(row.cells, right, strict=True)]}
                for row in table.rows
            ],
        }  # fmt: skip

    def _cell(self, cell: Cell, right: bool) -> View:
        value = None if cell.value is None or str(cell.value) == cell.text else str(cell.value)
        link = relative(cell.link, self.home, self.beside) if cell.link else None
        return {"text": cell.text, "value": value, "link": link, "right": right}


def choices(sections: Iterable[Section]) -> dict[str, list[str]]:
    """What can be filtered: of each dimension its values in order, where there are two or more."""
    found: dict[str, set[str]] = {name: set() for name in DIMENSIONS}
    for tags in (tags for section in sections for block in section.blocks for tags in _tags(block)):
        for name, value in filtered(tags).items():
            found[name].add(value)
    return {name: sorted(values) for name, values in found.items() if len(values) > 1}


def filtered(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: str(tags[name]) for name in DIMENSIONS if tags.get(name)}


def spoken(chart: Chart) -> str:
    """What a screen reader says instead of the drawing; the figures are in the table below it."""
    names = list(dict.fromkeys(series.name for series in chart.series))
    listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"{chart.title}: {chart.y.title} against {chart.x.title}, {listed}. The figures are in the table below."


def folder_of(path: Path) -> Path:
    """Where a report of `path`, a folder or a file of a result, is at home."""
    return path if path.is_dir() else path.parent


def shown(number: float | str | None, axis: Axis) -> str:
    if number is None or isinstance(number, str):
        return number or ""
    return f"{100 * number:.5g} %" if axis.percent else f"{number:.6g}"


def _figures(chart: Chart, series: Series, step: int) -> View:
    kept = range(0, len(series.x), step)
    return {"name": series.name, "tags": filtered(series.tags),
            "rows": [[shown(series.x[k], chart.x), shown(series.y[k], chart.y), shown(_at(series.low, k), chart.y),
                      shown(_at(series.high, k), chart.y), series.notes[k] if k < len(series.notes) else "",
                      filtered(series.point_tags[k]) if k < len(series.point_tags) else {}]
                     for k in kept]}  # fmt: skip


def _at(limits: Sequence[Number], number: int) -> Number:
    return limits[number] if number < len(limits) else None


def _code(code: Code) -> View:
    return {"kind": "code", "text": code.text.rstrip("\n"), "language": code.language, "title": code.title,
            "tags": filtered(code.tags)}  # fmt: skip


def _tags(block: Block) -> list[Mapping[str, str]]:
    if isinstance(block, Chart):
        return [tags for series in block.series for tags in (series.tags, *series.point_tags)]
    if isinstance(block, Table):
        return [row.tags for row in block.rows]
    return [block.tags]
