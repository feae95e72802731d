"""What goes between stages keeps its values and its place in memory, and nothing is copied on the way."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from scalebench.strategies.torch.pipeline.stage import StageModule, Wire

LAYOUTS = {
    "vectors": torch.randn(4, 6),
    "curves": torch.randn(4, 3, 5),
    "tokens": torch.randn(4, 5, 3).movedim(-1, 1),
    "channels first": torch.randn(4, 3, 5, 7),
    "channels last": torch.randn(4, 3, 5, 7).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sent_as_it_lies(name: str) -> None:
    outputs = LAYOUTS[name]
    wire = Wire.of(outputs)
    sent = wire.sent(outputs)
    assert sent.is_contiguous()
    assert sent.data_ptr() == outputs.data_ptr()
    assert sent.shape == wire.empty(4, "cpu").shape
    assert wire.bytes(4) == 4 * outputs.numel()
    taken = wire.received(sent)
    assert taken.data_ptr() == outputs.data_ptr()
    back = taken.movedim(-1, 1) if taken.dim() > 2 else taken  # as a NetworkModule takes it in
    assert torch.equal(back, outputs)
    assert back.stride() == outputs.stride()


def test_what_does_not_lie_so_is_copied() -> None:
    wire = Wire.of(LAYOUTS["channels last"])
    sent = wire.sent(LAYOUTS["channels first"])
    assert sent.is_contiguous() and torch.equal(wire.received(sent).movedim(-1, 1), LAYOUTS["channels first"])


def test_half_precision_takes_half_the_bytes() -> None:
    assert Wire.of(torch.zeros(2, 8, dtype=torch.bfloat16)).bytes(3) == 48


def test_gradients_come_back_as_they_are_sent() -> None:
    """What a stage receives gets a gradient that can be sent on without a copy."""
    wire = Wire.of(LAYOUTS["channels last"])
    stage = StageModule(Turned(), nullcontext, wire, wire)  # type: ignore[arg-type]
    received = wire.sent(LAYOUTS["channels last"]).requires_grad_()
    sent = stage(received)
    sent.backward(torch.randn_like(sent))
    assert received.grad is not None and received.grad.is_contiguous()
    assert torch.equal(sent, 2 * received)


class Turned(nn.Module):
    """Takes what a NetworkModule does, and gives twice that in torch's order."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * inputs.movedim(-1, 1)
