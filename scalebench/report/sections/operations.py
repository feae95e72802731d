"""The section `operations` of a report: where the time of an update goes, and the operations that take it. Layer 3.

What takes the time in the framework's own profile of some updates. Layer 3.

Where the time of an update goes, over strategies and devices: the parts that the frame has, and what they leave.
Layer 3.

The terminal tells the same of one run (breakdown.py); formulas: docs/measuring.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis import step_breakdown
from scalebench.analysis.scaling_curves import Curve, group_curves, format_group_title
from scalebench.core import units
from scalebench.core.result import Profile, Result
from scalebench.core.stats.estimates import Estimate
from scalebench.report import report_data
from scalebench.report.document import (
    MOST_CURVES,
    MOST_ROWS,
    Axis,
    Block,
    Cell,
    Cells,
    Chart,
    Row,
    Section,
    Series,
    Table,
    Words,
    tags,
)
from scalebench.report.flag_text import text
from scalebench.report.report_data import Evidence, inside, link
from scalebench.report.update_breakdown import BACKWARD, DATA, EXPOSED, FORWARD, NO_REASON, OPTIMIZER

MOST_OPERATIONS = 10
LONGEST_NAME = 60


def operations(result: Result) -> Iterator[RichTable | str]:
    """The largest of the first rank's profile, and what collectives take of kernels and of the clock."""
    profile = result.ranks[0].probes.profile if result.ranks[0].probes is not None else None
    if profile is None:
        yield f"top operations: - ({step_breakdown.unmeasured_reasons(result).get('profile', 'no profile was left')})"
        return
    yield f"top operations of rank 0, {profile.steps} updates under the profiler, which slows them down"
    yield top_operations(profile)
    yield collectives(result)


def top_operations(profile: Profile) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD)
    table.add_column("operation")
    for name in ("calls an update", "own time an update", "of all operations"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in profile.operations[:MOST_OPERATIONS]:
        name = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[: LONGEST_NAME - 3]}..."
        part = units.format_percent(one.self_s / profile.kernel_s) if profile.kernel_s else "-"
        kind = "collective" if one.collective else ""
        table.add_row(*map(Text, (name, f"{one.calls:,.4g}", units.format_seconds(one.self_s), part, kind)))
    return table


def collectives(result: Result) -> str:
    """Both shares in one line, for they are taken for each other."""
    of_kernels, of_steps = step_breakdown.collective_shares(result)
    if of_kernels is None or of_steps is None:
        return "collectives: the profile shows no operation that carries data between devices"
    return (
        f"collectives: {units.format_percent(of_kernels)} of the own time of all operations, and as long as "
        f"{units.format_percent(of_steps)} of an update by the clock; what they cost is neither, but exposed sync"
    )


# As an update goes: from its batch to the exchange.
PARTS = {
    "data_s": DATA,
    "forward_s": FORWARD,
    "backward_s": BACKWARD,
    "optimizer_s": OPTIMIZER,
    "sync_exposed_s": EXPOSED,
}
REST = "not in any of these"
UPDATE_PARTS_COLUMNS = ("run", "devices", "an update", *(part.name for part in PARTS.values()), REST, "not measured")
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
    for number, (group, members) in enumerate(group_curves(measured)):
        found.append(_table(evidence, number, format_group_title(group), members))
    found += [_stack(number, curve) for number, curve in enumerate(measured[:MOST_CURVES])]
    if len(measured) > MOST_CURVES:
        found.append(Words(f"{MOST_CURVES} of {len(measured)} curves are drawn; the frame has the parts of all."))
    return found


def _stack(number: int, curve: Curve) -> Chart:
    columns = {part.name: [row[name] for row in curve.rows] for name, part in PARTS.items()}
    columns[REST] = [rest_s(row) for row in curve.rows]
    places = [str(gpus) for gpus in curve.gpus]
    series = [Series(name, places, figures, tags=curve.tags) for name, figures in columns.items()]
    title = f"Where the time of an update goes: {curve.name}, {format_group_title(curve.group)}"
    return Chart(f"update-{number}", title, Axis("devices"), Axis("seconds of an update"), series, "stacked", CAPTION)


def _table(evidence: Evidence, number: int, title: str, curves: Sequence[Curve]) -> Table:
    told = set(evidence.detailed)
    rows = [(curve, row) for curve in curves for row in curve.rows]
    made = [Row(_cells(evidence, curve, row, told), curve.tags) for curve, row in rows[:MOST_ROWS]]
    more = f" {MOST_ROWS} of {len(rows)} rows." if len(rows) > MOST_ROWS else ""
    title = f"Where the time of an update goes: {title}"
    return Table(
        f"update-parts-{number}",
        title,
        UPDATE_PARTS_COLUMNS,
        made,
        frozenset(UPDATE_PARTS_COLUMNS[1:-1]),
        CAPTION + more,
    )


def _cells(evidence: Evidence, curve: Curve, row: Cells, told: set[str]) -> list[Cell]:
    left = rest_s(row)
    return [
        Cell(curve.name, curve.name),
        Cell(str(row["gpus"]), row["gpus"]),
        Cell(units.format_seconds(row["step_s"]), row["step_s"]),
        *(_part(row, name) for name in PARTS),
        Cell("" if left is None else units.format_seconds(left), left),
        Cell(_missing(evidence, row) if text(row["run_id"]) in told else ""),
    ]


