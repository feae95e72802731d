"""The stages of a run from its record or its network."""

import dataclasses

import pytest

from scalebench.analysis.prediction.model_stages import ModelStage, find_micro_batches, find_stages, recorded_stages
from scalebench.core.errors import InputError
from scalebench.core.spec import ModelSpec
from tests.builders.parallelism_runs import FIRST_SHARE, MLP, SENT_BYTES, make_parallel_run, pipeline_run


def test_where_nothing_is_recorded_operations_are_balanced():
    first, last = find_stages(make_parallel_run("model_parallel", 8, None))
    assert first.flops / (first.flops + last.flops) == pytest.approx(FIRST_SHARE)
    assert (first.sent_bytes, last.sent_bytes) == (SENT_BYTES, 0)  # 2000 float32 numbers
    assert first.parameter_bytes + last.parameter_bytes == 4 * 9_237_101


def test_a_record_is_believed():
    run = pipeline_run("pipeline_gpipe", 8, 0.1, micro_batches=4)
    assert find_stages(run) == [ModelStage(6 * 80_000, 1_000_000, 16_000.0), ModelStage(6 * 9_150_300, 3_000_000, 0.0)]
    assert find_micro_batches(run) == 4
    run.ranks[1].stages = []
    assert recorded_stages(run) == [] and find_stages(run)[0].sent_bytes == SENT_BYTES  # half a chain tells nothing


def test_micro_batches_are_those_asked_for():
    run = make_parallel_run("pipeline_gpipe", 8, None)
    assert find_micro_batches(run) == 2
    run.spec["strategy"]["options"] = {"micro_batches": 8}
    assert find_micro_batches(run) == 8
    run.spec["strategy"]["options"] = {"micro_batches": None}
    assert find_micro_batches(run) == 4
    assert find_micro_batches(make_parallel_run("model_parallel", 8, None)) == 1


def test_unknown_networks_are_errors():
    own = dataclasses.replace(MLP, torch="mine:network")
    with pytest.raises(InputError, match="only the framework knows"):
        find_stages(make_parallel_run("model_parallel", 8, None, model=own))
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        find_stages(make_parallel_run("model_parallel", 8, None, model=ModelSpec("mpl", input_shape=[20])))
    with pytest.raises(InputError, match="at most 5 stages"):
        find_stages(make_parallel_run("model_parallel", 8, None, gpus=6))
    run = pipeline_run("model_parallel", 8, 0.1)
    run.ranks[1].stages[0].last = "elsewhere"
    with pytest.raises(InputError, match="from relu_2 to elsewhere, which mlp lacks"):
        find_stages(run)
    run.spec["model"] = {"name": 3}
    with pytest.raises(InputError, match="lacks the model"):
        find_stages(run)
