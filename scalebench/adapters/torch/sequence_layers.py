"""Operations of transformers as torch modules. They take and give (samples, positions, channels)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from scalebench.workloads.network import Node


class Positions(nn.Module):
    """Adds what is learnt of each position."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class CausalAttention(nn.Module):
    """By PyTorch's own kernels, over as many heads as the width that comes in has: of a part of it, a part of them."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = (x.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for x in (query, key, value))
        return functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


MAKERS: dict[str, Callable[[Node], nn.Module]] = {
    "embedding": lambda node: skip_init(nn.Embedding, *node.arrays[0].shape),
    "positions": lambda node: Positions(node.shape),
    "layer_norm": lambda node: nn.LayerNorm(node.shape[-1], node.settings["epsilon"]),
    "gelu": lambda node: nn.GELU(approximate="tanh"),
    "attention": lambda node: CausalAttention(node.settings["head_width"]),
}
