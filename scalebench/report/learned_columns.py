"""What the terminal tells of trainings to a stop: how good the models became, and when, in a table below that of the
throughput, which fills a window by itself. Layer 3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.report import tables, units
from scalebench.report.words import number, text

if TYPE_CHECKING:
    import pandas as pd

Shown = Callable[[dict[str, Any]], str]
SPEEDUPS = {"bare": "to target over bare", "self": "to target over self"}


def summary(frame: pd.DataFrame) -> Table | None:
    """Strategy by devices: length, metric, gap, time to target and how many times sooner that is, beside the speedup in
    throughput. None where no run trained to a stop."""
    trained = frame[frame["stopped_by"].notna()]
    if not len(trained):
        return None
    (_, varying), shown = tables.shared(trained), columns(trained)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for name in [*varying, "strategy"]:
        table.add_column(name)
    for name in ("gpus", *shown):
        table.add_column(Text(name), justify="right")
    table.add_column("stopped by")
    for row in trained.sort_values(tables.ORDER).to_dict("records"):
        cells = [tables.setting(row[name]) for name in [*varying, "strategy", "gpus"]]
        table.add_row(*map(Text, [*cells, *(of(row) for of in shown.values()), text(row["stopped_by"])]))
    return table


def columns(frame: pd.DataFrame) -> dict[str, Shown]:
    """What to show of each row, by the column's head: as far as any row has it."""
    found: dict[str, Shown] = {"epochs": partial(_figure, "trained_epochs"), "training": _trained_s}
    metrics = frame.loc[frame["metric"].notna(), "metric_name"].dropna().unique()
    if len(metrics):
        found |= {"metric": _metric} if len(metrics) > 1 else {text(metrics[0]): partial(_figure, "metric")}
    if frame["generalisation_gap"].notna().any():
        found["gap"] = partial(_figure, "generalisation_gap")
    if frame["target"].notna().any():
        found["time to target"] = _time_to_target
    for kind, head in SPEEDUPS.items():
        if _tells_more(frame, f"speedup_target_{kind}"):
            found[head] = partial(_ratio, f"speedup_target_{kind}")
            found[f"samples/s over {kind}"] = partial(_ratio, f"speedup_{kind}")
    return found


def _tells_more(frame: pd.DataFrame, name: str) -> bool:
    """Whether a row has it, and another one than the speedup over bare."""
    known = frame[frame[name].notna()]
    over_bare = known["speedup_target_bare"]
    if name == "speedup_target_bare":
        return len(known) > 0
    return bool((over_bare.isna() | (over_bare != known[name]).fillna(True)).any())


def _figure(name: str, row: dict[str, Any]) -> str:
    value = number(row[name])
    return "" if value is None else f"{value:.3g}"


def _trained_s(row: dict[str, Any]) -> str:
    value = number(row["trained_s"])
    return "" if value is None else units.seconds(value)


def _metric(row: dict[str, Any]) -> str:
    value = _figure("metric", row)
    return f"{text(row['metric_name'])} {value}" if value else ""


def _time_to_target(row: dict[str, Any]) -> str:
    """Also that it never got there, which is no fault of the run."""
    value = number(row["time_to_target_s"])
    if value is not None:
        return units.seconds(value)
    return "not reached" if row["status"] == "ok" and number(row["target"]) is not None else ""


def _ratio(name: str, row: dict[str, Any]) -> str:
    value = number(row[name])
    return "" if value is None else f"{value:.2f}"
