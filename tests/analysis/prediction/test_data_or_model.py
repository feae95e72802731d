"""Predicted and measured winners of made-up runs, against figures worked out here; and the stages of a model."""

import dataclasses

import pytest

from scalebench.analysis.prediction.data_or_model import NO_PROBES_REASON, compare_parallelism
from scalebench.analysis.prediction.model_stages import ModelStage, find_micro_batches, find_stages, recorded_stages
from scalebench.analysis.prediction.step_model import GROWTH, LAUNCH_S, OVERLAP
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.errors import InputError
from scalebench.core.spec import ModelSpec
from scalebench.report.sections import parallelism
from tests.builders import sweeps
from tests.builders.parallelism_runs import (
    BYTES_PER_S,
    FIRST_SHARE,
    FLOPS,
    FLOPS_PER_S,
    GRADIENT_BYTES,
    LATENCY_S,
    MLP,
    OPTIMIZER_S,
    SENT_BYTES,
    SYNC_S,
    bare_run,
    ddp_run,
    make_parallel_run,
    pipeline_run,
    work_s,
)


def compared(*runs, read=None):
    by_id = {run.run_id: run for run in runs}
    configurations = sweeps.pool(runs)
    rows = plain_rows(configurations.make_frame())
    return compare_parallelism(rows, read or (lambda row: by_id[row["run_id"]]), configurations.estimate_ratio)


def split_run(step_s, batch=8, **changes):
    return make_parallel_run("model_parallel", batch, step_s, **changes)


def predicted_s(comparison, kind):
    return comparison.results[kind].predicted_s


def growth_s(batch):
    """Return the expected wait for the slower one of two devices (Blom 1958)."""
    return GROWTH * 0.564 * batch * FLOPS / FLOPS_PER_S / 2


def test_predictions_are_of_one_device_the_link_and_the_network():
    others = [ddp_run(16, 0.11, messages=5), split_run(0.05), make_parallel_run("pipeline_gpipe", 8, 0.06)]
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
    runs = [bare_run(64), ddp_run(64, 0.1, messages=4), split_run(0.05, 64)]
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
    (one,), (other,) = (compared(bare_run(8), ddp_run(8, data_s), split_run(model_s))
                        for data_s, model_s in ((0.1, 0.05), (0.02, 3.0)))  # fmt: skip
    assert [predicted_s(one, kind) for kind in one.results] == [predicted_s(other, kind) for kind in other.results]
    assert (one.measured, other.measured) == ("model", "data")
    assert (one.predicted, one.right, other.right) == ("model", True, False)
    assert one.data_wins_from("pipeline") is None


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
    assert predicted_s(actual, "pipeline") == pytest.approx(worked_s + OPTIMIZER_S * 0.75 + sent_s, rel=1e-3)


def test_the_fastest_of_a_kind_counts_and_a_failed_run_is_predicted_too():
    data = bare_run(8), ddp_run(8, 0.1)
    pipelines = [make_parallel_run("pipeline_gpipe", 8, 0.07), make_parallel_run("pipeline_1f1b", 8, 0.06)]
    (actual,) = compared(*data, *pipelines)
    assert list(actual.results) == ["data", "pipeline"]
    assert actual.results["pipeline"].row["strategy"] == "pipeline_1f1b"
    (actual,) = compared(*data, split_run(None))
    assert (actual.predicted, actual.measured, actual.right) == ("model", None, None)
    assert actual.results["model"].measured_s is None
    (actual,) = compared(*data, split_run(0.12), make_parallel_run("pipeline_gpipe", 8, None))
    assert actual.predicted == "pipeline" and actual.right is False  # of the two that ran, model should have won


@pytest.mark.parametrize(("runs", "reason"), [
    ([ddp_run(8, 0.1)], "no bare run on one device was measured: baseline=bare adds it"),
    ([bare_run(8, probed=False), ddp_run(8, 0.1)],
     "the bare run was measured without the parts of its step: measure.probes"),
    *(([bare_run(8), make_parallel_run("ddp_gloo", 8, step_s)],
       "no link is known: the data-parallel run did not go well, or was") for step_s in (0.1, None)),
])  # fmt: skip
def test_a_missing_measurement_is_the_reason_for_no_prediction(runs, reason):
    (actual,) = compared(*runs, split_run(0.05))
    assert actual.predicted is None and actual.right is None
    assert all(way.predicted_s is None and str(way.reason).startswith(reason) for way in actual.results.values())


def test_what_is_not_known_of_the_model_or_has_gone():
    runs = [bare_run(8), ddp_run(8, 0.1), split_run(0.05)]
    for run in runs:
        run.workload.flops_per_sample = None
    (actual,) = compared(*runs)
    assert actual.predicted is not None and actual.results["data"].flops_per_byte is None
    for run in runs:
        run.workload.gradient_bytes, run.sync.message_bytes = None, []
    runs[1].spec["hardware"]["links"] = {"intra_node_bytes_per_s": BYTES_PER_S}
    (actual,) = compared(*runs)
    assert actual.results["data"].reason == "how many parameters there are is not known of this model"
    (actual,) = compared(bare_run(8), split_run(None, gpus=8), ddp_run(8, 0.1, gpus=8))
    assert actual.predicted is None and predicted_s(actual, "data") is not None
    assert "at most 5 stages" in str(actual.results["model"].reason)

    def gone(row):
        raise InputError(f"{row['path']}: gone")

    assert compared(*runs, read=gone) == []


