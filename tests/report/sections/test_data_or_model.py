"""The section data_or_model, and its tables in the terminal."""

from __future__ import annotations

from scalebench.analysis.prediction.calibration import NO_PROBES_REASON
from scalebench.analysis.prediction.data_or_model import ParallelismComparison
from scalebench.core.result import Result
from scalebench.report.document import Table
from scalebench.report.sections import data_or_model
from tests.builders import sweeps
from tests.builders.parallelism_runs import bare_run, ddp_run, make_parallel_run


def compare(*runs: Result) -> list[ParallelismComparison]:
    by_id = {run.run_id: run for run in runs}
    configurations = sweeps.pool(runs)
    read, estimate_ratio = (lambda row: by_id[row["run_id"]]), configurations.estimate_ratio
    return data_or_model.compare_kinds(configurations.make_frame(), read, estimate_ratio)


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


def test_a_reason_stands_for_what_is_not_predicted() -> None:
    comparisons = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05))
    reason = f"not predicted: the bare run was {NO_PROBES_REASON}"
    assert data_or_model.list_unpredicted(comparisons) == [f"mlp: data, model {reason}"]
    (winners,) = row_texts(data_or_model.make_winners_table(comparisons, limits=False))
    not_sure = "not sure: one repeat, measure.repeats=3 decides"
    assert winners == f"mlp | 2 | 8 |  | 100 ms |  | 50.0 ms |  | model (model_parallel), {not_sure} | "
    assert row_texts(data_or_model.make_traffic_table(comparisons)) == ["mlp | 2 | 8 |  |  |  |  |  |  | "]
    assert data_or_model.describe_accuracy(comparisons) == ""
    unmeasured = compare(bare_run(8, probed=False), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, None))
    assert [text for text, _ in data_or_model.make_answers(unmeasured)] == [
        "mlp on 2 devices: neither predicted nor measured both ways"
    ]


def tied_runs(repeat: int) -> list[Result]:
    """Runs of equal means, whose repeats differ."""
    data_s, model_s = 0.1 + 0.001 * repeat, 0.102 - 0.001 * repeat
    runs = [ddp_run(8, data_s, repeat=repeat), make_parallel_run("model_parallel", 8, model_s, repeat=repeat)]
    for run in runs:
        run.run_id += str(repeat)
    return runs


def test_a_tie_is_shown() -> None:
    (row,) = row_texts(
        data_or_model.make_winners_table(
            compare(bare_run(8), *(run for repeat in range(3) for run in tied_runs(repeat)))
        )
    )
    assert "(ddp_gloo), tied: model | yes" in row or "(model_parallel), tied: data | yes" in row
