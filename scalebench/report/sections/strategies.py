"""The section `strategies` of a report: the table of all configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalebench.report.document import MAX_ROWS, THROUGHPUT, Block, Code, Paragraph, Section
from scalebench.report.repeat_commands import make_baseline_commands
from scalebench.report.report_data import ReportData
from scalebench.report.tables import find_missing_baselines, make_configuration_table

if TYPE_CHECKING:
    import pandas as pd

MAX_COMMANDS = 10
COMPETING_COLUMNS = ["model", "dataset", "hardware", "scaling", "gpus"]  # rows that agree in them compete


def section(report_data: ReportData) -> Section | None:
    """Return None if there is no row."""
    pooled = report_data.pooled
    if pooled.empty:
        return None
    kept = _select_best_rows(pooled)
    blocks: list[Block] = []
    if len(kept) < len(pooled):
        text = f"{len(pooled):,} configurations are more than a table can show: these are the {len(kept)} that"
        blocks.append(Paragraph(f"{text} come first in throughput among those of their number of devices."))
    blocks.append(make_configuration_table(kept, report_data.baseline_name))
    return Section("strategies", "Strategies", [*blocks, *_list_missing_baselines(kept)])


def _select_best_rows(pooled: pd.DataFrame) -> pd.DataFrame:
    """Keep the MAX_ROWS rows that rank best by throughput among their competitors; failed rows come last."""
    rank = pooled.groupby(COMPETING_COLUMNS, dropna=False)[THROUGHPUT].rank(ascending=False, method="min").astype(float)
    kept = rank.fillna(float("inf")).sort_values(kind="stable").index[:MAX_ROWS]
    return pooled.loc[pooled.index.isin(kept)]


def _list_missing_baselines(frame: pd.DataFrame) -> list[Block]:
    """Say how many rows lack a baseline, and which commands measure it."""
    count = sum(bool(find_missing_baselines(row)) for row in frame.to_dict("records"))
    if not count:
        return []
    commands = make_baseline_commands(frame)
    text = f"{count} {'row lacks a baseline' if count == 1 else 'rows lack a baseline'} on one device, and with it"
    more = f" {len(commands) - MAX_COMMANDS} more commands are left out." if len(commands) > MAX_COMMANDS else ""
    title = "Measures them together with what they are compared with"
    return [
        Paragraph(f"{text} speedup and efficiency; the remarks say which.{more}", "warning"),
        Code("\n".join(commands[:MAX_COMMANDS]), "sh", title),
    ]
