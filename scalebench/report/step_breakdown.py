"""The parts of a step: of one run with reasons and remarks, and over strategies and devices.

Formulas: docs/explain/measuring.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.scaling_curves import Curve
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, estimate_mean, scale_estimate
from scalebench.report import document as doc
from scalebench.report.flag_text import to_text
from scalebench.report.report_data import ReportData
from scalebench.report.tables import move_to_footnotes

TOO_FEW_BLOCKS = "too few blocks for a figure"
NO_MESSAGES = "the gradient messages of a step are not known"
UNRESOLVED = "cannot be distinguished from 0"


@dataclass(frozen=True)
class StepPart:
    """A part of a step, or a figure that was measured beside its parts."""

    column: str  # of the frame
    name: str
    reasons: tuple[str, ...]  # quantities of the probes; the first that has a reason says why the figure is missing
    remark: str = ""

    def measure(self, result: Result) -> Estimate | None:
        return step_breakdown.figure(result, self.column)


EXPOSED_SYNC = StepPart("sync_exposed_s", "exposed sync", ("exposed",), "what gradient synchronization adds to a step")
# The parts of a step by their column of the frame, in the order in which they happen.
STEP_PARTS = {
    part.column: part
    for part in (
        StepPart("data_s", "data loading", ("data",)),
        StepPart("forward_s", "forward", ("forward",)),
        StepPart("backward_s", "backward", ("backward", "forward")),
        StepPart("optimizer_s", "optimizer", ("optimizer", "backward")),
        EXPOSED_SYNC,
    )
}
# The parts of exposed sync by their column of the frame, in the order in which they happen.
SYNC_PARTS = {
    f"sync_{part}_s": StepPart(
        f"sync_{part}_s", part.replace("_", " "), (f"sync_{part}", "exposed"), f"of exposed sync: {about}"
    )
    for part, about in (
        ("input", "slices of the batch to the devices"),
        ("weights_out", "weights to the devices"),
        ("output", "outputs to where they are merged, their gradients back"),
        ("gradients_in", "gradients to the weights"),
    )
}
OTHER_FIGURES = (
    StepPart("imbalance_s", "imbalance", ("imbalance",),
             "wait of a device for the slowest, on average; in exposed sync"),
    StepPart("sync_isolated_s", "isolated sync", ("isolated",),
             "gradient synchronization alone, with nothing to overlap"),
    StepPart("copy_s", "host-to-device copy", ("copy",), "of a batch, alone; hidden if batches are prefetched"),
)  # fmt: skip
INTERLEAVED_PARTS = (("data", "exposed"), ("forward", "backward", "optimizer"))
REST = "unattributed"
PART_OF_COLUMN = {"data_s": "data", "forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer",
                  "sync_exposed_s": "sync"}  # fmt: skip
MAX_BARS = 40  # of a chart
PHASE_NAMES = {
    "sync_negotiate_s": "negotiate",
    "sync_queue_s": "queue",
    "sync_memcpy_s": "memory copies",
    "sync_allreduce_s": "all-reduce",
}
BREAKDOWN_COLUMNS = ("part", "time (95 %)", "of a step", "remark")
COLUMNS = ("run", "devices", "a step", *(part.name for part in STEP_PARTS.values()), REST, "not measured")
CAPTION = (
    "Time of one step. Exposed sync is what gradient synchronization adds to a step, including the wait for the "
    "slowest device but not what overlaps with the backward pass. Unattributed is the step less the parts that "
    "were measured. Values below zero, which are noise, are in the table alone."
)


def make_run_breakdown(result: Result) -> doc.Table:
    """Make the table of the parts of a step with their shares, and of what was measured beside them."""
    step_s, step, reasons = throughput.step_s(result), step_interval(result), step_breakdown.unmeasured_reasons(result)

    def make_row(name: str, interval: Estimate | None, remark: str) -> doc.Row:
        share = units.format_percent(interval.value / step_s) if interval is not None and step_s else ""
        return _make_row(name, "-" if interval is None else units.format_duration(interval), share, remark)

    def make_part_row(part: StepPart) -> doc.Row:
        interval = part.measure(result)
        remark = _find_reason(part, reasons) if interval is None else _add_unresolved(part.remark, interval)
        return make_row(part.name, interval, remark)

    rows = [
        make_row("a step", step, "as measured, nothing switched off"),
        *map(make_part_row, STEP_PARTS.values()),
        make_row(REST, *compute_rest(result, step)),
        _make_row("", "", "", ""),
        *map(make_part_row, OTHER_FIGURES),
        *_per_epoch_rows(result, reasons),
        *map(make_part_row, SYNC_PARTS.values() if has_sync_parts(result) else ()),
        *_phase_rows(result, step_s),
    ]
    return doc.Table(
        "step", "Where the time of a step goes", BREAKDOWN_COLUMNS, rows, frozenset(BREAKDOWN_COLUMNS[1:3])
    )


def has_sync_parts(result: Result) -> bool:
    """Return whether probes took synchronization apart, or have reasons why they could not."""
    reasons = step_breakdown.unmeasured_reasons(result)
    return any(part.reasons[0] in reasons or part.measure(result) is not None for part in SYNC_PARTS.values())


def step_interval(result: Result) -> Estimate | None:
    """Return the seconds of a step. Its limits are those of throughput, inverted; devices that do not step together
    have no common step that could have limits."""
    step_s, (_, interval) = throughput.step_s(result), throughput.throughput(result)
    if step_s is None:
        return None
    if interval is None or result.scale.independent or not interval.low > 0:
        return Estimate(step_s, step_s, step_s)
    return Estimate(step_s, step_s * interval.value / interval.high, step_s * interval.value / interval.low)


def compute_rest(result: Result, step: Estimate | None) -> tuple[Estimate | None, str]:
    """Return the step time that no part explains, with a remark. It is negative within noise if the parts are all
    there is."""
    totals = [total for blocks in _sum_interleaved_parts(result) if (total := estimate_mean(blocks)) is not None]
    if step is None or not totals:
        return None, "no part was measured"
    synchronizes = result.scale.gpus > 1 and not result.scale.independent
    missing = [part.name for part in STEP_PARTS.values() if part.measure(result) is None]
    missing = [name for name in missing if synchronizes or name != EXPOSED_SYNC.name]
    rest = combine({"step": 1.0, **dict.fromkeys(range(len(totals)), -1.0)}, {"step": step, **dict(enumerate(totals))})
    return rest, f"contains {', '.join(missing)}, not measured" if missing else _add_unresolved("", rest)


def _sum_interleaved_parts(result: Result) -> list[list[float]]:
    """Return the sums of the parts that were measured in interleaved blocks, block by block: parts are differences of
    the same series, so that their estimates are not independent."""
    groups = [[step_breakdown.part_blocks(result, part) for part in parts] for parts in INTERLEAVED_PARTS]
    measured = [[blocks for blocks in group if len(blocks) > 1] for group in groups]
    return [list(map(sum, zip(*group, strict=False))) for group in measured]


def _add_unresolved(remark: str, interval: Estimate) -> str:
    return "; ".join(filter(None, [remark, UNRESOLVED if interval.low <= 0 <= interval.high else ""]))


def _find_reason(part: StepPart, reasons: Mapping[str, str]) -> str:
    return next((reasons[name] for name in part.reasons if name in reasons), TOO_FEW_BLOCKS)


def _per_epoch_rows(result: Result, reasons: Mapping[str, str]) -> Iterator[doc.Row]:
    steps, exposed, messages = (
        result.workload.steps_per_epoch,
        step_breakdown.figure(result, "sync_exposed_s"),
        len(result.sync.message_bytes),
    )
    unknown = "the steps of an epoch are not known"
    if exposed is None or not steps:
        yield _make_row("sync per epoch", "-", "", _find_reason(EXPOSED_SYNC, reasons) if steps else unknown)
    else:
        yield _make_row(
            "sync per epoch", units.format_duration(scale_estimate(exposed, steps)), "", f"exposed, of {steps:,} steps"
        )
    if not messages or not steps:
        why = reasons.get("isolated", NO_MESSAGES) if steps else unknown
        yield _make_row("gradient messages per epoch", "-", "", why)
    else:
        yield _make_row("gradient messages per epoch", f"{messages * steps:,}", "", f"{messages:,} a step")


def _phase_rows(result: Result, step_s: float | None) -> Iterator[doc.Row]:
    """Yield the phases of gradient synchronization by the framework's own timeline, or why that shows none."""
    timeline = result.sync.timeline
    if timeline is None:
        return
    remark = f"sync by the framework's timeline, rank 0, {timeline.steps} steps; phases overlap"
    yield _make_row("", "", "", "")
    for column, seconds in step_breakdown.sync_phases(result).items():
        if seconds is None:
            yield _make_row("phases of sync", "-", "", timeline.reason or "")
            return
        share = units.format_percent(seconds / step_s) if step_s else ""
        yield _make_row(PHASE_NAMES[column], units.format_seconds(seconds), share, remark)
        remark = ""


