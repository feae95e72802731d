"""The section `devices_or_batch` of a report: more devices or a larger batch, and what fewer synchronizations save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scalebench.analysis.batch_size import BATCH, make_batch_curves
from scalebench.analysis.devices_or_batch import BatchGain, DevicesOrBatch, compare_devices_with_batch, list_batch_gains
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.time_to_target import TrainingOutcome, summarize_trainings
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core import units
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import MIN_REPEATS_FOR_LIMITS
from scalebench.report import document as doc
from scalebench.report import tables
from scalebench.report.flag_text import describe_curve_intervals
from scalebench.report.report_data import ReportData

SECTION_ID = "devices-or-batch"
CHOICES_CAPTION = (
    "N devices of b samples beside one device of N * b: as many samples in a step, and as many steps per epoch",
    "ratio: throughput of N devices over that of one; time ratio: seconds of training that one device takes to the "
    "target over those of N devices, by seed; above 1 the devices win. Both with 95 % limits, over three repeats "
    "or seeds at least",
    "to target: seconds of training, of several seeds their geometric mean; empty if one of them never reached it",
)
GAINS_CAPTION = (
    "predicted: exposed sync of a step times the steps of an epoch, before minus after: what synchronizing less often "
    "saves",
    "measured: the epoch before minus after. The rest is how much better a device works with a larger batch",
    "95 % limits; empty if no probes were made or an epoch is unknown",
)


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if nothing was measured both ways, and no strategy with two batches on several devices."""
    estimate_ratio, outcomes = report_data.configurations.estimate_ratio, summarize_trainings(report_data.frame)
    pairs = compare_devices_with_batch(report_data.curves, estimate_ratio, outcomes)
    groups, left_out = doc.group_curves(make_batch_curves(report_data.curves))
    steps = [(curve, gain) for group in groups for curve in group.curves for gain in list_batch_gains(curve)]
    if not pairs and not steps:
        return None
    blocks: list[doc.Block] = [*_make_answers(pairs)]
    if pairs:
        blocks += [*left_out, *(chart for group in groups for chart in _make_chart(group, pairs))]
        blocks += _make_choice_blocks(pairs)
    blocks += [_make_gain_table(steps)] if steps else []
    return doc.Section(SECTION_ID, "More devices or a larger batch", blocks)


def _make_answers(pairs: Sequence[DevicesOrBatch]) -> Iterator[doc.Paragraph]:
    """Say what wins at the largest device count of each strategy, against the same strategy if possible."""
    largest: dict[tuple[str, ...], DevicesOrBatch] = {}
    for choice in pairs:
        key = (*doc.get_tags(choice.many_devices).values(), str(choice.same_strategy))
        kept = largest.get(key)
        if kept is None or _size(choice) > _size(kept):
            largest[key] = choice
    for key, choice in largest.items():
        if choice.same_strategy or (*key[:-1], "True") not in largest:
            yield doc.Paragraph(_describe_choice(choice), "answer", doc.get_tags(choice.many_devices))


def _size(choice: DevicesOrBatch) -> tuple[int, int]:
    return choice.many_devices["gpus"], choice.many_devices["global_batch"]


def _describe_choice(choice: DevicesOrBatch) -> str:
    many, single, ratio = choice.many_devices, choice.one_device, choice.throughput
    devices = f"{many['gpus']} devices of {many[BATCH]:,} samples ({many['strategy']})"
    one_device = f"one of {single[BATCH]:,} ({single['strategy']})"
    if _is_unresolved(ratio):
        text = f"{devices} and {one_device}: no difference in throughput is resolved"
    else:
        text = f"{devices} have {ratio.value:.2f} times the throughput of {one_device}"
        text += "" if ratio.has_limits else f", which is not sure: {explain_no_verdict(many, single)}"
    if choice.time_ratio is not None and not choice.time_ratio.has_limits:
        text += f". To the target it takes {MIN_REPEATS_FOR_LIMITS} seeds of both to tell: seed=0,1,2 decides"
    elif choice.time_ratio is not None and not _is_unresolved(choice.time_ratio):
        text += f", and reach the target in {1 / choice.time_ratio.value:.2f} times its time"
    return f"{text}."


def _is_unresolved(ratio: Estimate) -> bool:
    return ratio.has_limits and ratio.low <= 1 <= ratio.high


def _make_chart(group: doc.CurveGroup, pairs: Sequence[DevicesOrBatch]) -> Iterator[doc.Chart]:
    """Draw throughput over the samples of a step, of the curves that appear in a pair."""
    run_ids = {choice.many_devices["run_id"] for choice in pairs} | {choice.one_device["run_id"] for choice in pairs}
    kept = [curve for curve in group.curves if any(row["run_id"] in run_ids for row in curve.rows)]
    lines = doc.make_line_series(kept, doc.THROUGHPUT, "throughput", "global_batch")
    if len(lines) > 1:
        about = "samples/s over all devices; more is better. Above each other: the same batch on more or fewer devices"
        axes = doc.make_batch_axis("global batch", lines), doc.Axis("samples/s")
        caption = doc.join_sentences(about, describe_curve_intervals(kept))
        yield group.make_chart(SECTION_ID, "throughput", "Throughput over the global batch", axes, lines, caption)


