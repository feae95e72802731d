"""The section `memory` of a report: how much of a model a device keeps under each strategy, who had room. Layer 3.

What a device has to hold under each strategy, in sentences and as cells of a table. Layer 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from scalebench.analysis.memory import RATE, ModelMemory, ShardingCost, bytes_per_parameter, group_by_model, format_strategy
from scalebench.analysis.memory import Row as MemoryRow
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.report import tables
from scalebench.report.document import (
    DEVICES,
    MOST_ROWS,
    Axis,
    Block,
    Cell,
    Chart,
    Group,
    Row,
    Section,
    Table,
    Words,
    bars,
    cell,
    groups,
    tags,
)
from scalebench.report.document import sentences as document_sentences
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd

MOST = 12  # sentences in a terminal
Shown = Callable[[ModelMemory, MemoryRow], Cell]


def summary(pooled: pd.DataFrame) -> RichTable | None:
    """For the terminal: None where every device keeps a whole model, and all had room for it."""
    found = [one for one in group_by_model(pooled) if one.out or any(map(one.keeps_less, one.rows))]
    rows = [(one, row) for one in found for row in one.rows]
    if not rows:
        return None
    shown = columns(rows)
    table = RichTable(box=box.SIMPLE_HEAD, collapse_padding=True)
    for head in shown:
        table.add_column(Text(head), justify="left" if head in WORDS else "right")
    for one, row in rows:
        table.add_row(*(Text(show(one, row).text) for show in shown.values()))
    return table


def sentences(pooled: pd.DataFrame) -> list[str]:
    """Those of the terminal, without full stops."""
    found = group_by_model(pooled)
    several = len({one.rows[0]["model"] for one in found}) > 1
    told = [f"{one.rows[0]['model']}, {said}" if several else said for one in found for said in of(one)]
    return told[:MOST] + ([f"memory: {len(told) - MOST} more are in the report"] if len(told) > MOST else [])


def of(one: ModelMemory) -> Iterator[str]:
    """What the figures of one model come to."""
    for competing in one.equals():
        yield from filter(None, (_kept(one, competing), _priced(one.price(competing)), _fits(competing)))
    yield from _largest(one.rows)
    if any(map(one.keeps_less, one.rows)) and not one.out:
        yield "no run was out of memory: nothing had to be cut to fit, and what is saved is room for more"


def _kept(one: ModelMemory, competing: Sequence[MemoryRow]) -> str | None:
    """`on 2 devices a device keeps of ... state, of the 2.46 MB of bare_torch: 50 % under fsdp_gloo`"""
    less = {format_strategy(row): row for row in competing if one.keeps_less(row)}
    if not less:
        return None
    parts: dict[str, str] = {}
    for name, row in less.items():
        whole, share = one.reference(row), one.share(row)
        assert whole is not None and share is not None
        by = f"of the {units.format_bytes(whole['state_bytes'])} of {format_strategy(whole)}"
        parts[by] = f"{parts[by]}, " if by in parts else ""
        parts[by] += f"{_percent(share)} under {name}"
    told = "; ".join(f"{by}: {shares}" for by, shares in parts.items())
    return f"{_where(competing[0])} a device keeps of weights, gradients and optimizer's state, {told}"


def _priced(price: ShardingCost | None) -> str | None:
    """`on 2 devices fsdp_gloo, the fastest that keeps less, has 0.94 [0.93, 0.95] times the samples/s of ...`"""
    if price is None:
        return None
    limits = price.interval
    low, high = (None, None) if limits is None else (limits.low, limits.high)
    times = tables.ratio({"x": price.ratio, "x_low": low, "x_high": high}, "x")
    doubt = ", without an interval to tell it from noise" if limits is None else ""
    if limits is not None and limits.low <= 1 <= limits.high:
        doubt = ", a difference that is not resolved"
    return (
        f"{_where(price.less)} {format_strategy(price.less)}, the fastest that keeps less, has {times} times the samples/s of "
        f"{format_strategy(price.whole)}, the fastest that keeps all{doubt}"
    )


def _fits(competing: Sequence[MemoryRow]) -> str | None:
    out = _names(row for row in competing if row["status"] == "oom")
    fit = _names(row for row in competing if row["status"] == "ok")
    if not out:
        return None
    return f"{_where(competing[0])} out of memory: {out}; {f'had room: {fit}' if fit else 'none had room'}"


def _largest(rows: Iterable[MemoryRow]) -> Iterator[str]:
    """`largest batch per device on 2 devices, within 1.50 GB a process: 1,500 under fsdp_gloo, 400 under ddp_gloo`"""
    found: dict[tuple[int, int | None], dict[str, int]] = {}
    for row in rows:
        if row["max_batch_per_device"] is not None:
            of_these = found.setdefault((row["gpus"], row["memory_limit_bytes"]), {})
            of_these[format_strategy(row)] = max(row["max_batch_per_device"], of_these.get(format_strategy(row), 0))
    for (gpus, limit), batches in found.items():
        within = "" if limit is None else f", within {units.format_bytes(limit)} a process"
        ordered = sorted(batches.items(), key=lambda one: -one[1])
        told = ", ".join(f"{batch:,} under {name}" for name, batch in ordered)
        yield f"largest batch per device on {_devices(gpus)}{within}: {told}"


def _names(rows: Iterable[MemoryRow]) -> str:
    return ", ".join(dict.fromkeys(map(format_strategy, rows)))


def _where(row: MemoryRow) -> str:
    return f"on {_devices(row['gpus'])}"


def _devices(gpus: int) -> str:
    return f"{gpus} {'device' if gpus == 1 else 'devices'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def columns(rows: Sequence[tuple[ModelMemory, MemoryRow]]) -> dict[str, Shown]:
    """By head: what every table of these has, and what any of the rows has. A figure that nobody could tell is an
    empty cell."""
    differ = [head for head, name in NAMED.items() if len({row[name] for _, row in rows}) > 1]
    known = [head for head, show in OPTIONAL.items() if any(show(one, row).text for one, row in rows)]
    wanted = [*differ, *ALWAYS, *known]
    return {head: show for head, show in COLUMNS.items() if head in wanted}


def _memory_words(name: str) -> Shown:
    return lambda one, row: cell(str(row[name]))


def _size(name: str) -> Shown:
    return lambda one, row: Cell("") if row[name] is None else cell(units.format_bytes(row[name]), row[name])


def _count(name: str) -> Shown:
    return lambda one, row: Cell("") if row[name] is None else cell(f"{row[name]:,}", row[name])


def _share(one: ModelMemory, row: MemoryRow) -> Cell:
    share = one.share(row)
    return Cell("") if share is None else cell(_percent(share), share)


def _each(one: ModelMemory, row: MemoryRow) -> Cell:
    each = bytes_per_parameter(row)
    return Cell("") if each is None else cell(f"{each:.1f} B", each)


def _rate(one: ModelMemory, row: MemoryRow) -> Cell:
    return cell(tables.throughput(dict(row)), row[RATE])


NAMED = {"model": "model", "data set": "dataset", "hardware": "hardware", "optimizer": "optimizer"}
COLUMNS: dict[str, Shown] = {
    **{head: _memory_words(name) for head, name in NAMED.items()},
    "strategy": lambda one, row: cell(format_strategy(row)),
    "gpus": _count("gpus"),
    "batch per device": _count("batch_per_device"),
    "samples/s (95 %)": _rate,
    "state of a device": _size("state_bytes"),
    "of a whole model": _share,
    "of a parameter": _each,
    "peak of a device": _size("peak_memory_bytes"),
    "all processes": _size("rss_anon_bytes_max"),
    "largest batch": _count("max_batch_per_device"),
    "status": _memory_words("status"),
}
ALWAYS = ("strategy", "gpus", "batch per device", "samples/s (95 %)", "state of a device", "peak of a device", "status")
OPTIONAL = {head: show for head, show in COLUMNS.items() if head not in (*ALWAYS, *NAMED)}
WORDS = frozenset((*NAMED, "strategy", "status"))

CAPTION = (
    "State of a device: weights, gradients and optimizer's state that it keeps from update to update, of the fullest "
    "device; an empty cell is what the framework cannot tell",
    "of a whole model: over that of the bare baseline of the same framework, or, where that is not among these, of the "
    "row on one device that keeps most",
    "to expect in float32 of a device that keeps all: for each parameter 4 bytes of weights, 4 of gradients and the "
    "optimizer's state, 8 with Adam, 4 with momentum (Rajbhandari et al. 2020, ZeRO, count 16 bytes for Adam in mixed "
    "precision)",
    "the peak of a device has activations in it too, and is counted on GPUs only",
    "all processes: the most that was resident of them together, without mapped files",
)


def section(evidence: Evidence) -> Section | None:
    """None where nobody told what a device keeps, and no run was out of memory."""
    found = group_by_model(evidence.pooled)
    rows = [(one, row) for one in found for row in one.rows]
    if not rows:
        return None
    blocks: list[Block] = [*(words for one in found for words in _words(one, len(found) > 1))]
    drawn, left_out = groups(evidence.curves, _differs)
    blocks += [_table(rows), *left_out, *(chart for group in drawn for chart in _chart(group))]
    return Section("memory", "Memory of a device", blocks)


def _words(one: ModelMemory, several: bool) -> Iterator[Words]:
    first = one.rows[0]
    tagged = {"model": str(first["model"]), "hardware": str(first["hardware"])}
    for said in of(one):
        yield Words(document_sentences(f"{first['model']}, {said}" if several else said), "plain", tagged)


def _table(rows: list[tuple[ModelMemory, Row]]) -> Table:
    shown = columns(rows)
    kept = rows[:MOST_ROWS]
    made = [Row([show(one, row) for show in shown.values()], tags(row)) for one, row in kept]
    more = f"{len(rows) - len(kept):,} rows more are in the frame" if len(kept) < len(rows) else ""
    caption = document_sentences(*CAPTION, more)
    return Table("memory-table", "What a device keeps", list(shown), made, frozenset(shown) - WORDS, caption)


def _differs(curves: list[Curve]) -> bool:
    """Whether bars of these would show anything but one height."""
    return len({row["state_bytes"] for curve in curves for row in curve.rows} - {None}) > 1


def _chart(group: Group) -> Iterator[Chart]:
    drawn = bars(group.curves, "state_bytes")
    caption = document_sentences(
        "weights, gradients and optimizer's state of the fullest device; less leaves room for more"
    )
    head = f"State of a device: {group.title}"
    yield Chart(group.id("memory", "state"), head, Axis(DEVICES), Axis("bytes"), drawn, "bars", caption)
