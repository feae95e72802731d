"""The section `stages` of a report: how models were cut into pipeline stages, and how balanced these are."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.analysis import pipeline_stages, throughput
from scalebench.core import units
from scalebench.core.result import Result, StageRecord
from scalebench.report import document as doc
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

MAX_STAGED_RUNS = 24
FIGURES = ("parameters", "sends per step", "work per step", "of the work")
COLUMNS = ("run", "replica", "stage", "operations", *FIGURES)
CAPTION = (
    "What a stage sends and how long it works are per step; its work was measured in isolation, forward and backward "
    "of all micro-batches. The last stage sends nothing on."
)


def section(report_data: ReportData) -> doc.Section | None:
    """Return None if every device had all of its model."""
    run_ids = set(report_data.frame.loc[report_data.frame["stages"].notna(), "run_id"])
    rows = [row for row in list_detailed_runs(report_data) if row["status"] == "ok" and row["run_id"] in run_ids]
    if not rows:
        return None
    names, made, paragraphs = name_runs(rows), [], []
    for row in rows[:MAX_STAGED_RUNS]:
        name, result = names[row["run_id"]], report_data.result(row["run_id"])
        made += [doc.Row([doc.Cell(name, name), *cells], doc.get_tags(row)) for cells in _make_cells(result)]
        paragraphs.append(doc.Paragraph(f"{name}: {describe_bubble(result)}.", tags=doc.get_tags(row)))
    numeric = frozenset(("replica", "stage", *FIGURES))
    blocks: list[doc.Block] = [doc.Table("stages", "Stages", COLUMNS, made, numeric, CAPTION), *paragraphs]
    if len(rows) > MAX_STAGED_RUNS:
        text = f"Shown are {MAX_STAGED_RUNS} of the {len(rows)} runs whose model was cut into stages."
        blocks.append(doc.Paragraph(text))
    blocks += list_left_out_runs(report_data)
    return doc.Section("stages", "How models were cut into stages", blocks)


def make_run_blocks(result: Result) -> Iterator[doc.Table | str]:
    """Yield the stages of a run for the terminal; nothing if every device had all of the model."""
    cells = list(_make_cells(result))
    if not cells:
        return
    first = 0 if len({row[0].text for row in cells}) > 1 else 1  # the replica only if there are several
    columns = COLUMNS[1 + first :]
    yield doc.Table(
        "stages", "stages of the model", columns, [doc.Row(row[first:]) for row in cells], frozenset(FIGURES)
    )
    yield describe_bubble(result)


def _make_cells(result: Result) -> Iterator[list[doc.Cell]]:
    """Yield the cells of each stage, replica by replica, from the input on."""
    for pipeline in pipeline_stages.group_stages(result):
        work = pipeline_stages.stage_work_s(pipeline)
        total_s = sum(work) if work is not None else 0.0
        for stage in pipeline:
            share = stage.work_s / total_s if stage.work_s is not None and total_s else None
            operations = stage.first if stage.first == stage.last else f"{stage.first} .. {stage.last}"
            yield [
                doc.Cell(str(stage.replica), stage.replica),
                doc.Cell(str(stage.index), stage.index),
                doc.Cell(operations, stage.first),
                doc.Cell(units.format_bytes(stage.parameter_bytes), stage.parameter_bytes),
                doc.Cell(_format_sent(stage), stage.sent_bytes),
                doc.Cell("-" if stage.work_s is None else units.format_seconds(stage.work_s), stage.work_s),
                doc.Cell("-" if share is None else units.format_percent(share), share),
            ]


def _format_sent(stage: StageRecord) -> str:
    """Return the bytes, nothing for the last stage, and a dash if they were not measured."""
    if stage.sent_bytes is not None:
        return units.format_bytes(stage.sent_bytes)
    return "" if stage.index == stage.stages - 1 else "-"


def describe_bubble(result: Result) -> str:
    """Describe the measured bubble beside the expected one."""
    pipelines, step_s = pipeline_stages.group_stages(result), throughput.step_s(result)
    stages, micro_batches = pipeline_stages.count_stages(pipelines)
    measured = pipeline_stages.mean_over_pipelines(pipelines, lambda work: pipeline_stages.bubble_share(work, step_s))
    parts = ["bubble: not measured"]
    if measured is not None:
        parts = [f"bubble: {units.format_percent(measured)} of the devices' time is no stage's forward or backward"]
        parts += ["below 0, since the isolated stages took longer than in training"] if measured < 0 else []
    if stages is not None and micro_batches is not None:
        expected = units.format_percent(pipeline_stages.expected_bubble_share(stages, micro_batches))
        batches = f"{micro_batches} micro-batch{'' if micro_batches == 1 else 'es'}"
        text = f"{expected} is expected of {batches} through {stages} equal stage{'' if stages == 1 else 's'}"
        unequal = pipeline_stages.mean_over_pipelines(
            pipelines, lambda work: pipeline_stages.expected_bubble_share_of_unequal_stages(work, micro_batches)
        )
        parts.append(
            text + (f", {units.format_percent(unequal)} of stages as unequal as these" if unequal is not None else "")
        )
    return "; ".join(parts)
