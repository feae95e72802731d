"""Where the time of an update goes, over strategies and devices: the parts that the frame has, and what they leave.
Layer 3.

The terminal tells the same of one run (breakdown.py); formulas: docs/measuring.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalebench import probed
from scalebench.curves import Curve, grouped, title_of
from scalebench.report import units
from scalebench.report.blocks import Axis, Block, Cell, Chart, Row, Series, Table, Words
from scalebench.report.breakdown import BACKWARD, DATA, EXPOSED, FORWARD, NO_REASON, OPTIMIZER
from scalebench.report.drawing import MOST_CURVES, MOST_ROWS, Cells
from scalebench.report.evidence import Evidence
from scalebench.report.words import text
from scalebench.stats import Interval

# As an update goes: from its batch to the exchange.
PARTS = {
    "data_s": DATA,
    "forward_s": FORWARD,
    "backward_s": BACKWARD,
    "optimizer_s": OPTIMIZER,
    "sync_exposed_s": EXPOSED,
}
REST = "not in any of these"
COLUMNS = ("run", "devices", "an update", *(part.name for part in PARTS.values()), REST, "not measured")
CAPTION = (
    "Seconds of one update. Exposed sync is what the exchange adds to an update, the wait for the slowest device "
    "included; what hides behind the backward pass is not in it. The rest is an update less the parts that were "
    "measured, below zero where they add up to more within noise."
)


def rest_s(row: Cells) -> float | None:
    """An update of a row less its known parts; None where no part is known."""
    known = [row[name] for name in PARTS if row[name] is not None]
    return row["step_s"] - math.fsum(known) if known and row["step_s"] is not None else None


def blocks(evidence: Evidence, curves: Sequence[Curve]) -> list[Block]:
    """A table for each group of curves, and a stack for each curve; a sentence where nothing is known."""
    known = [(curve, [row for row in curve.rows if rest_s(row) is not None]) for curve in curves]
    measured = [Curve(curve.name, curve.group, curve.tags, rows) for curve, rows in known if rows]
    if not measured:
        return [Words("Where the time of an update goes was not measured: these runs have no probes (measure.probes).")]
    found: list[Block] = []
    for number, (group, members) in enumerate(grouped(measured)):
        found.append(_table(evidence, number, title_of(group), members))
    found += [_stack(number, curve) for number, curve in enumerate(measured[:MOST_CURVES])]
    if len(measured) > MOST_CURVES:
        found.append(Words(f"{MOST_CURVES} of {len(measured)} curves are drawn; the frame has the parts of all."))
    return found


def _stack(number: int, curve: Curve) -> Chart:
    columns = {part.name: [row[name] for row in curve.rows] for name, part in PARTS.items()}
    columns[REST] = [rest_s(row) for row in curve.rows]
    places = [str(gpus) for gpus in curve.gpus]
    series = [Series(name, places, figures, tags=curve.tags) for name, figures in columns.items()]
    title = f"Where the time of an update goes: {curve.name}, {title_of(curve.group)}"
    return Chart(f"update-{number}", title, Axis("devices"), Axis("seconds of an update"), series, "stacked", CAPTION)


def _table(evidence: Evidence, number: int, title: str, curves: Sequence[Curve]) -> Table:
    told = set(evidence.detailed)
    rows = [(curve, row) for curve in curves for row in curve.rows]
    made = [Row(_cells(evidence, curve, row, told), curve.tags) for curve, row in rows[:MOST_ROWS]]
    more = f" {MOST_ROWS} of {len(rows)} rows." if len(rows) > MOST_ROWS else ""
    title = f"Where the time of an update goes: {title}"
    return Table(f"update-parts-{number}", title, COLUMNS, made, frozenset(COLUMNS[1:-1]), CAPTION + more)


def _cells(evidence: Evidence, curve: Curve, row: Cells, told: set[str]) -> list[Cell]:
    left = rest_s(row)
    return [
        Cell(curve.name, curve.name),
        Cell(str(row["gpus"]), row["gpus"]),
        Cell(units.seconds(row["step_s"]), row["step_s"]),
        *(_part(row, name) for name in PARTS),
        Cell("" if left is None else units.seconds(left), left),
        Cell(_missing(evidence, row) if text(row["run_id"]) in told else ""),
    ]


def _part(row: Cells, name: str) -> Cell:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return Cell("")
    known = low is not None and high is not None
    return Cell(units.duration(Interval(value, low, high)) if known else units.seconds(value), value)


def _missing(evidence: Evidence, row: Cells) -> str:
    """Each reason once, after the parts that have it."""
    names = [name for name in PARTS if row[name] is None]
    reasons = probed.reasons(evidence.result(row["run_id"])) if names else {}
    by_reason: dict[str, list[str]] = {}
    for name in names:
        why = next((reasons[own] for own in PARTS[name].reasons if own in reasons), NO_REASON)
        by_reason.setdefault(why, []).append(PARTS[name].name)
    return "; ".join(f"{', '.join(parts)}: {why}" for why, parts in by_reason.items())
