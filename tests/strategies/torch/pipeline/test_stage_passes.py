"""Forward and backward of a stage by itself: as many as in an update, in the order of its schedule."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from scalebench.strategies.torch.pipeline.stage import Work, median_s


class Listening(nn.Module):
    """Notes each forward and backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.seen = ""

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += "F"
        outputs = self.layer(inputs)
        outputs.register_hook(lambda gradient: self.note())
        return outputs

    def note(self) -> None:
        self.seen += "B"


@pytest.mark.parametrize(("ahead", "order"), [(1, "FBFBFB"), (2, "FFBFBB"), (3, "FFFBBB")])
def test_passes_come_in_the_order_of_the_schedule(ahead: int, order: str) -> None:
    module = Listening()
    inputs = list(torch.randn(6, 3).split(2))
    Work(module, inputs, ahead)()
    assert module.seen == order


def test_gradients_are_those_of_the_whole_batch_each_time() -> None:
    module = Listening()
    inputs, targets = torch.randn(6, 3), torch.randn(6, 2).split(2)

    def loss(number: int, outputs: Tensor) -> Tensor:
        return (outputs - targets[number]).square().mean() / 3

    work = Work(module, list(inputs.split(2)), 2, loss)
    work()
    work()
    found = module.layer.weight.grad
    module.zero_grad()
    (module.layer(inputs) - torch.cat(targets)).square().mean().backward()
    torch.testing.assert_close(found, module.layer.weight.grad)


def test_layers_without_weights_that_read_samples_have_no_backward() -> None:
    Work(nn.ReLU(), [torch.randn(2, 3)], 1)()


def test_median_leaves_the_first_one_out() -> None:
    waits = iter([0.05, 0.01, 0.0, 0.02])
    waited: list[float] = []

    def action() -> None:
        waited.append(next(waits))
        time.sleep(waited[-1])

    found = median_s(action, lambda: None, repeats=3)
    assert waited == [0.05, 0.01, 0.0, 0.02]
    assert 0.01 <= found < 0.05
