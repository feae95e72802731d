"""The section `data_or_model` of a report: what data and model parallelism send, which should win and which did.

The terminal shows the same tables and sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.prediction.calibration import RATE_COLUMN, ReadRecord
from scalebench.analysis.prediction.data_or_model import (
    DATA,
    KINDS,
    MODEL,
    PIPELINE,
    STAGED_STRATEGIES,
    ParallelismComparison,
    compare_parallelism,
)
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.verdicts import estimate_of, explain_no_verdict
from scalebench.core import units
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimate_arithmetic import rate_to_seconds
from scalebench.report.document import (
    MAX_ROWS,
    Block,
    Cell,
    Paragraph,
    Row,
    Section,
    Table,
    format_cell,
    format_duration,
    get_tags,
    join_sentences,
    make_cell,
)
from scalebench.report.report_data import ReportData

if TYPE_CHECKING:
    import pandas as pd

SECTION_ID = "data-or-model"
MIN_PASS_S = 1e-9  # shorter times before the first sample of a pass are not shown
TRAFFIC_CAPTION = (
    "sends: bytes that a device sends in a step, the mean over the devices. With data parallelism 2 (n - 1) / n "
    "times the gradients of all parameters, in a ring; with model parallelism, and in a pipeline, the activations at "
    "the cuts and their gradients",
    "FLOP/B: operations of all devices over what all of them send. That of data parallelism grows with the batch, that "
    "of model parallelism does not",
    "device: operations per second of one device without any strategy, without its optimizer, and if it was measured "
    "with several batches, what a pass takes before its first sample. Link: from isolated gradient synchronization, "
    "over all data-parallel runs on as many devices, or from the hardware's YAML",
    "data from: the global batch from which on data parallelism should be faster than model parallelism, or a pipeline",
)
WINNERS_CAPTION = (
    "should: predicted seconds of a step, from the figures above and the optimizer's seconds on one device, but from "
    "no step time of these runs. It assumes that devices do not slow each other down, and that nothing overlaps with "
    "computation: of data parallelism, which hides synchronization behind the backward pass, it is an upper limit",
    "took: the samples of a step over the measured throughput, with 95 % limits",
    "tied: within those limits",
)


def section(report_data: ReportData) -> Section | None:
    """Return None if no model and batch was tried both ways."""
    estimate_ratio = report_data.configurations.estimate_ratio
    compared = compare_kinds(report_data.pooled, lambda row: report_data.result(str(row["run_id"])), estimate_ratio)
    if not compared:
        return None
    blocks: list[Block] = []
    for text, comparison in make_answers(compared):
        blocks.append(Paragraph(f"{text}.", "answer", get_filter_tags(comparison)))
    if text := describe_accuracy(compared):
        blocks.append(Paragraph(join_sentences(text)))
    blocks += [make_winners_table(compared[:MAX_ROWS]), make_traffic_table(compared[:MAX_ROWS])]
    if len(compared) > MAX_ROWS:
        blocks.append(Paragraph(f"{MAX_ROWS} of {len(compared)} are shown."))
    blocks += [Paragraph(f"{reason}.") for reason in list_unpredicted(compared)]
    return Section(SECTION_ID, "Data or model parallelism", blocks)


def make_terminal_blocks(pooled: pd.DataFrame, estimate_ratio: EstimateRatio) -> Iterator[Table | str]:
    """Yield tables, then sentences, about the models and batches that were tried both ways."""
    compared = compare_kinds(pooled, lambda row: read_result(Path(str(row["path"])) / RESULT_FILE), estimate_ratio)
    if not compared:
        return
    yield make_traffic_table(compared)
    yield make_winners_table(compared, limits=False)
    yield from list_unpredicted(compared)
    yield from (text for text, _ in make_answers(compared))
    if text := describe_accuracy(compared):
        yield text


def compare_kinds(pooled: pd.DataFrame, read: ReadRecord, estimate_ratio: EstimateRatio) -> list[ParallelismComparison]:
    """Compare the kinds of parallelism in a frame with a row for each configuration, in the order of models, devices
    and batches."""
    if not pooled["strategy"].isin(list(STAGED_STRATEGIES)).any():
        return []  # avoids looking at each of 10,000 rows
    compared = compare_parallelism(plain_rows(pooled), read, estimate_ratio)
    models = dict.fromkeys(str(comparison.row["model"]) for comparison in compared)
    places = {name: place for place, name in enumerate(models)}
    return sorted(compared, key=lambda each: (places[str(each.row["model"])], each.row["gpus"], each.global_batch))


def make_winners_table(compared: Sequence[ParallelismComparison], limits: bool = True) -> Table:
    """Make the table of seconds of each kind, and who wins; `limits` adds those of the measured seconds."""
    kinds = [kind for kind in KINDS if any(kind in comparison.results for comparison in compared)]
    numeric = ["gpus", "global batch", *(f"{kind} {text}" for kind in kinds for text in ("should", "took"))]
    rows = []
    for comparison in compared:
        row = _label_cells(comparison)
        for kind in kinds:
            row += [
                format_cell(comparison.predicted_s(kind), units.format_seconds),
                _measured_cell(comparison, kind, limits),
            ]
        right = {None: "", True: "yes", False: "no"}[comparison.right]
        row += [make_cell(comparison.predicted or ""), make_cell(_describe_winner(comparison)), make_cell(right)]
        rows.append(Row(row, get_filter_tags(comparison)))
    columns = ["model", *numeric, "should win", "won", "as predicted"]
    title, caption = "Data or model parallelism: predicted and measured", join_sentences(*WINNERS_CAPTION)
    return Table(f"{SECTION_ID}-winners", title, columns, rows, frozenset(numeric), caption)


def make_traffic_table(compared: Sequence[ParallelismComparison]) -> Table:
    """Make the table of bytes, operations per byte, and the rates that the prediction uses."""
    others = [kind for kind in (MODEL, PIPELINE) if any(kind in comparison.results for comparison in compared)]
    columns = ["gpus", "global batch", "data sends", "model sends", "data FLOP/B", "model FLOP/B", "device", "link",
               *(f"data from, over {kind}" for kind in others)]  # fmt: skip
    rows = []
    for comparison in compared:
        predicted = (kind for kind in others if kind in comparison.results and comparison.results[kind].cost)
        other = next(predicted, MODEL)
        row = [*_label_cells(comparison), _bytes_cell(comparison, DATA), _bytes_cell(comparison, other)]
        row += [_intensity_cell(comparison, DATA), _intensity_cell(comparison, other), *_rate_cells(comparison)]
        row += [format_cell(comparison.data_wins_from(kind), lambda batch: "any" if batch <= 1 else f"{batch:,.0f}")
                for kind in others]  # fmt: skip
        rows.append(Row(row, get_filter_tags(comparison)))
    title, caption = "Bytes of a step, and the operations for each of them", join_sentences(*TRAFFIC_CAPTION)
    return Table(f"{SECTION_ID}-bytes", title, ["model", *columns], rows, frozenset(columns), caption)


def make_answers(compared: Sequence[ParallelismComparison]) -> Iterator[tuple[str, ParallelismComparison]]:
    """Yield a sentence for each model and device count, with one of its comparisons."""
    groups: dict[tuple[str, int, str], list[ParallelismComparison]] = {}
    for comparison in compared:
        row = comparison.row
        groups.setdefault((str(row["model"]), row["gpus"], str(row["framework"])), []).append(comparison)
    several = len({framework for *_, framework in groups}) > 1
    for (model, gpus, framework), members in groups.items():
        by = f" with {framework}" if several else ""
        parts = [_join_batches("should win", [(each.predicted, each.global_batch) for each in members])]
        parts += [_join_batches("won", [(each.measured, each.global_batch) for each in members])]
        parts += [_describe_crossover(members[-1], kind) for kind in (MODEL, PIPELINE)]
        text = "; ".join(part for part in parts if part) or "neither predicted nor measured both ways"
        yield f"{model} on {gpus} devices{by}: {text}", members[0]


def describe_accuracy(compared: Sequence[ParallelismComparison]) -> str:
    """Say how often the prediction was right; empty if that is unknown for all."""
    right = [comparison.right for comparison in compared if comparison.right is not None]
    return f"the kind that should win did, or is tied with it, in {sum(right)} of {len(right)}" if right else ""


def list_unpredicted(compared: Sequence[ParallelismComparison]) -> list[str]:
    """Say why there is no prediction, each reason once, with its models and kinds."""
    reasons: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for comparison in compared:
        for kind, way in comparison.results.items():
            if way.reason is not None:
                models, kinds = reasons.setdefault(way.reason, ({}, {}))
                models[str(comparison.row["model"])], kinds[kind] = None, None
    return [f"{', '.join(models)}: {', '.join(kinds)} not predicted: {reason}"
            for reason, (models, kinds) in reasons.items()]  # fmt: skip


def get_filter_tags(comparison: ParallelismComparison) -> dict[str, str]:
    """Return the tags of a comparison without the strategy, of which it has several."""
    return {name: value for name, value in get_tags(comparison.row).items() if name != "strategy"}


def _label_cells(comparison: ParallelismComparison) -> list[Cell]:
    gpus, batch = comparison.row["gpus"], comparison.global_batch
    return [make_cell(str(comparison.row["model"])), make_cell(str(gpus), gpus), make_cell(f"{batch:,}", batch)]


def _measured_cell(comparison: ParallelismComparison, kind: str, limits: bool) -> Cell:
    """Make a cell of the measured seconds, or of the status of a run that was not successful."""
    way = comparison.results.get(kind)
    if way is None or not way.measured:
        return Cell("") if way is None else Cell(str(way.row["status"]))
    taken = rate_to_seconds(
        way.row[RATE_COLUMN], estimate_of(way.row, RATE_COLUMN, "throughput"), comparison.global_batch
    )
    low, high = taken.limits if limits else (None, None)
    return make_cell(format_duration(taken.value, low, high), taken.value)


def _describe_winner(comparison: ParallelismComparison) -> str:
    """Return `pipeline (pipeline_gpipe)`, or `data (ddp_gloo), tied: model`; not sure without limits over repeats."""
    if comparison.measured is None:
        return ""
    name = f"{comparison.measured} ({comparison.results[comparison.measured].row['strategy']})"
    missing = explain_no_verdict(*(result.row for result in comparison.results.values() if result.measured))
    if missing:
        return f"{name}, not sure: {missing}"
    return f"{name}, tied: {', '.join(comparison.tied)}" if comparison.tied else name


def _bytes_cell(comparison: ParallelismComparison, kind: str) -> Cell:
    way = comparison.results.get(kind)
    if way is None or way.cost is None:
        return Cell("")
    return format_cell(way.cost.sent_bytes(comparison.global_batch), units.format_bytes)


def _intensity_cell(comparison: ParallelismComparison, kind: str) -> Cell:
    way = comparison.results.get(kind)
    if way is None or way.cost is None or comparison.calibration is None:
        return Cell("")
    return format_cell(way.cost.flops_per_byte(comparison.calibration.work, comparison.global_batch), "{:,.0f}".format)


def _rate_cells(comparison: ParallelismComparison) -> list[Cell]:
    """Make `34.1 GFLOP/s, 2.10 ms a pass` and `1.20 GB/s, 45.0 us a message`, the second parts if they are known."""
    if comparison.calibration is None:
        return [Cell(""), Cell("")]
    rates, pass_s = comparison.calibration.rates, comparison.calibration.work.pass_s
    link = f"{units.format_bytes(rates.bytes_per_s)}/s"
    link += f", {units.format_seconds(rates.latency_s)} a message" if rates.latency_s else ""
    device = f"{rates.flops_per_s / 1e9:,.1f} GFLOP/s"
    device += f", {units.format_seconds(pass_s)} a pass" if pass_s > MIN_PASS_S else ""
    return [make_cell(device, rates.flops_per_s), make_cell(link, rates.bytes_per_s)]


def _join_batches(verb: str, winners: Sequence[tuple[str | None, int]]) -> str:
    """Return `data should win at 64 and 256, model at 8`."""
    batches: dict[str, list[str]] = {}
    for kind, batch in winners:
        if kind is not None:
            batches.setdefault(kind, []).append(f"{batch:,}")
    return ", ".join(f"{kind} {verb} at {' and '.join(several)}" for kind, several in batches.items())


def _describe_crossover(comparison: ParallelismComparison, kind: str) -> str:
    batch = comparison.data_wins_from(kind)
    if batch is None:
        return ""
    return f"data should be faster than {kind} {'at every batch' if batch <= 1 else f'from {batch:,.0f} on'}"
