"""A model cut into stages trains like the complete model, and what cannot be cut is unsupported with a reason."""

import pytest
import torch

from scalebench.core.errors import InputError
from scalebench.strategies import registry
from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch import base, pipeline
from scalebench.strategies.torch.base import tunes_convolutions
from tests.strategies.torch.conftest import run_ranks, spec_of, user_model
from tests.strategies.torch.pipeline import pipeline_rank

SMALL = {"dataset__size": 40, "dataset__validation_share": 0.0}  # two batches of 20, or three of 12 and one of 4


def run_stages(name, processes, folder, **changes):
    spec = spec_of(name, processes, **changes)
    spec.global_batch = 12
    return run_ranks(spec, folder, "pipeline.pipeline_rank")


def check_losses(ranks, bare, rel):
    """Check that the last stage alone reports losses, and that they are those of the complete model."""
    assert [rank["losses"] for rank in ranks[:-1]] == [None] * (len(ranks) - 1)
    assert ranks[-1]["losses"] == pytest.approx(pipeline_rank.losses(bare, bare.spec.config.model), rel=rel)


def check_weights(ranks, bare):
    """Check that the weights gathered from all stages are those of the complete model after as many steps."""
    for rank in ranks:
        assert rank["weights"] == pytest.approx(pipeline_rank.sums(bare), rel=1e-3, abs=1e-2)
        assert rank["params"] == bare.num_params()


@pytest.mark.real
@pytest.mark.parametrize("data_format", ["nhwc", pytest.param("nchw", marks=pytest.mark.slow)])
def test_stages_with_batch_norm_train_like_the_complete_model(strategy, tmp_path, data_format):
    """With sgd: Adam divides small gradients by their own size, and so makes steps of their rounding errors."""
    changes = {
        "model": "resnet20_cifar10",
        "train__optimizer": "sgd",
        "train__data_format": data_format,
        "strategy__options__split": "size",
        **SMALL,
    }
    ranks = run_stages("model_parallel", 2, tmp_path, **changes)
    del changes["strategy__options__split"]
    bare = strategy("bare_torch", **changes)
    check_losses(ranks, bare, rel=1e-5)
    check_weights(ranks, bare)
    assert [rank["waits"] for rank in ranks] == [0, 0], "no step waits for a message, not the first smaller one either"
    first, second = (rank["stages"][0] for rank in ranks)
    assert [len(rank["stages"]) for rank in ranks] == [1, 1]
    assert (first["index"], first["stages"], first["replica"], first["micro_batches"]) == (0, 2, 0, 1)
    assert first["last"] != second["first"]
    assert first["parameter_bytes"] + second["parameter_bytes"] == 4 * ranks[0]["params"]
    assert first["sent_bytes"] == ranks[0]["messages"][0] and second["sent_bytes"] is None
    assert min(first["work_s"], second["work_s"]) > 0
    assert ranks[0]["messages"] == ranks[1]["messages"]
    assert len(ranks[0]["messages"]) == 2
    for rank in ranks:  # activations in one direction, their gradients in the other, and nothing else
        assert rank["step"] == rank["isolated_sync"] == ["gloo:recv", "gloo:send"]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", ["pipeline_gpipe", "pipeline_1f1b"])
def test_micro_batches_in_half_precision(strategy, tmp_path, name):
    """Activations are sent in the type in which they are computed, at half the bytes.

    The batches of pipeline_rank divide into 4 micro-batches.
    """
    changes = {"train__precision": "bfloat16", **SMALL}
    ranks = run_stages(name, 3, tmp_path, strategy__options__micro_batches=4, **changes)
    check_losses(ranks, strategy("bare_torch", **changes), rel=2e-2)
    messages = ranks[0]["messages"]
    assert len(messages) == 2 * 2 * 4
    sent = [rank["stages"][0]["sent_bytes"] for rank in ranks[:-1]]
    assert sum(messages) == 2 * sum(sent)
    assert ranks[1]["isolated_sync"] == ["gloo:recv"] * 8 + ["gloo:send"] * 8


@pytest.mark.parametrize("name", ["model_parallel", "pipeline_gpipe", "pipeline_1f1b"])
def test_one_stage_is_the_complete_model(strategy, name):
    bare = strategy("bare_torch", **SMALL)
    expected = pipeline_rank.losses(bare, bare.spec.config.model)
    staged = strategy(name, **SMALL)
    assert pipeline_rank.losses(staged, staged.spec.config.model) == pytest.approx(expected, rel=1e-5)
    assert (staged.stages(), staged.message_sizes(), staged.backend_used()) == ([], [], None)


def test_the_learning_rate_can_be_set(strategy):
    staged = strategy("model_parallel", **SMALL)
    before = pipeline_rank.sums(staged)
    staged.set_learning_rate(0.0)
    pipeline_rank.losses(staged, staged.spec.config.model)
    assert pipeline_rank.sums(staged) == before


def test_costs_are_measured_on_the_samples_of_a_micro_batch(strategy, monkeypatch):
    measured_samples = []

    def measured(network, config, samples, *others):
        measured_samples.append(samples)
        assert torch.backends.cudnn.benchmark, "with the convolutions that the stages will have"
        return [0.0] * len(network.nodes)

    monkeypatch.setattr(pipeline, "measure_node_costs", measured)
    as_on_gpus(monkeypatch)
    staged = strategy("pipeline_gpipe", **SMALL, strategy__options__micro_batches=4)
    assert measured_samples == []  # one stage has nothing to balance
    staged.stage_count = 2
    staged._node_costs(staged.model.network)
    assert measured_samples == [5]


def as_on_gpus(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # and after the test
    monkeypatch.setattr(base, "tunes_convolutions", lambda device, is_full: tunes_convolutions("cuda", is_full))


def test_cudnn_tunes_for_full_batches_as_in_other_strategies(strategy, monkeypatch):
    as_on_gpus(monkeypatch)
    staged, tuned = strategy("model_parallel", **SMALL), []
    for batch in pipeline_rank.batches(staged.spec.config.model):
        staged.step(batch)
        tuned.append(torch.backends.cudnn.benchmark)
    assert tuned == [size == 12 for size in pipeline_rank.BATCH_SIZES]


@pytest.mark.parametrize(
    ("name", "gpus", "changes", "reason"),
    [
        ("model_parallel", 2, {"train__compile": True}, "leave out train.compile"),
        ("model_parallel", 2, user_model("Convolutional"), "a module of one's own does not say where it can be cut"),
        ("pipeline_gpipe", 2, {"strategy__options__micro_batches": 3}, "has 40 samples, which do not divide into 3"),
        ("hybrid", 3, {}, "gpus=3 is no multiple of it"),
    ],
)
def test_unsupported_runs_are_refused_before_processes_meet(name, gpus, changes, reason):
    """By the rules of test_refusals."""
    strategy = registry.load_strategy(name)(spec_of(name, gpus, **{**SMALL, "dataset__size": 80, **changes}), 0)
    with pytest.raises(Unsupported, match=reason):
        strategy.shard()
        strategy.setup()


def test_invalid_options_are_named():
    for name, option, value, message in [
        ("model_parallel", "split", "sise", "did you mean 'size'"),
        ("pipeline_gpipe", "micro_batches", 0, "should be at least 1"),
        ("pipeline_gpipe", "micro_batches", 1.5, "should be a whole number"),
        ("hybrid", "stages", 0, "should be at least 1"),
        ("hybrid", "schedule", "gpip", "did you mean 'gpipe'"),
    ]:
        with pytest.raises(InputError, match=message):
            registry.load_strategy(name)(spec_of(name, 2, **{f"strategy__options__{option}": value}), 0)