def _make_row(*texts: str) -> doc.Row:
    return doc.Row([doc.Cell(text) for text in texts])


def make_blocks(report_data: ReportData, curves: Sequence[Curve]) -> list[doc.Block]:
    """Make a table and a stacked chart for each group of curves, the largest ones; a paragraph if no part is known."""
    filtered = [(curve, [row for row in curve.rows if compute_rest_s(row) is not None]) for curve in curves]
    measured = [Curve(curve.name, curve.group, curve.tags, rows) for curve, rows in filtered if rows]
    if not measured:
        return [
            doc.Paragraph("Where the time of a step goes was not measured: these runs have no probes (measure.probes).")
        ]
    groups, left_out = doc.group_curves(measured)
    blocks: list[doc.Block] = [*left_out]
    for group in groups:
        blocks += [*group.paragraphs, _make_chart(group), _make_table(report_data, group)]
    return blocks


def compute_rest_s(row: doc.Cells) -> float | None:
    """Return the step time of a row less its known parts; None if no part is known."""
    parts = [row[name] for name in STEP_PARTS if row[name] is not None]
    return row["step_s"] - math.fsum(parts) if parts and row["step_s"] is not None else None


def _make_chart(group: doc.CurveGroup) -> doc.Chart:
    bars = [(curve, row) for curve in group.curves for row in curve.rows][:MAX_BARS]
    names, point_tags = [f"{curve.name} x {row['gpus']}" for curve, row in bars], [curve.tags for curve, _ in bars]
    columns = [(part.name, PART_OF_COLUMN[name], [row[name] for _, row in bars]) for name, part in STEP_PARTS.items()]
    columns.append((REST, "rest", [compute_rest_s(row) for _, row in bars]))
    series = []
    for name, part, values in columns:
        drawn = [None if value is None or value < 0 else value for value in values]
        if any(value is not None for value in drawn):
            series.append(doc.Series(name, names, drawn, tags=group.tags, point_tags=point_tags, part=part))
    axes = doc.Axis("strategy and devices"), doc.Axis("time of a step", unit="s")
    return doc.Chart(group.make_id("step"), "Where the time of a step goes", *axes, series, "stacked", CAPTION)


