"""Decoder-only transformers as GPT-2: Radford et al. 2019, Language Models are Unsupervised Multitask Learners."""

from __future__ import annotations

import math

from scalebench.spec import InputError
from scalebench.workloads.network import Network, Node

DEVIATION = 0.02  # of the initial weights: openai/gpt-2, src/model.py
EXPANSION = 4  # of the width, in the dense layers of a block


def gpt(
    net: Network, outputs: int, layers: int = 4, width: int = 256, heads: int = 4, sequence_length: int = 64
) -> None:
    """3,437,056 parameters with 512 outputs, which are the vocabulary: the next token's logits at each position.

    Blocks normalise before attention and before the dense layers, whose sums with what came in go on. Weights that end
    in such a sum start smaller by 1 / sqrt(2 layers) (section 2.3 there). Otherwise than GPT-2 it has no dropout, keys
    have no bias (attention is the same with one, so that its gradient is 0 but for rounding), query, key and value are
    layers of their own, and the last layer has a kernel of its own instead of the tokens' table.

    Raises InputError for figures below 1, a width that the heads do not divide, and an input of another length.
    """
    _check(net, layers, width, heads, sequence_length)
    x = net.positions(net.embedding(net.input, "tokens", outputs, width, _normal()), "positions", _normal())
    for number in range(1, layers + 1):
        x = _block(net, x, f"block{number}", heads, _normal(math.sqrt(2 * layers)))
    net.dense(net.layer_norm(x, "norm"), "head", outputs, _normal(), bias=False)


def input_shape(sequence_length: int = 64) -> tuple[int]:
    """(tokens of a sample,)."""
    return (sequence_length,)


def _block(net: Network, x: Node, name: str, heads: int, last: str) -> Node:
    """`last`: how weights start whose product is added to what came in."""
    width = x.shape[-1]
    y = net.layer_norm(x, f"{name}_norm1")
    query, value = (net.dense(y, f"{name}_{part}", width, _normal()) for part in ("query", "value"))
    key = net.dense(y, f"{name}_key", width, _normal(), bias=False)
    y = net.attention(query, key, value, f"{name}_attention", heads)
    x = net.add(x, net.dense(y, f"{name}_project", width, last))
    y = net.dense(net.layer_norm(x, f"{name}_norm2"), f"{name}_expand", EXPANSION * width, _normal())
    return net.add(x, net.dense(net.gelu(y), f"{name}_contract", width, last))


def _normal(divided_by: float = 1.0) -> str:
    return f"normal:{DEVIATION / divided_by}"


def _check(net: Network, layers: int, width: int, heads: int, sequence_length: int) -> None:
    figures = {"layers": layers, "width": width, "heads": heads, "sequence_length": sequence_length}
    for key, value in figures.items():
        if value < 1:
            raise InputError(f"model.options.{key}={value} should be at least 1")
    if width % heads:
        raise InputError(f"model.options.heads={heads} does not divide model.options.width={width}: take one that does")
    if net.input.shape != input_shape(sequence_length):
        raise InputError(
            f"model.options.sequence_length={sequence_length} means model.input_shape={[sequence_length]}, "
            f"not {list(net.input.shape)}"
        )
