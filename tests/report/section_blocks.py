"""Sections of made-up sweeps, and what a test asks of their blocks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable

from scalebench.core.result import Result
from scalebench.report.document import Block, Chart, Paragraph, Section, Series, Table
from scalebench.report.report_data import ReportData, load_report_data
from tests.builders import sweeps

B = TypeVar("B", Chart, Table, Paragraph)
SCRIPT = "<script>alert(1)</script>"


def evidence(folder: Path, made: Sequence[Result] = (), **changes: Any) -> ReportData:
    """Of these runs; of the usual sweep where there are none."""
    if made:
        sweeps.write(folder, list(made))
    else:
        sweeps.sweep(folder)
    found = load_report_data([folder])
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def of_kind(section: Section | None, kind: type[B], id_begins: str = "") -> list[B]:
    assert section is not None
    found = [block for block in section.blocks if isinstance(block, kind)]
    return [block for block in found if getattr(block, "id", "").startswith(id_begins)]


def one(section: Section | None, kind: type[B], id_begins: str = "") -> B:
    (found,) = of_kind(section, kind, id_begins)
    return found


def ids(section: Section | None) -> list[str]:
    assert section is not None
    return [block.id for block in section.blocks if isinstance(block, Chart | Table)]


def named(chart: Chart, name: str) -> Series:
    (found,) = [series for series in chart.series if series.name == name]
    return found


def column(table: Table, head: str) -> dict[str, Any]:
    """Values of a column by the words of the row's first cells, up to the devices."""
    last = table.columns.index("gpus") if "gpus" in table.columns else 0
    names = [" ".join(cell.text for cell in row.cells[: last + 1]) for row in table.rows]
    assert len(set(names)) == len(names)
    number = table.columns.index(head)
    return {name: row.cells[number].value for name, row in zip(names, table.rows, strict=True)}


def frames_own(chart: Chart, pooled: pd.DataFrame, name: str, stem: str = "", x: str = "gpus") -> int:
    """Asserts that each point of the curves, whose names are strategies', is the frame's, limits too; how many."""
    points = 0
    for series in chart.series:
        if series.style in ("ideal", "published"):
            continue
        for place, at in enumerate(series.x):
            rows = pooled[(pooled["strategy"] == series.name) & (pooled[x] == at) & (pooled["status"] == "ok")]
            (row,) = rows.to_dict("records")
            assert series.y[place] == known(row[name])
            if series.low:
                assert (series.low[place], series.high[place]) == tuple(
                    known(row[f"{stem or name}_{end}"]) for end in ("low", "high")
                )
            assert series.tags["strategy"] == row["strategy"] and series.tags["hardware"] == row["hardware"]
            points += 1
    return points


def cell_texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row.cells] for row in table.rows]


def render(table: RichTable, width: int = 160) -> str:
    """The table without colour, lines stripped at their end."""
    console = Console(width=width, record=True, color_system=None, file=io.StringIO())
    console.print(table)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


def known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def texts(block: Block) -> str:
    """All that a block says."""
    if isinstance(block, Table):
        cells = [cell.text for row in block.rows for cell in row.cells]
        return " ".join([block.title, block.caption, *block.columns, *cells])
    if isinstance(block, Chart):
        return " ".join([block.title, block.caption, *(series.name for series in block.series)])
    return block.text
