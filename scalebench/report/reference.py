"""Rows of published studies in the terminal, below those that were measured. Layer 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench import published
from scalebench.curves import plain_rows
from scalebench.report.published_tables import alone

if TYPE_CHECKING:
    import pandas as pd

WHERE = "where"  # in which table of the study; for the page, which has room


def references(frame: pd.DataFrame, names: Sequence[str]) -> list[Table]:
    """A table for each study, without networks that `frame` has not, unless it has none of the study's. InputError for
    a name that is none."""
    models = {str(model) for model in frame["model"].dropna()}
    rows = plain_rows(published.rows(names))
    found = []
    for name in dict.fromkeys(names):
        own = [row for row in rows if row["study"] == name]
        others = [row for row in own if row["model"] is not None and row["model"] not in models]
        if not any(row["model"] in models for row in own):
            others = []
        left = f" Left out are {len(others)} rows of other networks." if others else ""
        found.append(_table(published.study(name), [row for row in own if row not in others], left))
    return found


def _table(study: published.Study, rows: Sequence[dict[str, Any]], left: str) -> Table:
    told = alone(study, rows)
    shown = [number for number, head in enumerate(told.columns) if head != WHERE]
    made = Table(
        title=Text(told.title), caption=Text(told.caption + left), title_justify="left", caption_justify="left",
        box=box.SIMPLE_HEAD, collapse_padding=True,
    )  # fmt: skip
    for number in shown:
        head = told.columns[number]
        made.add_column(head, justify="right" if head in told.numeric else "left")
    for row in told.rows:
        # Text, not str: rich would take brackets for markup.
        made.add_row(*(Text(row.cells[number].text) for number in shown))
    return made
