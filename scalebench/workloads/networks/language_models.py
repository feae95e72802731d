"""Language models, which predict the token after each one.

gpt is a decoder-only transformer like GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners"), lstm the recurrent network of Zaremba et al. 2014 ("Recurrent Neural Network Regularization").
"""

from __future__ import annotations

import math

from scalebench.core.errors import InputError
from scalebench.workloads.network import Network, Node

INITIAL_DEVIATION = 0.02  # of the weights: openai/gpt-2, src/model.py
EXPANSION = 4  # width of a block's hidden dense layer over the model's width
LSTM_INIT = "uniform:0.1"  # the range of the weights: Zaremba et al. 2014, section 4.1


def gpt(
    net: Network, outputs: int, layers: int = 4, width: int = 256, heads: int = 4, sequence_length: int = 64
) -> None:
    """Build a GPT; 3,437,056 parameters with 512 outputs, which are the next token's logits at each position.

    Blocks normalize before attention and before the dense layers, each with a residual connection. Weights that end in
    a residual sum start smaller by 1 / sqrt(2 layers) (section 2.3 of the paper). Unlike GPT-2 it has no dropout; keys
    have no bias (attention is the same with one, so its gradient would be 0 except for rounding); query, key and value
    are separate layers; and the last layer has a kernel of its own instead of sharing the token embedding.

    Raises InputError for options below 1, a width that `heads` does not divide, and an input of another length.
    """
    _check_options(net, sequence_length, layers=layers, width=width, heads=heads)
    if width % heads:
        raise InputError(f"model.options.heads={heads} does not divide model.options.width={width}: use one that does")
    x = net.positions(net.embedding(net.input, "tokens", outputs, width, _normal()), "positions", _normal())
    for number in range(1, layers + 1):
        x = _block(net, x, f"block{number}", heads, _normal(math.sqrt(2 * layers)))
    net.dense(net.layer_norm(x, "norm"), "head", outputs, _normal(), bias=False)


def lstm(net: Network, outputs: int, layers: int = 2, width: int = 200, sequence_length: int = 20) -> None:
    """Build a recurrent language model; 4,651,600 parameters with 10,000 outputs.

    The defaults are the small network of the paper, without dropout. Unlike there, each sample starts with a state of
    zeros: training carries nothing over from one batch to the next.

    Raises InputError for options below 1 and for an input of another length.
    """
    _check_options(net, sequence_length, layers=layers, width=width)
    x = net.embedding(net.input, "tokens", outputs, width, LSTM_INIT)
    for number in range(1, layers + 1):
        x = net.lstm(x, f"lstm{number}", width, LSTM_INIT)
    net.dense(x, "head", outputs, LSTM_INIT)


def _block(net: Network, x: Node, name: str, heads: int, residual_init: str) -> Node:
    """Append a block; `residual_init` is the initializer of the weights that end in a residual sum."""
    width = x.shape[-1]
    y = net.layer_norm(x, f"{name}_norm1")
    query, value = (net.dense(y, f"{name}_{part}", width, _normal()) for part in ("query", "value"))
    key = net.dense(y, f"{name}_key", width, _normal(), bias=False)
    y = net.attention(query, key, value, f"{name}_attention", heads)
    x = net.add(x, net.dense(y, f"{name}_project", width, residual_init))
    y = net.dense(net.layer_norm(x, f"{name}_norm2"), f"{name}_expand", EXPANSION * width, _normal())
    return net.add(x, net.dense(net.gelu(y), f"{name}_contract", width, residual_init))


def _normal(divisor: float = 1.0) -> str:
    return f"normal:{INITIAL_DEVIATION / divisor}"


def _check_options(net: Network, sequence_length: int, **counts: int) -> None:
    for key, value in {**counts, "sequence_length": sequence_length}.items():
        if value < 1:
            raise InputError(f"model.options.{key}={value} should be at least 1")
    if net.input.shape != (sequence_length,):
        raise InputError(
            f"model.options.sequence_length={sequence_length} means model.input_shape={[sequence_length]}, "
            f"not {list(net.input.shape)}"
        )
