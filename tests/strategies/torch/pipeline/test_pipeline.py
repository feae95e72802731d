"""Stages of a pipeline, and the layout of activations between them. A model cut into stages trains like the complete
model, and what cannot be cut is unsupported with a reason."""

import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from scalebench.core.errors import InputError
from scalebench.strategies import registry
from scalebench.strategies.base import Unsupported, measure_median_s
from scalebench.strategies.torch import devices
from scalebench.strategies.torch.devices import tunes_convolutions
from scalebench.strategies.torch.pipeline.schedule import ActivationLayout, StageModule
from tests.strategies.torch.conftest import run_ranks, spec_of
from tests.strategies.torch.pipeline import pipeline_rank

SMALL = {"dataset__size": 40, "dataset__validation_share": 0.0}  # two batches of 20, or three of 12 and one of 4


def check_losses(ranks, bare, rel):
    """Check that the last stage alone reports losses, and that they are those of the complete model."""
    assert [rank["losses"] for rank in ranks[:-1]] == [None] * (len(ranks) - 1)
    assert ranks[-1]["losses"] == pytest.approx(pipeline_rank.losses(bare, bare.spec.config.model), rel=rel)


def run_stages(name, processes, folder, **changes):
    spec = spec_of(name, processes, **changes)
    spec.global_batch = 12
    return run_ranks(spec, folder, "pipeline.pipeline_rank")


@pytest.mark.real
@pytest.mark.parametrize("data_format", ["nhwc", pytest.param("nchw", marks=pytest.mark.slow)])
def test_stages_with_batch_norm_train_like_the_complete_model(strategy, tmp_path, data_format):
    """With sgd: Adam divides small gradients by their own size, and so makes steps of their rounding errors."""
    changes = {"model": "resnet20_cifar10", "train__optimizer": "sgd", "train__data_format": data_format, **SMALL}
    ranks = run_stages("model_parallel", 2, tmp_path, strategy__options__split="size", **changes)
    bare = strategy("bare_torch", **changes)
    check_losses(ranks, bare, rel=1e-5)
    for rank in ranks:  # weights gathered from all stages
        assert rank["weights"] == pytest.approx(pipeline_rank.sums(bare), rel=1e-3, abs=1e-2)
        assert rank["params"] == bare.num_params()
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
    """The learning rate can be set."""
    bare, staged = (strategy(each, **SMALL) for each in ("bare_torch", name))
    expected = pipeline_rank.losses(bare, bare.spec.config.model)
    assert pipeline_rank.losses(staged, staged.spec.config.model) == pytest.approx(expected, rel=1e-5)
    assert (staged.stages(), staged.message_sizes(), staged.backend_used()) == ([], [], None)
    before = pipeline_rank.sums(staged)
    staged.set_learning_rate(0.0)
    pipeline_rank.losses(staged, staged.spec.config.model)
    assert pipeline_rank.sums(staged) == before


@pytest.fixture
def as_on_gpus(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # and after the test
    monkeypatch.setattr(devices, "tunes_convolutions", lambda device, is_full: tunes_convolutions("cuda", is_full))


@pytest.mark.usefixtures("as_on_gpus")
def test_convolutions_are_tuned_for_full_batches(strategy):
    staged, tuned = strategy("model_parallel", **SMALL), []
    for batch in pipeline_rank.batches(staged.spec.config.model):
        staged.step(batch)
        tuned.append(torch.backends.cudnn.benchmark)
    assert tuned == [size == 12 for size in pipeline_rank.BATCH_SIZES]


@pytest.mark.parametrize(("name", "gpus", "changes", "reason"), [
    ("pipeline_gpipe", 2, {"strategy__options__micro_batches": 3}, "has 40 samples, which do not divide into 3"),
    ("hybrid", 3, {}, "gpus=3 is not a multiple of it"),
])  # fmt: skip
def test_a_strategy_refuses_what_its_plan_does(name, gpus, changes, reason):
    """Before processes meet."""
    strategy = registry.load_strategy(name)(spec_of(name, gpus, **{**SMALL, "dataset__size": 80, **changes}), 0)
    with pytest.raises(Unsupported, match=reason):
        strategy.shard()
        strategy.setup()


CPU = torch.device("cpu")
LAYOUTS = {
    "vectors": torch.randn(4, 6),
    "curves": torch.randn(4, 3, 5),
    "tokens": torch.randn(4, 5, 3).movedim(-1, 1),
    "channels first": torch.randn(4, 3, 5, 7),
    "channels last": torch.randn(4, 3, 5, 7).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_outputs_are_sent_in_their_memory_layout(name):
    outputs = LAYOUTS[name]
    layout = ActivationLayout.from_outputs(outputs)
    packed = layout.pack(outputs)
    assert packed.is_contiguous()
    assert packed.data_ptr() == outputs.data_ptr()
    assert packed.shape == layout.empty(4, "cpu").shape
    unpacked = layout.unpack(packed)
    assert unpacked.data_ptr() == outputs.data_ptr()
    ordered = unpacked.movedim(-1, 1) if unpacked.dim() > 2 else unpacked  # as in NetworkModule.forward
    assert torch.equal(ordered, outputs)
    assert ordered.stride() == outputs.stride()


def test_outputs_in_another_layout_are_copied():
    layout = ActivationLayout.from_outputs(LAYOUTS["channels last"])
    packed = layout.pack(LAYOUTS["channels first"])
    assert packed.is_contiguous()
    assert torch.equal(layout.unpack(packed).movedim(-1, 1), LAYOUTS["channels first"])


def test_gradients_of_received_activations_are_contiguous():
    """They can be sent on without a copy."""
    layout = ActivationLayout.from_outputs(LAYOUTS["channels last"])
    stage = StageModule(Doubled(), nullcontext, layout, layout)
    received = layout.pack(LAYOUTS["channels last"]).requires_grad_()
    outputs = stage(received)
    outputs.backward(torch.randn_like(outputs))
    assert received.grad is not None and received.grad.is_contiguous()
    assert torch.equal(outputs, 2 * received)


class Doubled(nn.Module):
    """Takes inputs like a NetworkModule and returns twice their values in torch's order."""

    def forward(self, inputs):
        return 2 * inputs.movedim(-1, 1)


def test_the_median_leaves_out_the_first_call():
    delays = iter([0.05, 0.01, 0.0, 0.02])
    slept = []

    def action():
        slept.append(next(delays))
        time.sleep(slept[-1])

    median_s = measure_median_s(action, lambda: None, repeats=3)
    assert slept == [0.05, 0.01, 0.0, 0.02]
    assert 0.01 <= median_s < 0.05


def test_half_a_micro_batch_is_refused():
    spec = spec_of("pipeline_gpipe", 2, strategy__options__micro_batches=1.5)
    with pytest.raises(InputError, match="should be a whole number"):
        registry.load_strategy("pipeline_gpipe")(spec, 0)
