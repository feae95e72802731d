"""Predicted and measured winners of made-up runs, against figures worked out here."""

import dataclasses

import pytest

from scalebench.analysis.prediction.data_or_model import compare_parallelism
from scalebench.analysis.prediction.step_model import GROWTH, LAUNCH_S, OVERLAP
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from tests.builders import sweeps
from tests.builders.parallelism_runs import (
    BYTES_PER_S,
    FIRST_SHARE,
    FLOPS,
    FLOPS_PER_S,
    GRADIENT_BYTES,
    LATENCY_S,
    OPTIMIZER_S,
    SENT_BYTES,
    SYNC_S,
    bare_run,
    ddp_run,
    make_parallel_run,
    pipeline_run,
    work_s,
)


def compared(*runs):
    by_id = {run.run_id: run for run in runs}
    configurations = sweeps.pool(runs)
    rows = plain_rows(configurations.make_frame())
    return compare_parallelism(rows, lambda row: by_id[row["run_id"]], configurations.estimate_ratio)


def predicted_s(comparison, kind):
    return comparison.results[kind].predicted_s


def growth_s(batch):
    """Return the expected wait for the slower one of two devices (Blom 1958)."""
    return GROWTH * 0.564 * batch * FLOPS / FLOPS_PER_S / 2


def test_predictions_are_of_one_device_the_link_and_the_network():
    others = [
        ddp_run(16, 0.11, messages=5),
        make_parallel_run("model_parallel", 8, 0.05),
        make_parallel_run("pipeline_gpipe", 8, 0.06),
    ]
    (actual,) = compared(bare_run(8), ddp_run(8, 0.1), *others)  # one message and five tell the latency from the bytes
    for result in actual.results.values():
        model = result.prediction.model
        assert model.sample_s == pytest.approx(FLOPS / FLOPS_PER_S, rel=1e-3)
        assert (model.links.bytes_per_s, model.links.latency_s) == pytest.approx((BYTES_PER_S, LATENCY_S))
    data_s = work_s(8) / 2 + growth_s(8) + OPTIMIZER_S + SYNC_S + LAUNCH_S  # a single message overlaps with nothing
    assert predicted_s(actual, "data") == pytest.approx(data_s, rel=1e-3)
    assert actual.results["data"].sent_bytes == GRADIENT_BYTES
    assert actual.results["data"].flops_per_byte == pytest.approx(8 * FLOPS / 2 / GRADIENT_BYTES)
    sent_s = 2 * (LATENCY_S + 8 * SENT_BYTES / BYTES_PER_S)
    largest = 8_086_000 / 9_237_101  # parameters, biases among them, of the stage that has most
    split_s = work_s(8) + growth_s(8) + OPTIMIZER_S * largest + sent_s
    assert predicted_s(actual, "model") == pytest.approx(split_s, rel=1e-3)
    assert actual.results["model"].sent_bytes == 8 * SENT_BYTES
    worked_s = work_s(8) / 2 * (1 + FIRST_SHARE) + growth_s(8)
    sent_s = 2 * (2 * LATENCY_S + 8 * SENT_BYTES / BYTES_PER_S)  # two micro-batches, as the options say
    assert predicted_s(actual, "pipeline") == pytest.approx(worked_s + OPTIMIZER_S * largest + sent_s, rel=1e-3)
    assert (actual.predicted, actual.measured, actual.tied, actual.right) == ("pipeline", "model", [], False)
    assert [actual.results[kind].measured_s for kind in ("data", "model")] == pytest.approx([0.1, 0.05])


