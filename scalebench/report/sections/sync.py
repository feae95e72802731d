"""The section `sync` of a report: what the exchange of gradients costs an update and an epoch. Layer 3.

Collective operations and bandwidths for people: terminal tables, and who overtakes whom in words. Layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis import step_breakdown
from scalebench.analysis.collectives import compare_operations
from scalebench.analysis.identity import OPERATION_COLUMNS
from scalebench.analysis.repeats import MIN_REPEATS
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.result import COLLECTIVES
from scalebench.core.units import format_binary_bytes
from scalebench.report import update_breakdown as breakdown
from scalebench.report.document import (
    DEVICES,
    Axis,
    Block,
    Cells,
    Chart,
    Group,
    Row,
    Section,
    Table,
    Words,
    bars,
    cell,
    duration,
    groups,
    series,
)
from scalebench.report.document import sentences as document_sentences
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd

# Column, its name, what it is.
FIGURES = (
    ("sync_exposed_s", "exposed sync", "what the exchange adds to an update, straggler wait included; less is better"),
    ("sync_isolated_s", "isolated sync", "the exchange of an update alone, nothing to hide behind; less is better"),
    ("imbalance_s", "straggler wait", "how long the median device waits for the slowest one; less is better"),
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
        caption = document_sentences(what, _intervals(group))
        yield from _bars(group, column, name.capitalize(), Axis("seconds of an update"), caption)
    yield from _per_epoch(group)
    shares: list[Block] = []
    for column, of in SHARES.items():
        caption = document_sentences(f"what they take of {of} under the profiler; less is better, within one backend")
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
    over += [f"over {count} launches" for count in launches if count >= MIN_REPEATS]
    return f"intervals: 95 %, {' or '.join(over)}" if over else ""


def _per_epoch(group: Group) -> Iterator[Chart]:
    """More devices make fewer updates of an epoch, each with a dearer exchange: which of the two wins?"""
    column, drawn = "sync_per_epoch_s", []
    for curve in group.curves:
        rows = [row for row in _exchanging(curve) if row["steps_per_epoch"] is not None and row[column] is not None]
        notes = [f"{row['gpus']} devices, {_count(row['syncs_per_epoch'])} messages an epoch" for row in rows]
        one = series(curve.name, curve.tags, rows, "steps_per_epoch", column, column, notes)
        drawn += [] if one is None else [one]
    if drawn:
        caption = document_sentences(
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
            figures += [cell("" if epoch_s is None else units.format_seconds(epoch_s), epoch_s)]
            figures += [cell(_count(row[name]), row[name]) for name in ("steps_per_epoch", "syncs_per_epoch")]
            rows.append(Row([cell(curve.name), cell(str(row["gpus"]), row["gpus"]), *figures, cell(why)], curve.tags))
    caption = document_sentences(
        "messages are those of an epoch", "not measured is empty, and the last column says why"
    )
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
    reasons, by_reason = step_breakdown.unmeasured_reasons(result), dict[str, list[str]]()
    for column, name in missing:
        by_reason.setdefault(reasons.get(step_breakdown.REASON_KEYS[column], breakdown.NO_REASON), []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


GIGA = 1e9


def tables(frame: pd.DataFrame) -> list[RichTable]:
    """Of scalebench.collectives: one for each operation and number of devices, sizes down, strategies across."""
    order = {name: number for number, name in enumerate(COLLECTIVES)}
    groups = sorted(frame.groupby(OPERATION_COLUMNS), key=lambda group: (*group[0][:-1], order.get(group[0][-1], 0)))
    return [_collectives_table(dict(zip(OPERATION_COLUMNS, key, strict=True)), rows) for key, rows in groups]


def sentences(frame: pd.DataFrame) -> list[str]:
    """One for each two strategies and operation: who is faster, and from which size on."""
    return [comparison.sentence() for comparison in compare_operations(frame)]


def bandwidth_table(frame: pd.DataFrame) -> RichTable:
    """Of scalebench.bandwidth: one row for each transfer."""
    table = RichTable(title=Text("bandwidth"), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("strategy", "gpus", "transfer", "ranks", "size", "GB/s (95 %)"):
        table.add_column(name, justify="right" if name in ("gpus", "size", "GB/s (95 %)") else "left")
    for row in frame.to_dict("records"):
        rate = _with_limits(row["bytes_per_s"] / GIGA, row["bytes_per_s_low"], row["bytes_per_s_high"])
        size = format_binary_bytes(row["size_bytes"])
        table.add_row(*map(Text, (row["strategy"], str(row["gpus"]), row["kind"], _ranks(row), size, rate)))
    return table


def _collectives_table(key: dict[str, Any], rows: pd.DataFrame) -> RichTable:
    over = f" on {key['nodes']} nodes" if key["nodes"] > 1 else ""
    title = f"{key['name']} on {key['gpus']} devices{over} ({key['framework']}, {key['hardware']})"
    table = RichTable(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("size", justify="right")
    strategies = sorted(rows["strategy"].unique())
    for strategy in strategies:
        table.add_column(f"{strategy} (95 %)", justify="right")
        table.add_column("busbw", justify="right")
    for size, same in rows.groupby("size_bytes"):
        cells = [format_binary_bytes(size)]
        for strategy in strategies:
            mine = same[same["strategy"] == strategy]
            cells += _cells(mine) if len(mine) else ["", ""]
        table.add_row(*map(Text, cells))
    return table


def _cells(rows: pd.DataFrame) -> list[str]:
    """Time and bus bandwidth, means over the runs, between the lowest and the highest of their limits."""
    taken, low, high = rows["time_s"].mean(), rows["time_low"].min(), rows["time_high"].max()
    busbw = rows["busbw_bytes_per_s"].mean()
    return [f"{time_words(taken)} ± {100 * (high - low) / 2 / taken:.0f} %", rate_words(busbw)]


def time_words(taken_s: float) -> str:
    """`12.3 µs`"""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if taken_s * factor < 1000:
            return f"{taken_s * factor:.3g} {unit}"
    return f"{taken_s:.3g} s"


def rate_words(bytes_per_s: float) -> str:
    """`12.3 MB/s`, in powers of ten, as links are given."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if bytes_per_s < 1000:
            return f"{bytes_per_s:.3g} {unit}"
        bytes_per_s /= 1000
    return f"{bytes_per_s:.3g} GB/s"


def _with_limits(rate: float, low: Any, high: Any) -> str:
    return f"{rate:.3g}" if _unknown(high) else f"{rate:.3g} [{low / GIGA:.3g}, {high / GIGA:.3g}]"


def _ranks(row: dict[str, Any]) -> str:
    if _unknown(row["source"]):
        return "all"
    if row["source"] == row["target"]:
        return str(row["source"])
    return f"{row['source']} {'<->' if 'both_ways' in row['kind'] else '->'} {row['target']}"


def _unknown(value: Any) -> bool:
    return str(value) in ("<NA>", "nan", "None")
