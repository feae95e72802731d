"""Kinds of parallelism: what data and model parallelism send, and which is faster; how models were cut into pipeline
stages, and how balanced these are.

The terminal shows the same tables and sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis import step_breakdown, throughput
from scalebench.analysis.columns import RATE, estimate_of
from scalebench.analysis.data_or_model import MODEL, PIPELINE, ParallelismComparison, compare_parallelism, list_kinds
from scalebench.analysis.identity import group_by
from scalebench.analysis.prediction.curve_models import ReadRecord
from scalebench.analysis.ranking import join_with_and
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.verdicts import explain_no_verdict
from scalebench.core import units
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimate_arithmetic import rate_to_seconds
from scalebench.core.stats.estimates import Estimate
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

if TYPE_CHECKING:
    import pandas as pd

SECTION_ID = "data-or-model"
CAPTION = (
    "sends: bytes that a device sends in a step, the mean over the devices. With data parallelism 2 (n - 1) / n "
    "times the gradients of all parameters, in a ring; with model parallelism, and in a pipeline, the activations at "
    "the cuts and their gradients, as recorded",
    "FLOP/B: operations of all devices over what all of them send. That of data parallelism grows with the batch, that "
    "of model parallelism does not",
    "took: the samples of a step over the measured throughput, with 95 % limits; tied: within those limits",
)

MAX_STAGED_RUNS = 24
STAGES_CAPTION = (
    "What a stage sends and how long it works are per step; its work was measured in isolation, forward and backward "
    "of all micro-batches. The last stage sends nothing on."
)


def compare_parallelisms(report_data: ReportData) -> Iterator[doc.Block]:
    """Compare the models and batches that were tried both ways."""
    estimate_ratio = report_data.configurations.estimate_ratio
    compared = compare_kinds(report_data.pooled, lambda row: report_data.result(str(row["run_id"])), estimate_ratio)
    yield from (doc.Paragraph(f"{text}.", "answer", get_filter_tags(each)) for text, each in make_answers(compared))
    yield make_table(compared)


def make_terminal_blocks(pooled: pd.DataFrame, estimate_ratio: EstimateRatio) -> Iterator[doc.Table | str]:
    """Yield a table, then sentences, about the models and batches that were tried both ways."""
    compared = compare_kinds(pooled, lambda row: read_result(Path(str(row["path"])) / RESULT_FILE), estimate_ratio)
    if compared:
        yield make_table(compared, limits=False)
        yield from (text for text, _ in make_answers(compared))


def compare_kinds(pooled: pd.DataFrame, read: ReadRecord, estimate_ratio: EstimateRatio) -> list[ParallelismComparison]:
    """Compare the kinds of parallelism in a frame with a row for each configuration, in the order of models, devices
    and batches."""
    if not {MODEL, PIPELINE} & {*list_kinds(plain_rows(pooled.drop_duplicates("strategy")), read).values()}:
        return []  # avoids looking at each of 10,000 rows
    compared = compare_parallelism(plain_rows(pooled), read, estimate_ratio)
    models = dict.fromkeys(str(comparison.row["model"]) for comparison in compared)
    places = {name: place for place, name in enumerate(models)}
    return sorted(compared, key=lambda each: (places[each.row["model"]], each.row["gpus"], each.row["global_batch"]))


def make_table(compared: Sequence[ParallelismComparison], limits: bool = True) -> doc.Table:
    """Make a row for each kind of each model and batch; `limits` adds those of the measured seconds."""
    rows = []
    for comparison in compared:
        row, tied = comparison.row, comparison.tied
        for kind, result in comparison.results.items():
            took = doc.Cell(str(result.row["status"]))  # of a run that was not successful
            if result.measured_s is not None:
                rate = estimate_of(result.row, RATE) or Estimate(result.row[RATE])
                seconds = rate_to_seconds(rate, result.row["global_batch"])
                took = doc.format_cell(seconds if limits else seconds.value, units.format_seconds)
            place = "fastest" if kind == comparison.fastest else ""
            rows.append((get_filter_tags(comparison), {
                "model": row["model"], doc.DEVICES: row["gpus"], "global batch": row["global_batch"],
                "kind": f"{kind}: {result.row['strategy']}",
                "sends": (result.sent_bytes, units.format_bytes),
                "FLOP/B": (result.flops_per_byte, "{:,.0f}".format), "took": took,
                "fastest": "tied" if kind in tied or (place and tied) else place,
            }))  # fmt: skip
    caption, title = doc.join_sentences(*CAPTION), "Data or model parallelism"
    return spec.make_table(SECTION_ID, title, rows, ("kind", "fastest"), caption)


def make_answers(compared: Sequence[ParallelismComparison]) -> Iterator[tuple[str, ParallelismComparison]]:
    """Yield a sentence for each model and device count, with one of its comparisons."""
    groups = group_by(compared, lambda each: (str(each.row["model"]), each.row["gpus"], str(each.row["framework"])))
    several = len({framework for *_, framework in groups}) > 1
    for (model, gpus, framework), members in groups.items():
        by = f" with {framework}" if several else ""
        batches: dict[str, list[str]] = {}  # `data won`, or `data and model tied` -> 64, 256
        doubts = []  # why it is not sure who won; nothing with limits over repeats
        for each in members:
            if first := [kind for kind in each.results if kind in (each.fastest, *each.tied)]:
                winner = f"{join_with_and(first)} {'won' if len(first) == 1 else 'tied'}"
                batches.setdefault(winner, []).append(f"{each.row['global_batch']:,}")
                rows = [result.row for result in each.results.values() if result.measured_s is not None]
                doubts += [f"not sure who won: {doubt}"] if (doubt := explain_no_verdict(*rows)) else []
        won = ", ".join(f"{winner} at {join_with_and(several)}" for winner, several in batches.items())
        text = "; ".join(filter(None, [won, *doubts[:1]])) or "not measured both ways"
        yield f"{model} on {gpus} devices{by}: {text}", members[0]


def get_filter_tags(comparison: ParallelismComparison) -> dict[str, str]:
    """Return the tags of a comparison without the strategy, of which it has several."""
    return {name: value for name, value in doc.get_tags(comparison.row).items() if name != "strategy"}


def list_stages(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the stages of the runs whose models were cut into some."""
    run_ids = set(report_data.frame.loc[report_data.frame["stages"].notna(), "run_id"])
    rows = [row for row in list_detailed_runs(report_data) if row["status"] == "ok" and row["run_id"] in run_ids]
    names, table_rows, paragraphs = name_runs(rows), [], []
    for row in rows[:MAX_STAGED_RUNS]:
        name, result, tags = names[row["run_id"]], report_data.result(row["run_id"]), doc.get_tags(row)
        table_rows += [(tags, {"run": name, **values}) for values in _list_stage_values(result)]
        paragraphs.append(doc.Paragraph(f"{name}: {describe_bubble(result)}.", tags=tags))
    yield spec.make_table("stages", "Stages", table_rows, ["operations"], STAGES_CAPTION, ["replica"])
    yield from paragraphs
    yield from doc.note_left_out(MAX_STAGED_RUNS, len(rows), "runs whose model was cut into stages are shown")
    if rows:
        yield from list_left_out_runs(report_data)