def _make_choice_blocks(pairs: Sequence[DevicesOrBatch]) -> Iterator[doc.Block]:
    columns: dict[str, Callable[[DevicesOrBatch], doc.Cell]] = {
        "model": lambda pair: doc.make_cell(pair.many_devices["model"]),
        "strategy": lambda pair: doc.make_cell(pair.many_devices["strategy"]),
        "gpus": lambda pair: doc.format_cell(pair.many_devices["gpus"], str),
        "batch per device": lambda pair: doc.format_cell(pair.many_devices[BATCH], "{:,}".format),
        "samples/s": lambda pair: doc.make_cell(
            tables.format_throughput(pair.many_devices), pair.many_devices[doc.THROUGHPUT]
        ),
        "one device": lambda pair: doc.make_cell(pair.one_device["strategy"]),
        "its batch": lambda pair: doc.format_cell(pair.one_device[BATCH], "{:,}".format),
        "its samples/s": lambda pair: doc.make_cell(
            tables.format_throughput(pair.one_device), pair.one_device[doc.THROUGHPUT]
        ),
        "ratio (95 %)": lambda pair: tables.make_ratio_cell(pair.throughput),
    }
    if targets := any(choice.trainings is not None for choice in pairs):
        columns["to target"] = lambda pair: _time_cell(pair.trainings and pair.trainings[0])
        columns["one device to target"] = lambda pair: _time_cell(pair.trainings and pair.trainings[1])
        columns["time ratio (95 %)"] = lambda pair: tables.make_ratio_cell(pair.time_ratio)
    title, caption = "N devices or N times the batch", doc.join_sentences(*CHOICES_CAPTION[: 3 if targets else 2])
    items = [(pair, doc.get_tags(pair.many_devices)) for pair in pairs[: doc.MAX_ROWS]]
    yield doc.build_table(f"{SECTION_ID}-choices", title, columns, items, ("model", "strategy", "one device"), caption)
    if len(pairs) > doc.MAX_ROWS:
        yield doc.Paragraph(f"{doc.MAX_ROWS} of {len(pairs)} pairs are shown.")


def _time_cell(training: TrainingOutcome | None) -> doc.Cell:
    """Make `12.3 s`, `12.3 s (5 seeds)`, `2 of 3 seeds reached it` or `never`; empty without a target."""
    if training is None:
        return doc.Cell("")
    seconds = training.figures["time_to_target_s"]
    if training.reached < training.seeds or seconds is None:
        return doc.Cell("never" if training.seeds == 1 else f"{training.reached} of {training.seeds} seeds reached it")
    seeds = f" ({training.seeds} seeds)" if training.seeds > 1 else ""
    return doc.make_cell(tables.format_seconds(seconds.value) + seeds, seconds.value)


def _make_gain_table(steps: Sequence[tuple[Curve, BatchGain]]) -> doc.Table:
    columns: dict[str, Callable[[tuple[Curve, BatchGain]], doc.Cell]] = {
        "model": lambda step: doc.make_cell(step[0].tags["model"]),
        "strategy": lambda step: doc.make_cell(step[0].name),
        "batch per device": lambda step: doc.make_cell(_format_change(step[1], BATCH), step[1].after[BATCH]),
        "steps per epoch": lambda step: doc.make_cell(
            _format_change(step[1], "steps_per_epoch"), step[1].after["steps_per_epoch"]
        ),
        "predicted gain (95 %)": lambda step: _seconds_cell(step[1].predicted),
        "measured gain (95 %)": lambda step: _seconds_cell(step[1].measured),
        "predicted of it": lambda step: doc.format_cell(step[1].share, units.format_percent),
    }
    title, caption = "Fewer synchronizations: predicted and measured", doc.join_sentences(*GAINS_CAPTION)
    items = [(step, step[0].tags) for step in steps[: doc.MAX_ROWS]]
    return doc.build_table(f"{SECTION_ID}-gains", title, columns, items, ("model", "strategy"), caption)


def _format_change(gain: BatchGain, column: str) -> str:
    """Return `75 to 150`."""
    before, after = gain.before[column], gain.after[column]
    return "" if before is None or after is None else f"{before:,} to {after:,}"


def _seconds_cell(seconds: Estimate | None) -> doc.Cell:
    if seconds is None:
        return doc.Cell("")
    return doc.make_cell(doc.format_duration(seconds.value, *seconds.limits), seconds.value)
