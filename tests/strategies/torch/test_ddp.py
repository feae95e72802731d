"""Parts of an update of DistributedDataParallel, whose exchange is on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategies.base import BACKWARD, FORWARD, OPTIMIZER
from scalebench.strategies.torch.batches import TorchBatch


def test_parts_exchange_nothing(strategy: Any) -> None:
    """Neither gradients nor moving statistics, which the forward pass after an update would broadcast."""
    one = strategy("ddp_gloo", model="resnet20_cifar10", strategy__options__broadcast_buffers=True)
    batch = TorchBatch(torch.rand(2, 32, 32, 3), torch.tensor([1, 2]), 2)
    for _ in range(3):
        one.step(batch)
    assert exchanged(lambda: one.step(batch)) == {"gloo:all_reduce", "gloo:broadcast"}
    assert exchanged(lambda: [one.partial_step(batch, part) for part in (FORWARD, BACKWARD, OPTIMIZER)]) == set()
    one.step(batch)
    assert exchanged(lambda: one.step(batch)) == {"gloo:all_reduce", "gloo:broadcast"}


def exchanged(action: Any) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        action()
    return {event.name for event in profiler.events() if event.name.startswith("gloo:")}


@pytest.mark.parametrize("option", ["static_graph", "gradient_as_bucket_view", "find_unused_parameters"])
def test_parts_under_every_option(strategy: Any, option: str) -> None:
    """The reducer bears forward passes without a backward, and backward passes without an update."""
    one = strategy("ddp_gloo", **{f"strategy__options__{option}": True})
    batch = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
    for _ in range(3):  # in the first ones the buckets are made anew, and their order is told to all
        one.step(batch)
    for part in (FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER):
        one.partial_step(batch, part)
    one.step(batch)
    assert exchanged(lambda: one.step(batch)) == {"gloo:all_reduce"}
