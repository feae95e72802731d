"""The section `sync` of a report: what gradient synchronization costs a step and an epoch, and its phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from scalebench.analysis import step_breakdown
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData
from scalebench.report.step_breakdown import MAX_BARS, PHASE_NAMES, SYNC_PARTS, TOO_FEW_BLOCKS, join_reasons

PROBED_HEADS = {"sync_exposed_s": "exposed sync", "sync_isolated_s": "isolated sync", "imbalance_s": "imbalance"}
CAPTION = (
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
PART_CAPTION = (
    "Parts of exposed sync where devices have no weights of their own: what a step saves with frozen copies of its "
    "slice of a batch and of the weights on each device, a loss on each device, and gradients that stay there, one "
    "after the other. They add up to exposed sync. Empty: not separable, the remarks above say why."
)
NO_PROBES = "no probes were made (measure.probes=true makes them)"
EPOCH_CAPTION = (
    "Exposed sync of all steps of an epoch over their number, one point for each number of devices; less is better. "
    "More devices make fewer steps: where a curve falls to the left, that saves more than the more expensive "
    "synchronization costs."
)


def _describe_exposed_sync(group: doc.CurveGroup) -> str:
    """Say also what the intervals of the probes are taken over, which are not those of throughput."""
    most = max(row["repeats"] for curve in group.curves for row in curve.rows)
    several = ", over repeats where three and more were probed" if most >= MIN_REPEATS_FOR_LIMITS else ""
    return doc.join_sentences(
        "what gradient synchronization adds to a step, imbalance included; less is better",
        f"intervals: 95 %, over blocks of the probes of one repeat{several}",
    )


def _draw_sync_of_epochs(section: str, group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Chart]:
    """Show whether fewer steps per epoch save more than the more expensive synchronization of more devices costs."""
    column, lines = "sync_per_epoch_s", []
    for curve in group.curves:
        rows = [row for row in curve.rows if None not in (row["steps_per_epoch"], row[column])]
        messages = ["" if row["syncs_per_epoch"] is None else f"{row['syncs_per_epoch']:,}" for row in rows]
        notes = [f"{row['gpus']} devices, {count} messages an epoch" for row, count in zip(rows, messages, strict=True)]
        line = doc.make_series(curve.name, curve.tags, rows, "steps_per_epoch", column, column, notes)
        lines += [] if line is None else [line]
    if lines:
        axes = doc.Axis("steps per epoch"), doc.Axis("time per epoch", unit="s")
        yield group.make_chart(section, "epoch", "Sync of an epoch", axes, lines, EPOCH_CAPTION)


def _explain_missing(report_data: ReportData, row: doc.Cells) -> str:
    """Say why figures of this row are missing, according to its first repeat, and which parts of sync."""
    if row["run_id"] not in report_data.detailed_run_ids:
        return ""
    result = report_data.result(str(row["run_id"]))
    if all(rank.probes is None for rank in result.ranks):
        return NO_PROBES
    reasons = step_breakdown.unmeasured_reasons(result)
    missing = [
        (name, reasons.get(step_breakdown.REASON_KEYS[column], TOO_FEW_BLOCKS))
        for column, name in PROBED_HEADS.items()
        if row[column] is None
    ]
    inseparable = [(part.name, reasons[part.reasons[0]]) for part in SYNC_PARTS.values() if part.reasons[0] in reasons]
    return join_reasons([*missing, *inseparable])


def _take_apart(kind: str, heads: Mapping[str, str], caption: str) -> spec.Part:
    """Draw and list columns of the rows that have one of them, of `kind` phase or part.

    Phases are those of a framework's timeline, as Horovod has; parts those of synchronization without own weights.
    """
    title = f"{kind.capitalize()}s of gradient synchronization"

    def make_blocks(section: str, group: doc.CurveGroup, report_data: ReportData) -> Iterator[doc.Block]:
        curves = [replace(curve, rows=[row for row in curve.rows if any(row[name] is not None for name in heads)])
                  for curve in group.curves]  # fmt: skip
        group = replace(group, curves=curves)
        series = []
        for (curve, row), tags in group.list_rows()[:MAX_BARS]:
            values = {name: row[column] for column, name in heads.items() if row[column] is not None}
            series.append(doc.Series(f"{curve.name} x {row['gpus']}", [*values], [*values.values()], tags=tags))
        if series:
            axes = doc.Axis(kind), doc.Axis("time of a step", unit="s")
            yield group.make_chart(section, f"{kind}s", title, axes, series, caption, "bars")
            yield from spec.Listing(title, heads, always=[*heads], id=f"{kind}-table")(section, group, report_data)

    return make_blocks


OF_EPOCH = {"sync_per_epoch_s": "sync per epoch", "steps_per_epoch": "steps per epoch", "syncs_per_epoch": "messages"}
HEADS = {**PROBED_HEADS, **OF_EPOCH}
section = spec.SectionSpec(
    "sync",
    "Gradient synchronization",
    [
        spec.Drawing("sync_exposed_s", "Exposed sync", "time of a step", _describe_exposed_sync),
        _draw_sync_of_epochs,
        spec.Listing("Sync of a step and an epoch", HEADS, CAPTION, always=[*HEADS], remark=_explain_missing),
        _take_apart("part", {column: part.name for column, part in SYNC_PARTS.items()}, PART_CAPTION),
        _take_apart("phase", PHASE_NAMES, PHASE_CAPTION),
    ],
    keep=lambda row: row["gpus"] > 1,
)