@pytest.mark.parametrize(("device", "overlap"), [("gpu", OVERLAP), ("cpu", 0.0)])
def test_several_messages_hide_behind_the_backward_pass_of_gpus(device, overlap):
    """On CPUs synchronization takes the cores that compute."""
    runs = [bare_run(64), ddp_run(64, 0.1, messages=4), make_parallel_run("model_parallel", 64, 0.05)]
    for run in runs:
        run.scale.device = device
    (actual,) = compared(*runs)
    model = actual.results["data"].prediction.model
    assert (model.messages, model.backward_share) == (4, pytest.approx(2 / 3, rel=1e-3))
    hidden_s = overlap * 2 / 3 * work_s(64) / 2 * 3 / 4
    sync_s = max(SYNC_S / 4, SYNC_S - hidden_s)
    expected_s = work_s(64) / 2 + growth_s(64) + OPTIMIZER_S + sync_s
    assert predicted_s(actual, "data") == pytest.approx(expected_s, rel=1e-2)
    assert (sync_s < 0.9 * SYNC_S) == (device == "gpu")


def test_the_step_that_is_predicted_has_no_part_in_it():
    steps = [(0.1, 0.05), (0.02, 3.0)]
    runs = [
        (bare_run(8), ddp_run(8, data_s), make_parallel_run("model_parallel", 8, model_s)) for data_s, model_s in steps
    ]
    (one,), (other,) = (compared(*each) for each in runs)
    assert [predicted_s(one, kind) for kind in one.results] == [predicted_s(other, kind) for kind in other.results]
    assert (one.measured, other.measured) == ("model", "data")
    assert (one.predicted, one.right, other.right) == ("model", True, False)


def test_the_winner_changes_with_the_batch():
    runs = [
        run
        for batch in (8, 64)
        for run in (bare_run(batch), ddp_run(batch, 0.1), make_parallel_run("model_parallel", batch, 0.1))
    ]
    small, large = compared(*runs)
    assert (small.row["global_batch"], large.row["global_batch"]) == (8, 64)
    assert (small.predicted, large.predicted) == ("model", "data")
    crossing = small.data_wins_from("model")
    assert crossing is not None and 8 < crossing < 64
    before, after = (
        [float(small.results[kind].prediction.step_s(2, batch / 2)) for kind in ("data", "model")]
        for batch in (crossing - 1, crossing)
    )
    assert before[0] >= before[1] and after[0] < after[1]
    assert small.data_wins_from("pipeline") is None
    assert (small.tied, large.tied) == ([], []), "one repeat resolves no tie"


def test_two_batches_determine_the_cost_of_a_pass():
    """3 ms of it on top of the work of either batch."""
    runs = [run for batch in (8, 64) for run in (bare_run(batch, pass_s=0.003), ddp_run(batch, 0.1),
                                                 make_parallel_run("pipeline_gpipe", batch, 0.1))]  # fmt: skip
    small, large = compared(*runs)
    model = small.results["data"].prediction.model
    assert model.pass_s == pytest.approx(0.003, rel=1e-2)
    assert model.sample_s == pytest.approx(FLOPS / FLOPS_PER_S, rel=1e-3)
    (alone, *_) = compared(*runs[:3])
    assert alone.results["data"].prediction.model.pass_s == 0
    expected_s = 0.003 + work_s(64) / 2 + growth_s(64) + OPTIMIZER_S + SYNC_S
    assert predicted_s(large, "data") == pytest.approx(expected_s, rel=1e-2)


def test_a_record_tells_how_its_model_was_cut():
    """Behind the first layer, which has a hundredth of the work."""
    (actual,) = compared(bare_run(8), ddp_run(8, 0.1), pipeline_run("pipeline_1f1b", 8, 0.1, micro_batches=4))
    model = actual.results["pipeline"].prediction.model
    assert model.micro_batches == 4
    worked_s = work_s(8) / 4 * (1 + 3 * 9_150_300 / 9_230_300) + growth_s(8)
    sent_s = 2 * 4 * (model.links.latency_s + 2 * 16_000 / model.links.bytes_per_s)
    expected_s = worked_s + OPTIMIZER_S * 0.75 + sent_s
    assert predicted_s(actual, "pipeline") == pytest.approx(expected_s, rel=1e-3)


