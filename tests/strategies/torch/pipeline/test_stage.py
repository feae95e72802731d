"""Stages of a pipeline: the layout of activations between them, the order of their passes, and their measured costs."""

import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from scalebench.strategies.torch.pipeline.stage import (
    ActivationLayout,
    StageModule,
    StagePasses,
    cut_into_segments,
    measure_median_s,
    measure_node_costs,
)
from scalebench.strategies.torch.precision import Precision
from scalebench.workloads import networks
from scalebench.workloads.partition import split_into_stages
from tests.strategies.torch.conftest import spec_of

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
    assert layout.size_bytes(4) == 4 * outputs.numel()
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


class RecordedPasses(nn.Module):
    """Records its forward (F) and backward (B) passes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.passes = ""

    def forward(self, inputs):
        self.passes += "F"
        outputs = self.layer(inputs)
        outputs.register_hook(lambda gradient: self.record_backward())
        return outputs

    def record_backward(self):
        self.passes += "B"


@pytest.mark.parametrize(("forwards_ahead", "order"), [(1, "FBFBFB"), (2, "FFBFBB"), (3, "FFFBBB")])
def test_passes_run_in_the_order_of_the_schedule(forwards_ahead, order):
    module = RecordedPasses()
    StagePasses(module, list(torch.randn(6, 3).split(2)), forwards_ahead)()
    assert module.passes == order


def test_gradients_of_repeated_passes_are_those_of_the_whole_batch():
    module = RecordedPasses()
    inputs, targets = torch.randn(6, 3), torch.randn(6, 2).split(2)

    def loss(number, outputs):
        return (outputs - targets[number]).square().mean() / 3

    passes = StagePasses(module, list(inputs.split(2)), 2, loss)
    passes()
    passes()
    gradient = module.layer.weight.grad
    module.zero_grad()
    (module.layer(inputs) - torch.cat(targets)).square().mean().backward()
    torch.testing.assert_close(gradient, module.layer.weight.grad)


def test_layers_without_weights_that_read_samples_have_no_backward_pass():
    module, passes = nn.ReLU(), []
    module.register_forward_hook(lambda *_: passes.append("F"))
    module.register_full_backward_hook(lambda *_: passes.append("B"))
    StagePasses(module, [torch.randn(2, 3), torch.randn(2, 3)], 1)()
    assert passes == ["F", "F"]


def test_the_median_leaves_out_the_first_call():
    delays = iter([0.05, 0.01, 0.0, 0.02])
    slept = []

    def action():
        slept.append(next(delays))
        time.sleep(slept[-1])

    median_s = measure_median_s(action, lambda: None, repeats=3)
    assert slept == [0.05, 0.01, 0.0, 0.02]
    assert 0.01 <= median_s < 0.05


@pytest.mark.parametrize("model", ["materials_cnn", "resnet20_cifar10"])
def test_segments_are_the_complete_network(model):
    network = networks.build_network(spec_of("model_parallel", model=model).config.model)
    segments = list(cut_into_segments(network))
    assert [node for segment in segments for node in segment.nodes] == network.nodes[1:]
    assert [segment.source for segment in segments[1:]] == [segment.output for segment in segments[:-1]]


def test_measured_seconds_balance_the_stages():
    config = spec_of("model_parallel").config
    network = networks.build_network(config.model)
    few, many = (
        measure_node_costs(network, config, samples, CPU, Precision("float32", CPU), lambda: None)
        for samples in (2, 256)
    )
    ends = {segment.output.name for segment in cut_into_segments(network)}
    for costs in (few, many):
        assert {node.name for node, cost in zip(network.nodes, costs, strict=True) if cost > 0} == ends
    assert sum(many) > sum(few)
    assert len(split_into_stages(network, 3, many)) == 3