def _part(row: Cells, name: str) -> Cell:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return Cell("")
    known = low is not None and high is not None
    return Cell(units.format_duration(Estimate(value, low, high)) if known else units.format_seconds(value), value)


def _missing(evidence: Evidence, row: Cells) -> str:
    """Each reason once, after the parts that have it."""
    names = [name for name in PARTS if row[name] is None]
    reasons = step_breakdown.unmeasured_reasons(evidence.result(row["run_id"])) if names else {}
    by_reason: dict[str, list[str]] = {}
    for name in names:
        why = next((reasons[own] for own in PARTS[name].reasons if own in reasons), NO_REASON)
        by_reason.setdefault(why, []).append(PARTS[name].name)
    return "; ".join(f"{', '.join(parts)}: {why}" for why, parts in by_reason.items())


MOST_RUNS = 12
COLUMNS = ("operation", "device", "calls an update", "own time an update", "of all operations", "collective")
OPENING = "A trace opens in the browser: drop the file into ui.perfetto.dev, or load it in chrome://tracing."


def section(evidence: Evidence) -> Section | None:
    """None where nothing went well."""
    found = evidence.curves
    if not found:
        return None
    rows = report_data.detailed(evidence)
    names = report_data.names(rows)
    by_id = {row["run_id"]: row for row in rows}
    wanted = [run_id for run_id in _best_and_largest(found) if run_id in by_id]
    blocks_ = blocks(evidence, found)
    without: dict[str, list[str]] = {}  # reason -> runs
    for number, run_id in enumerate(wanted[:MOST_RUNS]):
        result = evidence.result(run_id)
        if (table := _operations(result, number, names[run_id], by_id[run_id])) is None:
            without.setdefault(_why_not(result), []).append(names[run_id])
        else:
            blocks_ += [table, Words(f"{names[run_id]}: {collectives(result)}.", tags=tags(by_id[run_id]))]
    blocks_ += [Words(f"No operations of {'; '.join(whose)}: {why}.") for why, whose in without.items()]
    if len(wanted) > MOST_RUNS:
        blocks_.append(Words(f"Operations are told of {MOST_RUNS} of the {len(wanted)} best and largest runs."))
    blocks_ += _traces(evidence, rows, names)
    if said := report_data.left_out(evidence):
        blocks_.append(Words(said))
    return Section("operations", "What takes the time of an update", blocks_, folded=True)


def _best_and_largest(found: Sequence[Curve]) -> list[str]:
    """run_id of the highest throughput of each group, then of the most devices of each curve, once each."""
    best = [max((row for one in members for row in one.rows), key=_rate)["run_id"] for _, members in group_curves(found)]
    return list(dict.fromkeys([*map(str, best), *(str(curve.rows[-1]["run_id"]) for curve in found)]))


def _rate(row: dict[str, float]) -> float:
    return row["throughput_samples_per_s"]


def _operations(result: Result, number: int, name: str, row: report_data.Row) -> Table | None:
    probes = result.ranks[0].probes if result.ranks else None
    if probes is None or probes.profile is None:
        return None
    profile, made = probes.profile, []
    for one in profile.operations[:MOST_OPERATIONS]:
        shown = one.name if len(one.name) <= LONGEST_NAME else f"{one.name[: LONGEST_NAME - 3]}..."
        share = one.self_s / profile.kernel_s if profile.kernel_s else None
        cells = [
            Cell(shown, one.name), Cell(one.device, one.device), Cell(f"{one.calls:,.4g}", one.calls),
            Cell(units.format_seconds(one.self_s), one.self_s), Cell("" if share is None else units.format_percent(share), share),
            Cell("collective" if one.collective else "", "collective" if one.collective else None),
        ]  # fmt: skip
        made.append(Row(cells, tags(row)))
    caption = (
        f"The largest by own time, on rank 0, over {profile.steps} updates under the framework's profiler, which "
        "slows them down: the times compare with each other, and not with the update's own."
    )
    numeric = frozenset(COLUMNS[2:5])
    return Table(f"operations-{number}", f"Top operations: {name}", COLUMNS, made, numeric, caption)


def _why_not(result: Result) -> str:
    if any(rank.probes is None for rank in result.ranks):
        return "they were run without probes"
    return step_breakdown.unmeasured_reasons(result).get("profile", "no profile was left")


def _traces(evidence: Evidence, rows: Sequence[report_data.Row], names: dict[str, str]) -> Iterator[Block]:
    """Links to them, of all ranks or of one."""
    made = []
    for row in rows:
        result = evidence.result(row["run_id"])
        named = [("all ranks", result.trace)]
        named += [(f"rank {rank.rank}", rank.probes.trace) for rank in result.ranks if rank.probes is not None]
        for whose, name in named:
            path = None if name is None else inside(evidence.folder(row["run_id"]), name)
            if path is not None:
                there = link(evidence, path)
                cells = [
                    Cell(names[row["run_id"]], names[row["run_id"]]),
                    Cell(whose, whose),
                    Cell(there, there, there),
                ]
                made.append(Row(cells, tags(row)))
    if made:
        yield Table("traces", "Traces", ("run", "of", "file"), made[:MOST_ROWS], caption=OPENING)
