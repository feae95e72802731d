"""Without overlap the same buckets are exchanged, and none before backward is over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.torch.batches import TorchBatch

ALL_REDUCE = "gloo:all_reduce"
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
BATCH = TorchBatch(torch.linspace(-1, 1, 20 * 600).reshape(20, 200, 3), torch.linspace(0, 1, 40).reshape(20, 2), 20)


def begins(one: Any) -> tuple[list[float], list[float]]:
    """When exchanges of an update began, and when its gradients were ready."""
    for _ in range(3):  # in the first ones buckets are made anew
        one.step(BATCH)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        one.step(BATCH)
    found = [(event.name, event.time_range.start) for event in profiler.events()]
    return tuple(sorted(start for name, start in found if name == wanted) for wanted in (ALL_REDUCE, GRADIENT))


@pytest.mark.parametrize("overlap", [True, False])
def test_when_buckets_are_exchanged(strategy: Any, overlap: bool) -> None:
    one = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, strategy__options__overlap=overlap)
    exchanged, ready = begins(one)
    assert len(exchanged) == len(one.message_sizes()) > 2
    assert sum(one.message_sizes()) == 4 * one.num_params() and len(ready) == 8
    assert (exchanged[0] < ready[-1]) == overlap


@pytest.mark.parametrize(
    "option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters", "broadcast_buffers"]
)
def test_weights_are_the_same_under_every_option(strategy: Any, option: str) -> None:
    """Two together, too."""
    trained = []
    for overlap in (True, False):
        options = {f"strategy__options__{option}": True, "strategy__options__overlap": overlap}
        one = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, train__accumulate=2, **options)
        for _ in range(3):
            one.step(BATCH)
        trained.append(one.parameters())
        one.close()
    for name, array in trained[0].items():
        assert (array == trained[1][name]).all(), name


def test_a_failed_backward_pass_leaves_no_bucket_behind(strategy: Any) -> None:
    one = strategy("ddp_gloo", strategy__options__bucket_cap_mb=0.01, strategy__options__overlap=False)
    first = next(one.model.parameters())
    fails = first.register_hook(lambda gradient: torch.full((9,), 1.0)[10])
    with pytest.raises(IndexError):
        one.step(BATCH)
    fails.remove()
