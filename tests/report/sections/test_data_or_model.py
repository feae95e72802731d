"""The section data_or_model, and its tables in the terminal."""

from __future__ import annotations

from pathlib import Path

from scalebench.analysis.prediction.calibration import NO_PROBES_REASON
from scalebench.analysis.prediction.data_or_model import ParallelismComparison
from scalebench.analysis.repeats import pool_results
from scalebench.core.result import Result
from scalebench.report.document import Paragraph, Table
from scalebench.report.sections import data_or_model
from scalebench.report.sections.data_or_model import section
from tests.builders.parallelism_runs import bare, ddp, folders, made
from tests.report.section_blocks import SCRIPT, evidence, ids, of_kind, one, texts


def test_it_answers_then_shows_what_that_stands_on(tmp_path: Path) -> None:
    found = section(evidence(tmp_path, pairs()))
    said, verdict = of_kind(found, Paragraph)
    assert said.kind == "answer" and said.text.startswith("mlp on 2 devices: pipeline should win at 8")
    assert said.text.endswith(".") and said.tags == {"model": "mlp", "hardware": "cpu"}
    assert verdict.text == "The kind that should win did, or is tied with it, in 1 of 2."
    assert ids(found) == ["data-or-model-winners", "data-or-model-bytes"]
    for table in of_kind(found, Table):
        assert len(table.rows) == 2 and table.numeric < set(table.columns) and table.caption.endswith(".")
        assert all("strategy" not in row.tags for row in table.rows)


def test_figures_are_the_frames(tmp_path: Path) -> None:
    gathered = evidence(tmp_path, pairs())
    table = one(section(gathered), Table, "data-or-model-winners")
    rate = {
        (row["strategy"], row["global_batch"]): row["throughput_samples_per_s"]
        for row in gathered.pooled.to_dict("records")
    }
    for row, batch in zip(table.rows, (8, 64), strict=True):
        values = {head: cell.value for head, cell in zip(table.columns, row.cells, strict=True)}
        assert values["data took"] == batch / rate["ddp_gloo", batch]
        assert values["model took"] == batch / rate["model_parallel", batch]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    found = section(evidence(tmp_path, [bare(8, probed=False), ddp(8, 0.1), made("model_parallel", 8, 0.05)]))
    said = [words.text for words in of_kind(found, Paragraph)]
    assert f"mlp: data, model not predicted: the bare run was {NO_PROBES_REASON}." in said


def test_nothing_to_say(tmp_path: Path) -> None:
    assert section(evidence(tmp_path / "usual")) is None
    assert section(evidence(tmp_path / "one", [bare(8), ddp(8, 0.1)])) is None


def test_text_stays_text(tmp_path: Path) -> None:
    changed = pairs()
    for run in changed:
        run.workload.model = SCRIPT
    found = section(evidence(tmp_path, changed))
    assert found is not None and all(SCRIPT in texts(block) for block in of_kind(found, Table))


def found(*runs: Result) -> list[ParallelismComparison]:
    by_id = {run.run_id: run for run in runs}
    return data_or_model.compare_kinds(pool_results(runs, folders(*runs)), lambda row: by_id[row["run_id"]])


def pairs() -> list[Result]:
    """Model parallelism is the faster at 8, where that is predicted, and at 64, where it is not."""
    steps = {64: (0.30, 0.25), 8: (0.10, 0.05)}
    return [
        run
        for batch, (data_s, model_s) in steps.items()
        for run in (bare(batch), ddp(batch, data_s, messages=batch // 14 + 1), made("model_parallel", batch, model_s),
                    made("pipeline_gpipe", batch, None))
    ]  # fmt: skip


def lines(table: Table) -> list[str]:
    return [" | ".join(cell.text for cell in row.cells) for row in table.rows]


def test_winners() -> None:
    table = data_or_model.make_winners_table(found(*pairs()), limits=False)
    assert " | ".join(table.columns) == (
        "model | gpus | global batch | data should | data took | model should | model took | pipeline should | "
        "pipeline took | should win | won | as predicted"
    )
    assert lines(table) == [
        "mlp | 2 | 8 | 72.4 ms | 100 ms | 54.5 ms | 50.0 ms | 52.0 ms | unsupported | pipeline | "
        "model (model_parallel) | yes",
        "mlp | 2 | 64 | 228 ms | 300 ms | 374 ms | 250 ms | 352 ms | unsupported | data | model (model_parallel) | no",
    ]
    with_limits = lines(data_or_model.make_winners_table(found(*pairs())))
    assert "| 50.0 ms [50.0, 50.0] |" in with_limits[0] and "unsupported" in with_limits[0]


def test_bytes_and_operations_for_each() -> None:
    made_of = found(*pairs())
    assert lines(data_or_model.make_traffic_table(made_of)) == [
        "mlp | 2 | 8 | 4.00 MB | 64.0 kB | 55 | 3,461 | 10.0 GFLOP/s | 100 MB/s, 100 us a message | 14 | 16",
        "mlp | 2 | 64 | 4.00 MB | 512 kB | 443 | 3,461 | 10.0 GFLOP/s | 100 MB/s, 100 us a message | 14 | 16",
    ]


def test_in_words() -> None:
    made_of = found(*pairs())
    (said,) = [words for words, _ in data_or_model.make_answers(made_of)]
    assert said == (
        "mlp on 2 devices: pipeline should win at 8, data should win at 64; model won at 8 and 64; "
        "data should be faster than model from 14 on; data should be faster than pipeline from 16 on"
    )
    assert data_or_model.describe_accuracy(made_of) == "the kind that should win did, or is tied with it, in 1 of 2"
    assert data_or_model.list_unpredicted(made_of) == []


def test_a_reason_stands_for_what_is_not_predicted() -> None:
    made_of = found(bare(8, probed=False), ddp(8, 0.1), made("model_parallel", 8, 0.05))
    reason = f"not predicted: the bare run was {NO_PROBES_REASON}"
    assert data_or_model.list_unpredicted(made_of) == [f"mlp: data, model {reason}"]
    assert lines(data_or_model.make_winners_table(made_of, limits=False)) == [
        "mlp | 2 | 8 |  | 100 ms |  | 50.0 ms |  | model (model_parallel) | "
    ]
    assert lines(data_or_model.make_traffic_table(made_of)) == ["mlp | 2 | 8 |  |  |  |  |  |  | "]
    assert data_or_model.describe_accuracy(made_of) == ""
    nothing = found(bare(8, probed=False), ddp(8, 0.1), made("model_parallel", 8, None))
    assert [words for words, _ in data_or_model.make_answers(nothing)] == [
        "mlp on 2 devices: neither predicted nor measured both ways"
    ]


def test_who_is_tied_is_said() -> None:
    (row,) = lines(data_or_model.make_winners_table(found(bare(8), ddp(8, 0.1), made("model_parallel", 8, 0.1))))
    assert "(ddp_gloo), tied: model | yes" in row or "(model_parallel), tied: data | yes" in row