def _make_table(report_data: ReportData, group: doc.CurveGroup) -> doc.Table:
    detailed = set(report_data.detailed_run_ids)
    all_rows = [(curve, row) for curve in group.curves for row in curve.rows]
    rows = [
        doc.Row(
            [
                doc.Cell(curve.name, curve.name),
                doc.Cell(str(row["gpus"]), row["gpus"]),
                doc.Cell(units.format_seconds(row["step_s"]), row["step_s"]),
                *(doc.Cell(doc.format_duration_column(row, name), row[name]) for name in STEP_PARTS),
                doc.format_cell(compute_rest_s(row), units.format_seconds),
                doc.Cell(_describe_missing(report_data, row) if to_text(row["run_id"]) in detailed else ""),
            ],
            curve.tags,
        )
        for curve, row in all_rows[: doc.MAX_ROWS]
    ]
    more = f"{doc.MAX_ROWS} of {len(all_rows)} rows." if len(all_rows) > doc.MAX_ROWS else ""
    table_id = group.make_id("step", "parts")
    table = doc.Table(table_id, "Parts of a step", COLUMNS, rows, frozenset(COLUMNS[1:-1]), more)
    return move_to_footnotes(table, "not measured")


def _describe_missing(report_data: ReportData, row: doc.Cells) -> str:
    names = [name for name in STEP_PARTS if row[name] is None]
    reasons = step_breakdown.unmeasured_reasons(report_data.result(row["run_id"])) if names else {}
    return join_reasons((STEP_PARTS[name].name, _find_reason(STEP_PARTS[name], reasons)) for name in names)


def join_reasons(reasons: Iterable[tuple[str, str]]) -> str:
    """Join (name, reason) pairs so that each reason stands once, after all names that have it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
