"""DistributedDataParallel: parts of a step without communication, and synchronization after the backward pass."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER
from scalebench.strategies.torch.batches import TorchBatch


def test_parts_of_a_step_send_nothing(strategy):
    """Neither gradients are sent nor moving statistics, which the forward pass after a step would broadcast."""
    adapter = strategy("ddp_gloo", model="resnet20_cifar10", strategy__options__broadcast_buffers=True)
    batch = TorchBatch(torch.rand(2, 32, 32, 3), torch.tensor([1, 2]), 2)
    for _ in range(3):
        adapter.step(batch)
    assert gloo_events(lambda: adapter.step(batch)) == {"gloo:all_reduce", "gloo:broadcast"}
    assert gloo_events(lambda: [adapter.partial_step(batch, part) for part in (FORWARD, BACKWARD, OPTIMIZER)]) == set()
    adapter.step(batch)
    assert gloo_events(lambda: adapter.step(batch)) == {"gloo:all_reduce", "gloo:broadcast"}


def gloo_events(action):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        action()
    return {event.name for event in profiler.events() if event.name.startswith("gloo:")}


@pytest.mark.parametrize("option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters"])
def test_parts_of_a_step_under_every_option(strategy, option):
    """The reducer tolerates forward passes without a backward pass, and backward passes without an optimizer step."""
    adapter = strategy("ddp_gloo", **{f"strategy__options__{option}": True})
    batch = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
    for _ in range(3):  # the first steps rebuild the buckets and broadcast their order
        adapter.step(batch)
    for part in (FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER):
        adapter.partial_step(batch, part)
    adapter.step(batch)
    assert gloo_events(lambda: adapter.step(batch)) == {"gloo:all_reduce"}


ALL_REDUCE = "gloo:all_reduce"
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
BATCH = TorchBatch(torch.linspace(-1, 1, 20 * 600).reshape(20, 200, 3), torch.linspace(0, 1, 40).reshape(20, 2), 20)


def sync_starts(adapter):
    """Return when the all-reduces of a step started, and when its gradients were ready."""
    for _ in range(3):  # the first steps rebuild the buckets
        adapter.step(BATCH)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        adapter.step(BATCH)
    actual = [(event.name, event.time_range.start) for event in profiler.events()]
    return tuple(sorted(start for name, start in actual if name == expected) for expected in (ALL_REDUCE, GRADIENT))


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_are_sent_during_or_after_the_backward_pass(strategy, overlap):
    adapter = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, strategy__options__overlap=overlap)
    starts, ready = sync_starts(adapter)
    assert len(starts) == len(adapter.message_sizes()) > 2
    assert sum(adapter.message_sizes()) == 4 * adapter.num_params() and len(ready) == 8
    assert (starts[0] < ready[-1]) == overlap


@pytest.mark.parametrize(
    "option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"]
)
def test_weights_do_not_depend_on_overlap_under_any_option(strategy, option):
    """With gradient accumulation in two parts."""
    trained = []
    for overlap in (True, False):
        options = {f"strategy__options__{option}": True, "strategy__options__overlap": overlap}
        adapter = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, train__accumulate=2, **options)
        for _ in range(3):
            adapter.step(BATCH)
        trained.append(adapter.parameters())
        adapter.close()
    for name, array in trained[0].items():
        assert (array == trained[1][name]).all(), name


def test_a_failed_backward_pass_leaves_no_bucket(strategy):
    adapter = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, strategy__options__overlap=False)
    first = next(adapter.model.parameters())
    fails = first.register_hook(lambda gradient: torch.full((9,), 1.0)[10])
    with pytest.raises(IndexError):
        adapter.step(BATCH)
    fails.remove()
