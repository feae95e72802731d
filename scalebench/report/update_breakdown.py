"""The parts that make up an update, what they do not explain, and what was measured beside them. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from scalebench.analysis import throughput, step_breakdown
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.stats.estimates import Estimate, scale_estimate, sum_estimates

NO_REASON = "too few blocks for a figure"
NO_MESSAGES = "the messages of an update are not known"
UNRESOLVED = "cannot be told from 0"


@dataclass(frozen=True)
class Row:
    name: str
    figure: Callable[[Result], Estimate | None]
    reasons: tuple[str, ...]  # quantities of the probes whose reason is this row's, the first that has one
    remark: str = ""


DATA = Row("data loading", step_breakdown.data_loading, ("data",))
FORWARD = Row("forward", step_breakdown.forward_pass, ("forward",))
BACKWARD = Row("backward", step_breakdown.backward_pass, ("backward", "forward"))
OPTIMIZER = Row("optimizer", step_breakdown.optimizer_step, ("optimizer", "backward"))
EXPOSED = Row("exposed sync", step_breakdown.exposed_sync, ("exposed",), "what the exchange adds to an update")
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER, EXPOSED)  # which make up an update, with the rest
BESIDE = (
    Row(
        "straggler wait",
        step_breakdown.imbalance,
        ("imbalance",),
        "of the median device for the slowest; in exposed sync",
    ),
    Row("isolated sync", step_breakdown.isolated_sync, ("isolated",), "the exchange alone, with nothing to hide behind"),
    Row(
        "host-to-device copy",
        step_breakdown.host_to_device_copy,
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
    step_s, step, reasons = throughput.step_s(result), step_interval(result), step_breakdown.unmeasured_reasons(result)

    def add(name: str, interval: Estimate | None, remark: str) -> None:
        part = units.format_percent(interval.value / step_s) if interval is not None and step_s else ""
        table.add_row(*map(Text, (name, "-" if interval is None else units.format_duration(interval), part, remark)))

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


def step_interval(result: Result) -> Estimate | None:
    """Seconds of an update. Its limits are throughput's, turned round; out of lockstep there is no common update to
    have some."""
    step_s, (_, interval) = throughput.step_s(result), throughput.throughput(result)
    if step_s is None:
        return None
    if interval is None or not result.scale.lockstep or not interval.low > 0:
        return Estimate(step_s, step_s, step_s)
    return Estimate(step_s, step_s * interval.value / interval.high, step_s * interval.value / interval.low)


def rest(result: Result, step: Estimate | None) -> tuple[Estimate | None, str]:
    """(an update less its parts, what to know of that). Negative within noise where the parts are all there is."""
    figures = {row.name: row.figure(result) for row in PARTS}
    known = [Estimate(-one.value, -one.high, -one.low) for one in figures.values() if one is not None]
    if step is None or not known:
        return None, "no part was measured"
    exchanges = result.scale.gpus > 1 and result.scale.lockstep
    missing = [name for name, one in figures.items() if one is None and (exchanges or name != EXPOSED.name)]
    left = sum_estimates([step, *known])
    if missing:
        return left, f"holds {', '.join(missing)}, not measured"
    return left, _remark("", left)


def _remark(known: str, interval: Estimate) -> str:
    words = [known, UNRESOLVED if interval.low <= 0 <= interval.high else ""]
    return "; ".join(word for word in words if word)


def _reason(row: Row, reasons: dict[str, str]) -> str:
    return next((reasons[name] for name in row.reasons if name in reasons), NO_REASON)


def _per_epoch(result: Result, reasons: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    updates, exposed = result.workload.steps_per_epoch, step_breakdown.exposed_sync(result)
    messages = len(result.sync.message_bytes)
    unknown = "the updates of an epoch are not known"
    if exposed is None or not updates:
        yield "sync per epoch", "-", "", _reason(EXPOSED, reasons) if updates else unknown
    else:
        yield "sync per epoch", units.format_duration(scale_estimate(exposed, updates)), "", f"exposed, of {updates:,} updates"
    if not messages or not updates:
        yield "exchanges per epoch", "-", "", reasons.get("isolated", NO_MESSAGES) if updates else unknown
    else:
        yield "exchanges per epoch", f"{messages * updates:,}", "", f"{messages:,} an update"
