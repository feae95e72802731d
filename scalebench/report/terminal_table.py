"""A report's tables in a terminal. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.report import choice_tables
from scalebench.report.blocks import Table
from scalebench.results import read_result
from scalebench.run_folder import RESULT_FILE

if TYPE_CHECKING:
    import pandas as pd


def terminal_table(table: Table) -> RichTable:
    """With its title; its caption, for which a page has room, is left out."""
    made = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in table.columns:
        made.add_column(Text(name), justify="right" if name in table.numeric else "left")
    for row in table.rows:
        made.add_row(*(Text(cell.text) for cell in row.cells))
    return made


def data_or_model(pooled: pd.DataFrame) -> Iterator[RichTable | str]:
    """Tables, then lines, of the models and batches that were tried both ways; nothing where none was."""
    made = choice_tables.found(pooled, lambda row: read_result(Path(str(row["path"])) / RESULT_FILE))
    if not made:
        return
    yield terminal_table(choice_tables.exchanged(made))
    yield terminal_table(choice_tables.winners(made, limits=False))
    yield from choice_tables.unpredicted(made)
    yield from (said for said, _ in choice_tables.answers(made))
    if said := choice_tables.verdict(made):
        yield said
