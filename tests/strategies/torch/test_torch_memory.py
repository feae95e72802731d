"""The bytes of the state that a strategy keeps from step to step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.memory import count_state_bytes

PARAMETERS = 153441  # of materials_cnn, in 8 tensors
BATCH = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 20)
COUNTS = 4 * 8  # Adam's steps, of each tensor
# Adam keeps two moments of each weight, momentum one.
OF_OPTIMIZER = {"adam": 8 * PARAMETERS + COUNTS, "sgd": 0, "momentum": 4 * PARAMETERS}


@pytest.mark.parametrize("name", ["bare_torch", "ddp_gloo", "zero1", "fsdp_gloo"])
@pytest.mark.parametrize("optimizer", OF_OPTIMIZER)
def test_state_bytes_of_weights_gradients_and_optimizer(strategy: Any, name: str, optimizer: str) -> None:
    """Adam keeps four times the weights, to the byte except for its step counts. One process has all shards."""
    adapter = strategy(name, train__optimizer=optimizer)
    assert adapter.state_bytes() == [4 * PARAMETERS]
    for _ in range(2):
        adapter.step(BATCH)
        assert adapter.state_bytes() == [8 * PARAMETERS + OF_OPTIMIZER[optimizer]]


def test_moving_statistics_are_part_of_the_state(strategy: Any) -> None:
    adapter = strategy("bare_torch", model="resnet20_cifar10")
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in adapter.model.buffers())
    assert buffers > 0 and adapter.state_bytes() == [4 * adapter.num_params() + buffers]


def test_shared_tensors_count_once_and_tensors_of_other_devices_do_not_count() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    state = {0: {"moment": torch.zeros(5), "far": torch.zeros(7, device="meta"), "step": 3}}
    assert count_state_bytes(model, state, torch.device("cpu")) == 4 * (9 + 3 + 3 + 5)
    assert count_state_bytes(model, state, torch.device("meta")) == 4 * 7
