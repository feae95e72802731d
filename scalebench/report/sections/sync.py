"""The section `sync` of a report: what the exchange of gradients costs an update and an epoch. Layer 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from scalebench import probed
from scalebench.curves import Curve
from scalebench.pooling import LEAST
from scalebench.report import breakdown, units
from scalebench.report.blocks import Axis, Block, Chart, Row, Section, Table, Words
from scalebench.report.drawing import DEVICES, Cells, Group, bars, cell, duration, groups, sentences, series
from scalebench.report.evidence import Evidence

# Column, its name, what it is.
FIGURES = (
    ("sync_exposed_s", "exposed sync", "what the exchange adds to an update, straggler wait included; less is better"),
    ("sync_isolated_s", "isolated sync", "the exchange of an update alone, nothing to hide behind; less is better"),
    ("straggler_wait_s", "straggler wait", "how long the median device waits for the slowest one; less is better"),
)
SHARES = {
    "collective_step_share": "the wall time of an update",
    "collective_kernel_share": "the time of all operations",
}
NO_COMPARISON = (
    "Shares of collective operations do not compare between backends: each shows them where they run, and some wait "
    "within them. A backend can fill most of all operations' time and little of the update's. What backends cost "
    "compares by exposed sync."
)
UNPROBED = "no probes were made (measure.probes=true makes them)"


def section(evidence: Evidence) -> Section | None:
    """None where no run was on several devices."""
    found, words = groups(evidence.curves, lambda members: any(_exchanging(one) for one in members))
    blocks: list[Block] = [*words]
    for group in found:
        blocks += [*group.words, *_charts(group), *_table(group, evidence)]
    return Section("sync", "Synchronisation", blocks) if found else None


def _exchanging(curve: Curve) -> list[dict[str, Any]]:
    return [row for row in curve.rows if row["gpus"] > 1]


def _charts(group: Group) -> Iterator[Block]:
    for column, name, what in FIGURES:
        caption = sentences(what, _intervals(group))
        yield from _bars(group, column, name.capitalize(), Axis("seconds of an update"), caption)
    yield from _per_epoch(group)
    shares: list[Block] = []
    for column, of in SHARES.items():
        caption = sentences(f"what they take of {of} under the profiler; less is better, within one backend")
        shares += _bars(group, column, f"Collective operations, of {of}", Axis("share", percent=True), caption)
    yield from [*shares, Words(NO_COMPARISON, "warning", group.tags)] if shares else []


def _bars(group: Group, column: str, title: str, axis: Axis, caption: str) -> Iterator[Chart]:
    if drawn := bars([replace(curve, rows=_exchanging(curve)) for curve in group.curves], column):
        head = f"{title}: {group.title}"
        yield Chart(group.id("sync", column), head, Axis(DEVICES), axis, drawn, "bars", caption)


def _intervals(group: Group) -> str:
    """What those of the probes are over; these are never throughput's."""
    launches = sorted({row["repeats"] for curve in group.curves for row in _exchanging(curve)})
    over = ["over blocks of the probes of one launch"] if launches[0] == 1 else []
    over += [f"over {count} launches" for count in launches if count >= LEAST]
    return f"intervals: 95 %, {' or '.join(over)}" if over else ""


def _per_epoch(group: Group) -> Iterator[Chart]:
    """More devices make fewer updates of an epoch, each with a dearer exchange: which of the two wins?"""
    column, drawn = "sync_per_epoch_s", []
    for curve in group.curves:
        rows = [row for row in _exchanging(curve) if row["updates_per_epoch"] is not None and row[column] is not None]
        notes = [f"{row['gpus']} devices, {_count(row['exchanges_per_epoch'])} messages an epoch" for row in rows]
        one = series(curve.name, curve.tags, rows, "updates_per_epoch", column, column, notes)
        drawn += [] if one is None else [one]
    if drawn:
        caption = sentences(
            "exposed sync of all updates of an epoch over their number, one point for each number of devices; less is "
            "better. More devices make fewer updates: where a curve falls to the left, that saves more than the dearer "
            "exchanges cost"
        )
        x, y = Axis("updates an epoch"), Axis("seconds an epoch")
        yield Chart(group.id("sync", "epoch"), f"Sync of an epoch: {group.title}", x, y, drawn, "lines", caption)


def _table(group: Group, evidence: Evidence) -> Iterator[Table]:
    head = ["strategy", "gpus", *(name for _, name, _ in FIGURES), "sync per epoch", "updates per epoch", "messages"]
    detailed = set(evidence.detailed)
    rows = []
    for curve in group.curves:
        for row in _exchanging(curve):
            why = _reasons(row, evidence) if row["run_id"] in detailed else ""
            epoch_s = row["sync_per_epoch_s"]
            figures = [cell(duration(row, column), row[column]) for column, _, _ in FIGURES]
            figures += [cell("" if epoch_s is None else units.seconds(epoch_s), epoch_s)]
            figures += [cell(_count(row[name]), row[name]) for name in ("updates_per_epoch", "exchanges_per_epoch")]
            rows.append(Row([cell(curve.name), cell(str(row["gpus"]), row["gpus"]), *figures, cell(why)], curve.tags))
    caption = sentences("messages are those of an epoch", "not measured is empty, and the last column says why")
    title = f"Synchronisation: {group.title}"
    yield Table(group.id("sync", "table"), title, [*head, "remarks"], rows, frozenset(head[1:]), caption)


def _reasons(row: Cells, evidence: Evidence) -> str:
    """Why figures of this row are missing, as its first launch says."""
    missing = [(column, name) for column, name, _ in FIGURES if row[column] is None]
    if not missing:
        return ""
    result = evidence.result(str(row["run_id"]))
    if all(rank.probes is None for rank in result.ranks):
        return UNPROBED
    reasons, by_reason = probed.reasons(result), dict[str, list[str]]()
    for column, name in missing:
        by_reason.setdefault(reasons.get(probed.REASON_OF[column], breakdown.NO_REASON), []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
