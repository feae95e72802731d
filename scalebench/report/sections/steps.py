"""The parts of a report about the time of a step: its parts in one run and over strategies, what gradient
synchronization costs a step and an epoch, and what real input costs.

Formulas: docs/explain/measuring.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.columns import HEADS, select_heads
from scalebench.analysis.identity import CURVE_COLUMNS, collect, column_key
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import Row, decide_ratio
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, estimate_mean, scale_estimate
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.report_data import ReportData

TOO_FEW_BLOCKS = "too few blocks for a figure"
UNRESOLVED = "cannot be distinguished from 0"


@dataclass(frozen=True)
class StepPart:
    """A part of a step, or a figure that was measured beside its parts."""

    column: str  # of the frame
    reasons: tuple[str, ...]  # quantities of the probes; the first that has a reason says why the figure is missing
    remark: str = ""

    @property
    def name(self) -> str:
        return HEADS[self.column]

    def explain(self, reasons: Mapping[str, str]) -> str:
        """Return why it was not measured."""
        return next((reasons[name] for name in self.reasons if name in reasons), TOO_FEW_BLOCKS)


EXPOSED_SYNC = StepPart("sync_exposed_s", ("exposed",), "what gradient synchronization adds to a step")
# The parts of a step and their names in document.PARTS, in the order in which they happen.
STEP_PARTS = {
    StepPart("data_s", ("data",)): "data",
    StepPart("forward_s", ("forward",)): "forward",
    StepPart("backward_s", ("backward", "forward")): "backward",
    StepPart("optimizer_s", ("optimizer", "backward")): "optimizer",
    EXPOSED_SYNC: "sync",
}
OTHER_FIGURES = [
    StepPart("imbalance_s", ("imbalance",), "wait of a device for the slowest, on average; in exposed sync"),
    StepPart("sync_isolated_s", ("isolated",), "gradient synchronization alone, with nothing to overlap"),
    StepPart("copy_s", ("copy",), "of a batch, alone; hidden if batches are prefetched"),
]
IMBALANCE, ISOLATED_SYNC, _ = OTHER_FIGURES
INTERLEAVED_PARTS = (("data", "exposed"), ("forward", "backward", "optimizer"))
REST, REST_COLUMN = "unattributed", "rest_s"
MAX_BARS = 40  # of a chart
PHASES = select_heads("sync_negotiate_s sync_queue_s sync_memcpy_s sync_allreduce_s")
CAPTION = (
    "Time of one step. Exposed sync is what gradient synchronization adds to a step, including the wait for the "
    "slowest device but not what overlaps with the backward pass. Unattributed is the step less the parts that "
    "were measured. Values below zero, which are noise, are in the table alone."
)


def make_run_breakdown(result: Result) -> doc.Table:
    """Make the table of the parts of a step with their shares, and of what was measured beside them."""
    step_s, step = throughput.Measurement(result).step_s, step_interval(result)
    reasons, rows = step_breakdown.unmeasured_reasons(result), list[tuple[doc.Tags, dict[str, str]]]()

    def add(name: str = "", time: Estimate | str | None = "", remark: str = "") -> None:
        share = units.format_percent(time.value / step_s) if isinstance(time, Estimate) and step_s else ""
        text = time if isinstance(time, str) else "-" if time is None else units.format_seconds(time)
        rows.append(({}, {"part": name, "time (95 %)": text, "of a step": share, "remark": remark}))

    def add_parts(parts: Iterable[StepPart]) -> None:
        for part in parts:
            interval = step_breakdown.figure(result, part.column)
            add(part.name, interval, part.explain(reasons) if interval is None else _mark(part.remark, interval))

    add("a step", step, "as measured, nothing switched off")
    add_parts(STEP_PARTS)
    add(REST, *compute_rest(result, step))
    add()
    add_parts(OTHER_FIGURES)

    steps, exposed = result.workload.steps_per_epoch, step_breakdown.figure(result, EXPOSED_SYNC.column)
    messages, unknown = len(result.sync.message_bytes), "the steps of an epoch are not known"
    if exposed is not None and steps:
        of_epoch = units.format_seconds(scale_estimate(exposed, steps))
        add("sync per epoch", of_epoch, f"exposed, of {steps:,} steps")
    else:
        add("sync per epoch", None, EXPOSED_SYNC.explain(reasons) if steps else unknown)
    if messages and steps:
        add("gradient messages per epoch", f"{messages * steps:,}", f"{messages:,} a step")
    else:
        why = reasons.get("isolated", "the gradient messages of a step are not known")
        add("gradient messages per epoch", None, why if steps else unknown)

    if (timeline := result.sync.timeline) is not None:
        add()
        remark = f"sync by the framework's timeline, rank 0, {timeline.steps} steps; phases overlap"
        phases = {name: s for name, s in step_breakdown.sync_phases(result).items() if s is not None}
        for column, seconds in phases.items():
            add(PHASES[column], Estimate(seconds), remark)
            remark = ""
        if not phases:
            add("phases of sync", None, timeline.reason or "")
    return spec.make_table("step", "Where the time of a step goes", rows, ["remark"])


def describe_parts(result: Result) -> str:
    """Return `where the time of a step goes: backward 30 %, exposed sync 25 %`, without the parts that may be 0."""
    step_s, title = throughput.Measurement(result).step_s, "where the time of a step goes"
    figures = {part.name: step_breakdown.figure(result, part.column) for part in STEP_PARTS}
    figures[REST], _ = compute_rest(result, step_interval(result))
    shares = {name: each.value / step_s for name, each in figures.items() if step_s and each and each.low > 0}
    texts = [f"{name} {100 * share:.0f} %" for name, share in sorted(shares.items(), key=lambda pair: -pair[1])]
    return f"{title}: {', '.join(texts)}" if texts else title


def step_interval(result: Result) -> Estimate | None:
    """Return the seconds of a step. Its limits are those of throughput, inverted; devices that do not step together
    have no common step that could have limits."""
    measured = throughput.Measurement(result)
    step_s, rate = measured.step_s, measured.throughput
    if step_s is None:
        return None
    if rate is None or result.scale.independent or not rate.low > 0:
        return Estimate(step_s, step_s, step_s)
    return Estimate(step_s, step_s * rate.value / rate.high, step_s * rate.value / rate.low)


def compute_rest(result: Result, step: Estimate | None) -> tuple[Estimate | None, str]:
    """Return the step time that no part explains, with a remark. It is negative within noise if the parts are all
    there is."""
    totals = []
    # Parts that were measured in interleaved blocks are differences of one series, so that their estimates are not
    # independent: they are added block by block.
    for names in INTERLEAVED_PARTS:
        series = [blocks for name in names if len(blocks := step_breakdown.measure_blocks(result, f"{name}_s")) > 1]
        total = estimate_mean([sum(blocks) for blocks in zip(*series, strict=False)])
        totals += [] if total is None else [total]
    if step is None or not totals:
        return None, "no part was measured"
    synchronizes = result.scale.gpus > 1 and not result.scale.independent
    missing = [part.name for part in STEP_PARTS if step_breakdown.figure(result, part.column) is None]
    missing = [name for name in missing if synchronizes or name != EXPOSED_SYNC.name]
    rest = combine({"step": 1.0, **dict.fromkeys(range(len(totals)), -1.0)}, {"step": step, **dict(enumerate(totals))})
    return rest, f"contains {', '.join(missing)}, not measured" if missing else _mark("", rest)


def _mark(remark: str, interval: Estimate) -> str:
    """Return the remark, with a note if the figure may be 0."""
    return "; ".join(filter(None, [remark, UNRESOLVED if interval.low <= 0 <= interval.high else ""]))


def _add_rest(curves: Sequence[Curve]) -> list[Curve]:
    """Return the rows with a measured part, each with the time of its step that no part explains."""

    def compute(row: dict[str, Any]) -> float | None:
        measured = [row[part.column] for part in STEP_PARTS if row[part.column] is not None]
        return row["step_s"] - math.fsum(measured) if measured and row["step_s"] is not None else None

    more = []
    for curve in curves:
        rows = [{**row, REST_COLUMN: rest} for row in curve.rows if (rest := compute(row)) is not None]
        more += [replace(curve, rows=rows)] if rows else []
    return more


def _stack_parts(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
    rows = group.list_rows()[:MAX_BARS]
    names, tags = [f"{curve.name} x {row['gpus']}" for curve, row in rows], [curve.tags for curve, _ in rows]
    colours = {**{part.column: colour for part, colour in STEP_PARTS.items()}, REST_COLUMN: "rest"}
    series = []
    for column, colour in colours.items():
        bars = [None if row[column] is None or row[column] < 0 else row[column] for _, row in rows]
        if any(value is not None for value in bars):
            name = STEP_HEADS[column]
            series.append(doc.Series(name, names, bars, tags=group.tags, point_tags=tags, part=colour))
    axes = doc.Axis("strategy and devices"), doc.Axis("time of a step", unit="s")
    yield doc.Chart(group.make_id(), "Where the time of a step goes", *axes, series, "stacked", CAPTION)


def _explain_missing(report_data: ReportData, row: doc.Cells, parts: Iterable[StepPart] = STEP_PARTS) -> str:
    """Say why parts of this row are missing, according to its first repeat: each reason once, after all names that have
    it."""
    if row["run_id"] not in report_data.detailed_run_ids:
        return ""
    result = report_data.result(str(row["run_id"]))
    if all(rank.probes is None for rank in result.ranks):
        return NO_PROBES
    reasons = step_breakdown.unmeasured_reasons(result)
    names = collect((part.explain(reasons), part.name) for part in parts if row[part.column] is None)
    return "; ".join(f"{', '.join(each)}: {reason}" for reason, each in names.items())


STEP_HEADS = select_heads("step_s data_s forward_s backward_s optimizer_s sync_exposed_s") | {REST_COLUMN: REST}
step_groups = spec.Groups(
    "step",
    [
        _stack_parts,
        spec.Listing(
            "Parts of a step", STEP_HEADS, always=STEP_HEADS, remark=_explain_missing, id="parts",
            name_heads=("run", "devices", "not measured"),
        ),
    ],
    prepare=_add_rest,
)  # fmt: skip


SYNC_CAPTION = (
    "Exposed sync: what gradient synchronization adds to a step, imbalance included. Isolated sync: gradient "
    "synchronization of a step alone, with nothing to overlap. Imbalance: how long a device waits for the slowest "
    "one, on average. Messages are those of an epoch. Empty: not measured."
)
PHASE_CAPTION = (
    "Seconds of a step in which at least one tensor was in the phase, on rank 0, in steps after measuring. "
    "Negotiate: until all ranks have announced a tensor, so that waiting for a slower rank is part of it. "
    "Memory copies: in and out of the fusion buffer. The phases overlap each other and the backward pass: their sum "
    "means nothing."
)
NO_PROBES = "no probes were made (measure.probes=true makes them)"
EPOCH_CAPTION = (
    "Exposed sync of all steps of an epoch over their number, one point for each number of devices; less is better. "
    "More devices make fewer steps: where a curve falls to the left, that saves more than the more expensive "
    "synchronization costs."
)


PROBED_PARTS = (EXPOSED_SYNC, ISOLATED_SYNC, IMBALANCE)
SYNC_HEADS = select_heads("sync_exposed_s sync_isolated_s imbalance_s sync_per_epoch_s steps_per_epoch syncs_per_epoch")


def _describe_messages(row: doc.Cells) -> str:
    return f"{row['gpus']} devices, {tables.make_cell(row, 'syncs_per_epoch').text} messages an epoch"


sync_groups = spec.Groups(
    "sync",
    [
        # Shows whether fewer steps per epoch save more than the more expensive synchronization of more devices costs.
        spec.Drawing("sync_per_epoch_s", "Sync of an epoch", "time per epoch", EPOCH_CAPTION, x="steps_per_epoch",
                     note=_describe_messages),
        spec.Listing("Sync of a step and an epoch", SYNC_HEADS, SYNC_CAPTION, SYNC_HEADS,
                     functools.partial(_explain_missing, parts=PROBED_PARTS)),
        # Of a framework's timeline, as Horovod has.
        spec.Listing("Phases of gradient synchronization", PHASES, PHASE_CAPTION, PHASES, id="phase-table"),
    ],
    keep=lambda row: row["gpus"] > 1,
)  # fmt: skip


GENERATED = "_synthetic"  # imagenet_synthetic stands for imagenet, imagenet_jpeg and imagenet_tfrecord
SHARED_COLUMNS = ("model", "hardware", "machine", "scaling", "gpus", "nodes", "global_batch", *CURVE_COLUMNS)


def list_real_input(report_data: ReportData) -> Iterator[doc.Block]:
    """Compare trainings that were measured with real and with generated input, and yield those that were faster than
    their Dataset was read."""
    measured = [row for curve in report_data.curves for row in curve.rows]
    generated = {_input_key(row): row for row in measured if row["dataset"].endswith(GENERATED)}
    for row in measured:
        other = generated.get(_input_key(row))
        if other is not None and not row["dataset"].endswith(GENERATED):
            ratio = decide_ratio(row, other, report_data.configurations.estimate_ratio)
            doubt, waiting = tables.explain_doubt(ratio, row, other), tables.make_cell(row, "data_share").text
            text = f"{row['dataset']} has {units.format_ratio(ratio)} times the throughput of {other['dataset']} under "
            text += f"{row['strategy']} on {units.format_count(row['gpus'], 'device')}"
            text += f", and waits for its batch {waiting} of a step" if waiting else ""
            text += f"; {doubt}." if doubt else "."
            yield doc.Paragraph(text, "answer", doc.get_tags(row))
    fastest = {row["dataset"]: row for row in sorted(measured, key=lambda row: row[doc.THROUGHPUT])}
    for row in fastest.values():
        training = f"{row['strategy']} on {units.format_count(row['gpus'], 'device')}"
        if reading := describe_slow_reading(row["dataset"], row["read_samples_per_s"], training, row[doc.THROUGHPUT]):
            yield doc.Paragraph(reading, "answer", doc.get_tags(row))


def describe_slow_reading(dataset: str, read_rate: float | None, training: str, rate: float | None) -> str | None:
    """Return a sentence on a Dataset that one process read more slowly, in samples/s, than `training` takes samples."""
    if read_rate is None or rate is None or read_rate >= rate:
        return None
    return (
        f"One process read {dataset} into the cache at {units.format_number(read_rate)} samples/s, and {training} "
        f"takes {units.format_number(rate)} samples/s from there. A loader that reads during training would need "
        f"{math.ceil(rate / read_rate):,} such processes to keep up; no figure includes that."
    )


def _input_key(row: Row) -> tuple[object, ...]:
    return row["dataset"].partition("_")[0], *column_key(row, SHARED_COLUMNS)
