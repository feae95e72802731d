"""The parts that make up an update, what they do not explain, and what was measured beside them. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.analysis import throughput, update_breakdown
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.stats.estimates import Interval, scale, sum_interval

NO_REASON = "too few blocks for a figure"
NO_MESSAGES = "the messages of an update are not known"
UNRESOLVED = "cannot be told from 0"


@dataclass(frozen=True)
class Row:
    name: str
    figure: Callable[[Result], Interval | None]
    reasons: tuple[str, ...]  # quantities of the probes whose reason is this row's, the first that has one
    remark: str = ""


DATA = Row("data loading", update_breakdown.data, ("data",))
FORWARD = Row("forward", update_breakdown.forward, ("forward",))
BACKWARD = Row("backward", update_breakdown.backward, ("backward", "forward"))
OPTIMIZER = Row("optimizer", update_breakdown.optimizer, ("optimizer", "backward"))
EXPOSED = Row("exposed sync", update_breakdown.exposed, ("exposed",), "what the exchange adds to an update")
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER, EXPOSED)  # which make up an update, with the rest
BESIDE = (
    Row(
        "straggler wait",
        update_breakdown.straggler_wait,
        ("imbalance",),
        "of the median device for the slowest; in exposed sync",
    ),
    Row("isolated sync", update_breakdown.isolated, ("isolated",), "the exchange alone, with nothing to hide behind"),
    Row(
        "host-to-device copy",
        update_breakdown.copy,
        ("copy",),
        "of a batch, alone; hidden where batches are prefetched",
    ),
)


def breakdown(result: Result) -> Table:
    """The parts of an update, with their share of it, and what was measured beside them."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("part")
    for name in ("time (95 %)", "of an update"):
        table.add_column(name, justify="right")
    table.add_column("remark")
    step_s, step, reasons = throughput.step_s(result), step_interval(result), update_breakdown.reasons(result)

    def add(name: str, interval: Interval | None, remark: str) -> None:
        part = units.share(interval.value / step_s) if interval is not None and step_s else ""
        table.add_row(*map(Text, (name, "-" if interval is None else units.duration(interval), part, remark)))

    def add_row(row: Row) -> None:
        interval = row.figure(result)
        add(row.name, interval, _reason(row, reasons) if interval is None else _remark(row.remark, interval))

    add("an update", step, "as measured, nothing switched off")
    for row in PARTS:
        add_row(row)
    add("not in any of these", *rest(result, step))
    table.add_section()
    for row in BESIDE:
        add_row(row)
    for cells in _per_epoch(result, reasons):
        table.add_row(*map(Text, cells))
    return table


def step_interval(result: Result) -> Interval | None:
    """Seconds of an update. Its limits are throughput's, turned round; out of lockstep there is no common update to
    have some."""
    step_s, (_, interval) = throughput.step_s(result), throughput.throughput(result)
    if step_s is None:
        return None
    if interval is None or not result.scale.lockstep or not interval.low > 0:
        return Interval(step_s, step_s, step_s)
    return Interval(step_s, step_s * interval.value / interval.high, step_s * interval.value / interval.low)


def rest(result: Result, step: Interval | None) -> tuple[Interval | None, str]:
    """(an update less its parts, what to know of that). Negative within noise where the parts are all there is."""
    figures = {row.name: row.figure(result) for row in PARTS}
    known = [Interval(-one.value, -one.high, -one.low) for one in figures.values() if one is not None]
    if step is None or not known:
        return None, "no part was measured"
    exchanges = result.scale.gpus > 1 and result.scale.lockstep
    missing = [name for name, one in figures.items() if one is None and (exchanges or name != EXPOSED.name)]
    left = sum_interval([step, *known])
    if missing:
        return left, f"holds {', '.join(missing)}, not measured"
    return left, _remark("", left)


def _remark(known: str, interval: Interval) -> str:
    words = [known, UNRESOLVED if interval.low <= 0 <= interval.high else ""]
    return "; ".join(word for word in words if word)


def _reason(row: Row, reasons: dict[str, str]) -> str:
    return next((reasons[name] for name in row.reasons if name in reasons), NO_REASON)


def _per_epoch(result: Result, reasons: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    updates, exposed = result.workload.steps_per_epoch, update_breakdown.exposed(result)
    messages = len(result.sync.message_bytes)
    unknown = "the updates of an epoch are not known"
    if exposed is None or not updates:
        yield "sync per epoch", "-", "", _reason(EXPOSED, reasons) if updates else unknown
    else:
        yield "sync per epoch", units.duration(scale(exposed, updates)), "", f"exposed, of {updates:,} updates"
    if not messages or not updates:
        yield "exchanges per epoch", "-", "", reasons.get("isolated", NO_MESSAGES) if updates else unknown
    else:
        yield "exchanges per epoch", f"{messages * updates:,}", "", f"{messages:,} an update"
