"""The section `strategies` of a report: the table of the terminal, a row for each configuration. Layer 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scalebench.report import tables
from scalebench.report.document import (
    MOST_ROWS,
    THROUGHPUT,
    Block,
    Cell,
    Code,
    Row,
    Section,
    Table,
    Words,
    cell,
    sentences,
    tags,
)
from scalebench.report.flag_text import intervals, repeats, text
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd

MOST_COMMANDS = 10
EQUALS = ["model", "dataset", "hardware", "scaling", "gpus"]  # rows that compete with each other
Column = Callable[[dict[str, Any]], Cell]


def section(evidence: Evidence) -> Section | None:
    """None where there is no row at all."""
    if evidence.pooled.empty:
        return None
    kept = _best(evidence.pooled)
    blocks: list[Block] = [_table(kept, evidence.given)]
    if len(kept) < len(evidence.pooled):
        said = f"{len(evidence.pooled):,} configurations are more than a table can show: these are the {len(kept)} that"
        blocks.insert(0, Words(f"{said} come first in throughput among those of their number of devices."))
    return Section("strategies", "Strategies", [*blocks, *_missing(kept)])


def _best(pooled: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_ROWS rows, those that rank best by throughput among their equals; failed ones come last."""
    rank = pooled.groupby(EQUALS, dropna=False)[THROUGHPUT].rank(ascending=False, method="min").astype(float)
    kept = rank.fillna(float("inf")).sort_values(kind="stable").index[:MOST_ROWS]
    return pooled.loc[pooled.index.isin(kept)]


def _table(frame: pd.DataFrame, given: str | None) -> Table:
    head, varying = tables.shared(frame)
    named = {name: _words(name) for name in [*varying, "strategy"]}
    figures = _figures(frame, given)
    told: dict[str, Column] = {"status": _words("status"), "remarks": lambda row: cell(tables.remarks(row))}
    columns = {**named, **figures, **told}
    rows = [
        Row([make(row) for make in columns.values()], tags(row))
        for row in frame.sort_values(tables.ORDER).to_dict("records")
    ]
    caption = sentences(head, intervals(frame))
    return Table("strategies", "All configurations", list(columns), rows, frozenset(figures), caption)


def _figures(frame: pd.DataFrame, given: str | None) -> dict[str, Column]:
    found: dict[str, Column] = {"gpus": _count("gpus")}
    if (repeats(frame) > 1).any():
        found["launches"] = _count("repeats")
    found["samples/s (95 %)"] = lambda row: cell(tables.throughput(row), row[THROUGHPUT])
    if frame["overhead_share"].notna().any():
        found["overhead at 1"] = _overhead
    against = {"bare": "bare", "self": "self"}
    if given is not None and "speedup_given" in frame and frame["speedup_given"].notna().any():
        against["given"] = f"against {given}"
    for kind, words in against.items():
        found[f"speedup {words}"] = _compared(tables.ratio, f"speedup_{kind}")
        found[f"efficiency {words}"] = _compared(tables.percent, f"efficiency_{kind}")
    found["epoch"] = lambda row: cell(tables.seconds(row["epoch_s"]), row["epoch_s"])
    return found


def _words(name: str) -> Column:
    return lambda row: cell(text(row[name]))


def _count(name: str) -> Column:
    return lambda row: cell(text(row[name]), row[name])


def _compared(show: Callable[[dict[str, Any], str], str], name: str) -> Column:
    return lambda row: cell(show(row, name), row[name])


def _overhead(row: dict[str, Any]) -> Cell:
    shown = tables.overhead(row)
    return cell(shown, row["overhead_share"]) if shown else Cell("")


def _missing(frame: pd.DataFrame) -> list[Block]:
    """Which rows have nobody to be compared with, and how they get it."""
    lacking = sum(bool(tables.missing_baselines(row)) for row in frame.to_dict("records"))
    if not lacking:
        return []
    commands = tables.baseline_commands(frame)
    said = f"{lacking} {'row lacks a baseline' if lacking == 1 else 'rows lack a baseline'} on one device, and with it"
    more = f" {len(commands) - MOST_COMMANDS} more commands are left out." if len(commands) > MOST_COMMANDS else ""
    title = "Measures them together with what they are compared with"
    return [
        Words(f"{said} speedup and efficiency; the remarks say which.{more}", "warning"),
        Code("\n".join(commands[:MOST_COMMANDS]), "sh", title),
    ]
