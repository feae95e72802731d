"""The parts of a report about the time of a step: its parts in one run and over strategies, what gradient
synchronization costs a step and an epoch, and what real input costs.

Formulas: docs/explain/measuring.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scalebench.analysis import step_breakdown
from scalebench.analysis.columns import HEADS, select_heads
from scalebench.analysis.identity import CURVE_COLUMNS, collect, column_key
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import Row, decide_ratio
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.report import document as doc
from scalebench.report import spec, tables
from scalebench.report.report_data import ReportData

TOO_FEW_BLOCKS = "too few blocks for a figure"
# The parts of a step in the order in which they happen, and their names in document.PARTS.
STEP_PARTS = {"data_s": "data", "forward_s": "forward", "backward_s": "backward", "optimizer_s": "optimizer",
              "sync_exposed_s": "sync"}  # fmt: skip
# Quantities of the probes; the first one that has a reason says why a figure is missing.
REASONS = {"data_s": ("data",), "forward_s": ("forward",), "backward_s": ("backward", "forward"),
           "optimizer_s": ("optimizer", "backward"), "sync_exposed_s": ("exposed",), "imbalance_s": ("imbalance",),
           "sync_isolated_s": ("isolated",), "copy_s": ("copy",)}  # fmt: skip
REST, REST_COLUMN = "unattributed", "rest_s"
MAX_BARS = 40  # of a chart
MIN_SHARE = 0.5  # per cent of a step; less is rounding
PHASES = select_heads("sync_negotiate_s sync_queue_s sync_memcpy_s sync_allreduce_s")
# Columns of a run in the terminal.
RUN_COLUMNS = (*REASONS, "sync_per_epoch_s", "syncs_per_epoch", *PHASES)
CAPTION = (
    "Time of one step. Exposed sync is what gradient synchronization adds to a step, including the wait for the "
    "slowest device but not what overlaps with the backward pass. Unattributed is the step less the parts that "
    "were measured. Values below zero, which are noise, are in the table alone."
)


def describe_parts(cells: doc.Cells) -> str:
    """Return `where the time of a step goes: backward 30 %, exposed sync 25 %`, without the parts that may be 0."""
    seconds = {HEADS[column]: cells[column] for column in STEP_PARTS if (cells[f"{column}_low"] or 0.0) > 0}
    seconds[REST] = _compute_rest(cells) or 0.0
    shares = {name: 100 * part_s / cells["step_s"] for name, part_s in seconds.items() if cells["step_s"]}
    in_order = sorted(shares.items(), key=lambda pair: -pair[1])
    texts = [f"{name} {share:.0f} %" for name, share in in_order if share >= MIN_SHARE]
    return ": ".join(filter(None, ["where the time of a step goes", ", ".join(texts)]))


def explain_missing(result: Result, cells: doc.Cells, columns: Iterable[str] = STEP_PARTS) -> str:
    """Say why these figures are missing: each reason once, after the names of all that have it."""
    if all(rank.probes is None for rank in result.ranks):
        return NO_PROBES
    reasons = step_breakdown.unmeasured_reasons(result)
    missing = [column for column in columns if cells[column] is None]
    why = ((next((reasons[n] for n in REASONS[column] if n in reasons), TOO_FEW_BLOCKS), HEADS[column])
           for column in missing)  # fmt: skip
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in collect(why).items())


def _compute_rest(cells: doc.Cells) -> float | None:
    """Return the seconds of a step that no part explains; None where no part was measured."""
    measured = [cells[column] for column in STEP_PARTS if cells[column] is not None]
    step_s: float | None = cells["step_s"]
    return step_s - math.fsum(measured) if measured and step_s is not None else None


def _add_rest(curves: Sequence[Curve]) -> list[Curve]:
    """Return the rows with a measured part, each with the time of its step that no part explains."""
    rows_of = [[{**row, REST_COLUMN: _compute_rest(row)} for row in curve.rows] for curve in curves]
    measured = [[row for row in rows if row[REST_COLUMN] is not None] for rows in rows_of]
    return [replace(curve, rows=rows) for curve, rows in zip(curves, measured, strict=True) if rows]


def _stack_parts(group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
    rows = group.list_rows()[:MAX_BARS]
    names, tags = [f"{curve.name} x {row['gpus']}" for curve, row in rows], [curve.tags for curve, _ in rows]
    series = []
    for column, colour in {**STEP_PARTS, REST_COLUMN: "rest"}.items():
        bars = [None if row[column] is None or row[column] < 0 else row[column] for _, row in rows]
        if any(value is not None for value in bars):
            name = STEP_HEADS[column]
            series.append(doc.Series(name, names, bars, tags=group.tags, point_tags=tags, part=colour))
    axes = doc.Axis("strategy and devices"), doc.Axis("time of a step", unit="s")
    yield doc.Chart(group.make_id(), "Where the time of a step goes", *axes, series, "stacked", CAPTION)


def _explain_missing(report_data: ReportData, row: doc.Cells, columns: Iterable[str] = STEP_PARTS) -> str:
    """Say why parts of this row are missing, according to its first repeat."""
    is_detailed = row["run_id"] in report_data.detailed_run_ids
    return explain_missing(report_data.result(str(row["run_id"])), row, columns) if is_detailed else ""


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


PROBED_COLUMNS = ("sync_exposed_s", "sync_isolated_s", "imbalance_s")
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
                     functools.partial(_explain_missing, columns=PROBED_COLUMNS)),
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
