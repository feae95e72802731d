"""The section data_or_model, and its tables in the terminal."""

from __future__ import annotations

from pathlib import Path

from scalebench.analysis.prediction.calibration import NO_PROBES_REASON
from scalebench.analysis.prediction.data_or_model import ParallelismComparison
from scalebench.analysis.repeats import pool_results
from scalebench.core.result import Result
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import data_or_model
from tests.builders.parallelism_runs import bare_run, ddp_run, make_parallel_run, run_folders
from tests.report.section_blocks import (
    SCRIPT,
    block_text,
    build_section,
    get_block,
    list_ids,
    select_blocks,
    write_report_data,
)


def test_the_answer_comes_before_its_tables(tmp_path: Path) -> None:
    section = build_section(data_or_model, tmp_path, make_pairs())
    answer, verdict = select_blocks(section, Paragraph)
    assert answer.kind == "answer" and answer.text.startswith("mlp on 2 devices: pipeline should win at 8")
    assert answer.text.endswith(".") and answer.tags == {"model": "mlp", "hardware": "cpu"}
    assert verdict.text == "The kind that should win did, or is tied with it, in 1 of 2."
    assert list_ids(section) == ["data-or-model-winners", "data-or-model-bytes"]
    for table in select_blocks(section, Table):
        assert len(table.rows) == 2 and table.numeric < set(table.columns) and table.caption.endswith(".")
        assert all("strategy" not in row.tags for row in table.rows)


def test_figures_are_the_frames(tmp_path: Path) -> None:
    report_data = write_report_data(tmp_path, make_pairs())
    table = get_block(data_or_model.section(report_data), Table, "data-or-model-winners")
    rate = {
        (row["strategy"], row["global_batch"]): row["throughput_samples_per_s"]
        for row in report_data.pooled.to_dict("records")
    }
    for row, batch in zip(table.rows, (8, 64), strict=True):
        values = {head: cell.value for head, cell in zip(table.columns, row.cells, strict=True)}
        assert values["data took"] == batch / rate["ddp_gloo", batch]
        assert values["model took"] == batch / rate["model_parallel", batch]


def test_missing_predictions_have_their_reason(tmp_path: Path) -> None:
    section = build_section(
        data_or_model,
        tmp_path,
        [bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05)],
    )
    sentences = [paragraph.text for paragraph in select_blocks(section, Paragraph)]
    assert f"mlp: data, model not predicted: the bare run was {NO_PROBES_REASON}." in sentences


def test_nothing_to_say(tmp_path: Path) -> None:
    assert build_section(data_or_model, tmp_path / "usual") is None
    assert build_section(data_or_model, tmp_path / "one", [bare_run(8), ddp_run(8, 0.1)]) is None


def test_text_stays_text(tmp_path: Path) -> None:
    changed = make_pairs()
    for run in changed:
        run.workload.model = SCRIPT
    section = build_section(data_or_model, tmp_path, changed)
    assert section is not None and all(SCRIPT in block_text(block) for block in select_blocks(section, Table))


def compare(*runs: Result) -> list[ParallelismComparison]:
    by_id = {run.run_id: run for run in runs}
    return data_or_model.compare_kinds(pool_results(runs, run_folders(*runs)), lambda row: by_id[row["run_id"]])


def make_pairs() -> list[Result]:
    """Model parallelism is the faster at 8, where that is predicted, and at 64, where it is not."""
    steps = {64: (0.30, 0.25), 8: (0.10, 0.05)}
    return [
        run
        for batch, (data_s, model_s) in steps.items()
        for run in (
            bare_run(batch),
            ddp_run(batch, data_s, messages=batch // 14 + 1),
            make_parallel_run("model_parallel", batch, model_s),
            make_parallel_run("pipeline_gpipe", batch, None),
        )
    ]


def row_texts(table: Table) -> list[str]:
    return [" | ".join(cell.text for cell in row.cells) for row in table.rows]


def test_winners() -> None:
    table = data_or_model.make_winners_table(compare(*make_pairs()), limits=False)
    assert " | ".join(table.columns) == (
        "model | gpus | global batch | data should | data took | model should | model took | pipeline should | "
        "pipeline took | should win | won | as predicted"
    )
    assert row_texts(table) == [
        "mlp | 2 | 8 | 72.4 ms | 100 ms | 54.5 ms | 50.0 ms | 52.0 ms | unsupported | pipeline | "
        "model (model_parallel) | yes",
        "mlp | 2 | 64 | 228 ms | 300 ms | 374 ms | 250 ms | 352 ms | unsupported | data | model (model_parallel) | no",
    ]
    with_limits = row_texts(data_or_model.make_winners_table(compare(*make_pairs())))
    assert "| 50.0 ms [50.0, 50.0] |" in with_limits[0] and "unsupported" in with_limits[0]


def test_bytes_and_operations_for_each() -> None:
    comparisons = compare(*make_pairs())
    assert row_texts(data_or_model.make_traffic_table(comparisons)) == [
        "mlp | 2 | 8 | 4.00 MB | 64.0 kB | 55 | 3,461 | 10.0 GFLOP/s | 100 MB/s, 100 us a message | 14 | 16",
        "mlp | 2 | 64 | 4.00 MB | 512 kB | 443 | 3,461 | 10.0 GFLOP/s | 100 MB/s, 100 us a message | 14 | 16",
    ]


def test_answers_are_sentences() -> None:
    comparisons = compare(*make_pairs())
    (answer,) = [text for text, _ in data_or_model.make_answers(comparisons)]
    assert answer == (
        "mlp on 2 devices: pipeline should win at 8, data should win at 64; model won at 8 and 64; "
        "data should be faster than model from 14 on; data should be faster than pipeline from 16 on"
    )
    assert data_or_model.describe_accuracy(comparisons) == "the kind that should win did, or is tied with it, in 1 of 2"
    assert data_or_model.list_unpredicted(comparisons) == []


def test_a_reason_stands_for_what_is_not_predicted() -> None:
    comparisons = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05))
    reason = f"not predicted: the bare run was {NO_PROBES_REASON}"
    assert data_or_model.list_unpredicted(comparisons) == [f"mlp: data, model {reason}"]
    assert row_texts(data_or_model.make_winners_table(comparisons, limits=False)) == [
        "mlp | 2 | 8 |  | 100 ms |  | 50.0 ms |  | model (model_parallel) | "
    ]
    assert row_texts(data_or_model.make_traffic_table(comparisons)) == ["mlp | 2 | 8 |  |  |  |  |  |  | "]
    assert data_or_model.describe_accuracy(comparisons) == ""
    unmeasured = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, None))
    assert [text for text, _ in data_or_model.make_answers(unmeasured)] == [
        "mlp on 2 devices: neither predicted nor measured both ways"
    ]


def test_a_tie_is_shown() -> None:
    (row,) = row_texts(
        data_or_model.make_winners_table(
            compare(bare_run(8), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.1))
        )
    )
    assert "(ddp_gloo), tied: model | yes" in row or "(model_parallel), tied: data | yes" in row
