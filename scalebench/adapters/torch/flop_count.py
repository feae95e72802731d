"""Floating point operations as PyTorch itself counts them, beside what the description of a network says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


# What PyTorch 2.13 has no count for: attention on CPUs.
LACKING = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}


def counted(action: Callable[[], None]) -> int:
    """Of the convolutions, matrix products and attention in `action`, 2 per multiply-add (torch.utils.flop_counter)."""
    with FlopCounterMode(display=False, custom_mapping=LACKING) as counter:
        action()
    return int(counter.get_total_flops())