def test_only_the_same_work_stands_beside_each_other():
    data, split = (bare_run(8), ddp_run(8, 0.1)), split_run(0.05)
    assert compared(bare_run(8), bare_run(16), ddp_run(16, 0.1), split) == []
    assert compared(*data) == [] and compared(bare_run(8), split) == []
    wider = dataclasses.replace(split, spec={**split.spec, "model": {**split.spec["model"], "input_shape": [30]}})
    other = dataclasses.replace(split, scale=dataclasses.replace(split.scale, framework="tensorflow"))
    assert compared(*data, wider) == compared(*data, other) == []


def test_stages_are_those_of_the_record_else_operations_are_balanced():
    first, last = find_stages(split_run(None))
    assert first.flops / (first.flops + last.flops) == pytest.approx(FIRST_SHARE)
    assert (first.sent_bytes, last.sent_bytes) == (SENT_BYTES, 0)  # 2000 float32 numbers
    assert first.parameter_bytes + last.parameter_bytes == 4 * 9_237_101
    run = pipeline_run("pipeline_gpipe", 8, 0.1, micro_batches=4)
    assert find_stages(run) == [ModelStage(6 * 80_000, 1_000_000, 16_000.0), ModelStage(6 * 9_150_300, 3_000_000, 0.0)]
    assert find_micro_batches(run) == 4
    run.ranks[1].stages = []
    assert recorded_stages(run) == [] and find_stages(run)[0].sent_bytes == SENT_BYTES  # half a chain tells nothing
    run = make_parallel_run("pipeline_gpipe", 8, None)
    for options, count in ((None, 2), ({"micro_batches": 8}, 8), ({"micro_batches": None}, 4)):
        run.spec["strategy"]["options"] = options or run.spec["strategy"]["options"]
        assert find_micro_batches(run) == count
    assert find_micro_batches(split_run(None)) == 1


def test_networks_without_stages_are_errors():
    other_end, no_model = (pipeline_run("model_parallel", 8, 0.1) for _ in range(2))
    other_end.ranks[1].stages[0].last = "elsewhere"
    no_model.spec["model"] = {"name": 3}
    for run, reason in (
        (split_run(None, model=dataclasses.replace(MLP, torch="mine:network")), "only the framework knows"),
        (split_run(None, model=ModelSpec("mpl", input_shape=[20])), "did you mean 'mlp'"),
        (split_run(None, gpus=6), "at most 5 stages"),
        (other_end, "from relu_2 to elsewhere, which mlp lacks"), (no_model, "lacks the model"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            find_stages(run)


def make_pairs():
    """Model parallelism is the faster at 8, where that is predicted, and at 64, where it is not."""
    return [
        run
        for batch, data_s, model_s in ((64, 0.30, 0.25), (8, 0.10, 0.05))
        for run in (
            bare_run(batch), ddp_run(batch, data_s, messages=batch // 14 + 1), split_run(model_s, batch),
            make_parallel_run("pipeline_gpipe", batch, None),
        )
    ]  # fmt: skip


def list_answers(comparisons):
    return [text for text, _ in parallelism.make_answers(comparisons)]


def test_a_reason_stands_for_what_is_not_predicted():
    unprobed = bare_run(8, probed=False), ddp_run(8, 0.1)
    comparisons = compared(*unprobed, split_run(0.05))
    rows = parallelism.make_table(comparisons, limits=False).rows
    assert [" | ".join(cell.text for cell in row.cells) for row in rows] == [
        "mlp | 2 | 8 | data: ddp_gloo |  |  |  | 100 ms | ",
        "mlp | 2 | 8 | model: model_parallel |  |  |  | 50.0 ms | measured",
    ]
    assert list(parallelism.list_remarks(comparisons)) == [
        f"not predicted (mlp, data; mlp, model): the bare run was {NO_PROBES_REASON}"
    ]
    assert list_answers(comparisons) == [
        "mlp on 2 devices: model won at 8; not sure who won: one repeat, measure.repeats=3 decides"
    ]
    assert list_answers(compared(*unprobed, split_run(None))) == [
        "mlp on 2 devices: neither predicted nor measured both ways"
    ]


def test_a_tie_is_shown():
    """Of equal means, whose repeats differ."""
    runs = [bare_run(8)]
    for repeat in range(3):
        data = ddp_run(8, 0.1 + 0.001 * repeat, repeat=repeat)
        for run in (data, split_run(0.102 - 0.001 * repeat, repeat=repeat)):
            run.run_id += str(repeat)
            runs.append(run)
    comparisons = compared(*runs)
    places = [row.cells[-1].text for row in parallelism.make_table(comparisons).rows]
    assert sorted(places) in (["measured", "predicted, tied"], ["predicted, measured", "tied"])
    assert "data and model tied at 8" in list_answers(comparisons)[0] and "won" not in list_answers(comparisons)[0]
