"""How models were cut into pipeline stages, and how balanced these are; the terminal shows the same."""

from __future__ import annotations

from collections.abc import Iterator

from scalebench.analysis import step_breakdown, throughput
from scalebench.core import units
from scalebench.core.result import Result
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.report_data import ReportData, list_detailed_runs, list_left_out_runs, name_runs

STAGES_CAPTION = (
    "What a stage sends and how long it works are per step; its work was measured in isolation, forward and backward "
    "of all micro-batches. The last stage sends nothing on."
)


def list_stages(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the stages of the runs whose models were cut into some."""
    run_ids = set(report_data.frame.loc[report_data.frame["stages"].notna(), "run_id"])
    rows = [row for row in list_detailed_runs(report_data) if row["status"] == "ok" and row["run_id"] in run_ids]
    names, table_rows, paragraphs = name_runs(rows), [], []
    for row in rows:
        name, result, tags = names[row["run_id"]], report_data.result(row["run_id"]), doc.get_tags(row)
        table_rows += [(tags, {"run": name, **values}) for values in _list_stage_values(result)]
        paragraphs.append(doc.Paragraph(f"{name}: {describe_bubble(result)}.", tags=tags))
    yield spec.make_table("stages", "Stages", table_rows, ["operations"], STAGES_CAPTION, ["replica"])
    yield from paragraphs
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
        parts.append(f"{expected} is expected of {batches} through {stages} equal stage{'' if stages == 1 else 's'}")
    return "; ".join(parts)
