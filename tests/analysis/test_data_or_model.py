"""Measured winners of made-up runs of data and model parallelism, and what their devices send."""

import dataclasses

import pytest

from scalebench.analysis.data_or_model import compare_parallelism
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from scalebench.report.sections import parallelism
from tests.builders import parallelism_runs, sweeps


def compared(*runs, read=None):
    by_id = {run.run_id: run for run in runs}
    configurations = sweeps.pool(runs)
    rows = plain_rows(configurations.make_frame())
    return compare_parallelism(rows, read or (lambda row: by_id[row["run_id"]]), configurations.estimate_ratio)


def test_bytes_are_those_of_the_gradients_and_of_the_recorded_cuts():
    (actual,) = compared(
        parallelism_runs.ddp_run(8, 0.1),
        parallelism_runs.pipeline_run("pipeline_1f1b", 8, 0.05),
        parallelism_runs.split_run(0.06),
    )
    assert list(actual.results) == ["data", "model", "pipeline"] and actual.fastest == "pipeline"
    data, model, pipeline = actual.results.values()
    assert data.sent_bytes == parallelism_runs.GRADIENT_BYTES  # 2 (2 - 1) / 2 of them
    assert data.flops_per_byte == pytest.approx(8 * parallelism_runs.FLOPS / 2 / parallelism_runs.GRADIENT_BYTES)
    assert pipeline.sent_bytes == 2 * 8 * 16_000 / 2  # one of two devices sends activations, the other gradients
    assert model.sent_bytes is None and model.flops_per_byte is None, "its stages were not recorded"
    assert [data.measured_s, model.measured_s] == pytest.approx([0.1, 0.06])
    half = parallelism_runs.pipeline_run("pipeline_1f1b", 8, 0.05)
    half.ranks[1].stages = []
    (actual,) = compared(parallelism_runs.ddp_run(8, 0.1), half)
    assert actual.results["pipeline"].sent_bytes is None


def test_the_fastest_of_a_kind_counts():
    data = parallelism_runs.ddp_run(8, 0.1)
    pipelines = [
        parallelism_runs.make_parallel_run("pipeline_gpipe", 8, 0.07),
        parallelism_runs.make_parallel_run("pipeline_1f1b", 8, 0.06),
    ]
    (actual,) = compared(data, *pipelines)
    assert list(actual.results) == ["data", "pipeline"]
    assert actual.results["pipeline"].row["strategy"] == "pipeline_1f1b"
    (actual,) = compared(data, parallelism_runs.split_run(None))
    assert actual.fastest is None and actual.results["model"].measured_s is None
    for unknown in (data, split := parallelism_runs.split_run(0.05)):
        unknown.workload.flops_per_sample = unknown.workload.gradient_bytes = None
    (actual,) = compared(data, split)
    assert actual.results["data"].flops_per_byte is actual.results["data"].sent_bytes is None


def test_only_the_same_work_stands_beside_each_other():
    data, split = parallelism_runs.ddp_run(8, 0.1), parallelism_runs.split_run(0.05)
    assert compared(parallelism_runs.ddp_run(16, 0.1), split) == []
    assert compared(data) == [] and compared(parallelism_runs.bare_run(8), split) == []
    wider = dataclasses.replace(split, spec={**split.spec, "model": {**split.spec["model"], "input_shape": [30]}})
    other = dataclasses.replace(split, scale=dataclasses.replace(split.scale, framework="tensorflow"))
    assert compared(data, wider) == compared(data, other) == []

    def gone(row):
        raise InputError(f"{row['path']}: gone")

    assert compared(data, split, read=gone) == []


def list_answers(comparisons):
    return [text for text, _ in parallelism.make_answers(comparisons)]


def test_a_winner_of_one_repeat_is_not_sure():
    comparisons = compared(parallelism_runs.ddp_run(8, 0.1), parallelism_runs.split_run(0.05))
    rows = parallelism.make_table(comparisons, limits=False).rows
    assert [" | ".join(cell.text for cell in row.cells) for row in rows] == [
        "mlp | 2 | 8 | data: ddp_gloo | 4.00 MB | 55 | 100 ms | ",
        "mlp | 2 | 8 | model: model_parallel |  |  | 50.0 ms | fastest",
    ]
    expected = ["mlp on 2 devices: model won at 8; not sure who won: one repeat, measure.repeats=3 decides"]
    assert list_answers(comparisons) == expected
    assert list_answers(compared(parallelism_runs.ddp_run(8, 0.1), parallelism_runs.split_run(None))) == [
        "mlp on 2 devices: not measured both ways"
    ]
