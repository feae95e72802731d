"""Floating point operations as PyTorch itself counts them, beside what the description of a network says."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.flop_counter import FlopCounterMode


def counted(action: Callable[[], None]) -> int:
    """Of the convolutions and matrix products in `action`, 2 per multiply-add (torch.utils.flop_counter)."""
    with FlopCounterMode(display=False) as counter:
        action()
    return int(counter.get_total_flops())