def test_of_several_strategies_of_a_kind_the_fastest_counts():
    pipelines = [make_parallel_run("pipeline_gpipe", 8, 0.07), make_parallel_run("pipeline_1f1b", 8, 0.06)]
    (actual,) = compared(bare_run(8), ddp_run(8, 0.1), *pipelines)
    assert actual.results["pipeline"].row["strategy"] == "pipeline_1f1b" and list(actual.results) == [
        "data",
        "pipeline",
    ]


def test_a_failed_run_is_predicted_too():
    (actual,) = compared(bare_run(8), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, None))
    assert (actual.predicted, actual.measured, actual.right) == ("model", None, None)
    assert actual.results["model"].measured_s is None
    (actual,) = compared(
        bare_run(8),
        ddp_run(8, 0.1),
        make_parallel_run("model_parallel", 8, 0.12),
        make_parallel_run("pipeline_gpipe", 8, None),
    )
    assert actual.predicted == "pipeline" and actual.right is False  # of the two that ran, model should have won


def test_a_missing_measurement_is_the_reason_for_no_prediction():
    split = make_parallel_run("model_parallel", 8, 0.05)
    cases = [
        ([ddp_run(8, 0.1)], "no bare run on one device was measured: baseline=bare adds it"),
        (
            [bare_run(8, probed=False), ddp_run(8, 0.1)],
            "the bare run was measured without the parts of its step: measure.probes",
        ),
        (
            [bare_run(8), make_parallel_run("ddp_gloo", 8, 0.1)],
            "no link is known: the data-parallel run did not go well, or was",
        ),
        (
            [bare_run(8), make_parallel_run("ddp_gloo", 8, None)],
            "no link is known: the data-parallel run did not go well, or was",
        ),
    ]
    for runs, reason in cases:
        (actual,) = compared(*runs, split)
        assert actual.predicted is None and actual.right is None
        assert all(way.predicted_s is None and str(way.reason).startswith(reason) for way in actual.results.values())
    unknown = [bare_run(8), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05)]
    for run in unknown:
        run.workload.flops_per_sample = None
    (actual,) = compared(*unknown)
    assert actual.predicted is not None and actual.results["data"].flops_per_byte is None
    for run in unknown:
        run.workload.gradient_bytes, run.sync.message_bytes = None, []
    unknown[1].spec["hardware"]["links"] = {"intra_node_bytes_per_s": BYTES_PER_S}
    (actual,) = compared(*unknown)
    assert actual.results["data"].reason == "how many parameters there are is not known of this model"


def test_a_model_with_too_few_layers_for_the_stages_is_not_predicted():
    runs = [bare_run(8), make_parallel_run("model_parallel", 8, None, gpus=8), ddp_run(8, 0.1, gpus=8)]
    (actual,) = compared(*runs)
    assert actual.predicted is None and predicted_s(actual, "data") is not None
    assert "at most 5 stages" in str(actual.results["model"].reason)


def test_only_the_same_work_stands_beside_each_other():
    split = make_parallel_run("model_parallel", 8, 0.05)
    assert compared(bare_run(8), bare_run(16), ddp_run(16, 0.1), split) == []
    assert compared(bare_run(8), ddp_run(8, 0.1)) == [] and compared(bare_run(8), split) == []
    wider = dataclasses.replace(split, spec={**split.spec, "model": {**split.spec["model"], "input_shape": [30]}})
    assert compared(bare_run(8), ddp_run(8, 0.1), wider) == []
    other = dataclasses.replace(split, scale=dataclasses.replace(split.scale, framework="tensorflow"))
    assert compared(bare_run(8), ddp_run(8, 0.1), other) == []


def test_a_record_that_has_gone_is_left_out():
    runs = [bare_run(8), ddp_run(8, 0.1), make_parallel_run("model_parallel", 8, 0.05)]
    rows = plain_rows(sweeps.pool(runs).make_frame())

    def gone(row):
        raise InputError(f"{row['path']}: gone")

    assert compare_parallelism(rows, gone, sweeps.ratio_of_rows) == []