def make_stage_blocks(result: Result) -> Iterator[doc.Table | str]:
    """Yield the stages of a run for the terminal; nothing if every device had all of the model."""
    rows: list[spec.TableRow] = [({}, values) for values in _list_stage_values(result)]
    if rows:
        yield spec.make_table("stages", "stages of the model", rows, ["operations"], optional=["replica"])
        yield describe_bubble(result)


def _list_stage_values(result: Result) -> Iterator[dict[str, doc.Cell]]:
    """Yield the figures of each stage, replica by replica, from the input on."""
    pipelines = step_breakdown.group_stages(result)
    for pipeline in pipelines:
        work = step_breakdown.stage_work_s(pipeline)
        total_s = sum(work) if work is not None else 0.0
        for stage in pipeline:
            share = stage.work_s / total_s if stage.work_s is not None and total_s else None
            operations = stage.first if stage.first == stage.last else f"{stage.first} .. {stage.last}"
            # The last stage sends nothing on.
            sent = units.format_bytes(stage.sent_bytes) if stage.sent_bytes is not None else "-"
            is_last = stage.sent_bytes is None and stage.index == stage.stages - 1
            yield {
                "replica": doc.Cell(str(stage.replica) if len(pipelines) > 1 else "", stage.replica),
                "stage": doc.Cell(str(stage.index), stage.index),
                "operations": doc.Cell(operations, stage.first),
                "parameters": doc.Cell(units.format_bytes(stage.parameter_bytes), stage.parameter_bytes),
                "sends per step": doc.Cell("" if is_last else sent, stage.sent_bytes),
                "work per step":
                    doc.Cell("-" if stage.work_s is None else units.format_seconds(stage.work_s), stage.work_s),
                "of the work": doc.Cell("-" if share is None else units.format_percent(share), share),
            }  # fmt: skip


def describe_bubble(result: Result) -> str:
    """Describe the measured bubble beside the expected one."""
    cells = step_breakdown.stage_cells(result, throughput.Measurement(result).step_s)
    measured, stages, micro_batches = cells["bubble_share"], cells["stages"], cells["micro_batches"]
    parts = ["bubble: not measured"]
    if measured is not None:
        parts = [
            f"bubble: {units.format_percent(measured)} of the devices' time is spent in no stage's forward or backward"
        ]
        parts += ["below 0, since the isolated stages took longer than in training"] if measured < 0 else []
    if stages is not None and micro_batches is not None:
        expected = units.format_percent(cells["bubble_share_expected"])
        batches = f"{micro_batches} micro-batch{'' if micro_batches == 1 else 'es'}"
        text = f"{expected} is expected of {batches} through {stages} equal stage{'' if stages == 1 else 's'}"
        unequal = step_breakdown.mean_over_pipelines(
            step_breakdown.group_stages(result),
            lambda work: step_breakdown.expected_bubble_share_of_unequal_stages(work, micro_batches),
        )
        parts.append(
            text + (f", {units.format_percent(unequal)} of stages as unequal as these" if unequal is not None else "")
        )
    return "; ".join(parts)
