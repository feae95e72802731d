"""What a strategy keeps from update to update, against arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.memory import kept_bytes

PARAMETERS = 153441  # of materials_cnn, in 8 tensors
BATCH = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
COUNTS = 4 * 8  # Adam's steps, of each tensor
# Adam keeps two moments of each weight, momentum one.
OF_OPTIMIZER = {"adam": 8 * PARAMETERS + COUNTS, "sgd": 0, "momentum": 4 * PARAMETERS}


@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "zero1", "fsdp_gloo"])
@pytest.mark.parametrize("optimizer", OF_OPTIMIZER)
def test_weights_gradients_and_the_optimizers_state(strategy: Any, name: str, optimizer: str) -> None:
    """Adam: four times the weights, to the byte but for its counts of steps. On one process nothing is shared out."""
    one = strategy(name, train__optimizer=optimizer)
    assert one.state_bytes() == [4 * PARAMETERS]
    for _ in range(2):
        one.step(BATCH)
        assert one.state_bytes() == [8 * PARAMETERS + OF_OPTIMIZER[optimizer]]


def test_moving_statistics_are_part_of_it(strategy: Any) -> None:
    one = strategy("bare_torch", model="resnet20_cifar10")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in one.model.buffers())
    assert buffers > 0 and one.state_bytes() == [4 * one.num_params() + buffers]


def test_what_is_shared_counts_once_and_what_is_elsewhere_not_at_all() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    state = {0: {"moment": torch.zeros(5), "far": torch.zeros(7, device="meta"), "step": 3}}
    assert kept_bytes(model, state, torch.device("cpu")) == 4 * (9 + 3 + 3 + 5)
    assert kept_bytes(model, state, torch.device("meta")) == 4 * 7
