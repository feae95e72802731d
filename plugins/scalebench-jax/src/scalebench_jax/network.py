"""A framework-neutral network as a function of its weights, channels last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from scalebench.plugin_api import PIXEL_SCALE, Network, Node, Unsupported

Arrays = dict[str, Array]  # by their neutral names
LAYOUTS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC")}  # by the number of spatial axes


@dataclass(frozen=True)
class ForwardPass:
    """The state that the operations of one forward pass share. `counts` is 1 for each sample and 0 for padding, which
    makes shapes equal and must not affect statistics; None: there is no padding."""

    weights: Arrays
    moving: Arrays
    moved: Arrays  # moving statistics after this pass, filled by the operations
    dtype: Any
    counts: Array | None = None
    key: Array | None = None  # for dropout; None: no dropout
    training: bool = False

    def weight(self, node: Node, last: str) -> Array | None:
        """Return the node's array of that name in the compute dtype; None if it has none."""
        array = self.weights.get(f"{node.name}/{last}")
        return None if array is None else array.astype(self.dtype)


@dataclass(frozen=True)
class NetworkFunction:
    """A function of `network` for samples of its input shape: floats, or bytes that are scaled to floats. Weights and
    output are always float32; `dtype` is the type of activations."""

    network: Network
    dtype: Any = jnp.float32
    dropout: bool = True

    def __post_init__(self) -> None:
        """Raise Unsupported for a network with operations that this plugin does not have."""
        missing = sorted({node.op for node in self.network.nodes} - {"input", *OPERATIONS})
        if missing:
            raise Unsupported(
                f"model={self.network.name} has operations that this adapter does not know: {', '.join(missing)}; "
                "take another model, or another framework"
            )

    def infer(self, weights: Arrays, moving: Arrays, inputs: Array) -> Array:
        """Return the outputs for validation."""
        return self._run(ForwardPass(weights, moving, {}, self.dtype), inputs)

    def train(
        self, weights: Arrays, moving: Arrays, inputs: Array, counts: Array | None, key: Array
    ) -> tuple[Array, Arrays]:
        """Return (outputs, moving statistics after this pass) in training mode."""
        forward = ForwardPass(weights, moving, dict(moving), self.dtype, counts, key if self.dropout else None, True)
        return self._run(forward, inputs), forward.moved

    def _run(self, forward: ForwardPass, inputs: Array) -> Array:
        outputs = {"input": self._prepared(inputs)}
        for number, node in enumerate(self.network.nodes[1:]):
            at_node = forward if forward.key is None else replace(forward, key=jax.random.fold_in(forward.key, number))
            outputs[node.name] = OPERATIONS[node.op](at_node, node, *(outputs[name] for name in node.inputs))
        return outputs[self.network.output.name].astype(jnp.float32)

    def _prepared(self, inputs: Array) -> Array:
        # Scaled in float32: bytes lose more in bfloat16 than their scaled values near 0.
        x = inputs.astype(jnp.float32) / PIXEL_SCALE - 1 if inputs.dtype == jnp.uint8 else inputs
        return x.astype(self.dtype)


def _conv(forward: ForwardPass, node: Node, x: Array) -> Array:
    kernel, bias = forward.weight(node, "kernel"), forward.weight(node, "bias")
    axes = len(node.shape) - 1
    x = lax.conv_general_dilated(
        x, kernel, (node.settings["strides"],) * axes, node.settings["pads"], dimension_numbers=LAYOUTS[axes]
    )
    return x if bias is None else x + bias


def _dense(forward: ForwardPass, node: Node, x: Array) -> Array:
    kernel, bias = forward.weight(node, "kernel"), forward.weight(node, "bias")
    return x @ kernel if bias is None else x @ kernel + bias


def _batch_norm(forward: ForwardPass, node: Node, x: Array) -> Array:
    """Normalize in float32; the moving variance is the unbiased one."""
    mean, variance = (forward.moving[f"{node.name}/moving_{name}"] for name in ("mean", "variance"))
    floats = x.astype(jnp.float32)
    if forward.training:
        mean, variance = _batch_statistics(forward, node, floats)
    factor = lax.rsqrt(variance + node.settings["epsilon"])
    gamma, beta = forward.weights.get(f"{node.name}/gamma"), forward.weights[f"{node.name}/beta"]
    factor = factor if gamma is None else factor * gamma
    return ((floats - mean) * factor + beta).astype(x.dtype)


def _batch_statistics(forward: ForwardPass, node: Node, x: Array) -> tuple[Array, Array]:
    """Return mean and biased variance over the samples, and update the moving statistics with them. Moving statistics
    of a channel with a single value, which has no variance, stay as they are."""
    axes = tuple(range(x.ndim - 1))
    positions = math.prod(x.shape[1:-1])
    if forward.counts is None:
        values: Any = float(x.shape[0] * positions)
        mean = jnp.mean(x, axes)
        variance = jnp.mean(jnp.square(x - mean), axes)
    else:
        counts = forward.counts.reshape(-1, *(1 for _ in x.shape[1:]))
        values = jnp.sum(forward.counts) * positions
        mean = jnp.sum(x * counts, axes) / jnp.maximum(values, 1)
        variance = jnp.sum(jnp.square(x - mean) * counts, axes) / jnp.maximum(values, 1)
        # A part of padding only: with a variance of 0, each layer would scale it up until 0 times it is NaN.
        variance = jnp.where(values > 0, variance, 1)
    momentum = node.settings["momentum"]
    unbiased = lax.stop_gradient(variance) * (values / jnp.maximum(values - 1, 1))
    for statistic, new in (("mean", lax.stop_gradient(mean)), ("variance", unbiased)):
        name = f"{node.name}/moving_{statistic}"
        old = forward.moving[name]
        forward.moved[name] = jnp.where(values > 1, momentum * old + (1 - momentum) * new, old)
    return mean, variance


def _dropout(forward: ForwardPass, node: Node, x: Array) -> Array:
    if forward.key is None:
        return x
    kept = 1 - node.settings["rate"]
    return jnp.where(jax.random.bernoulli(forward.key, kept, x.shape), x / kept, 0).astype(x.dtype)


def _lrn(forward: ForwardPass, node: Node, x: Array) -> Array:
    s, floats = node.settings, x.astype(jnp.float32)
    window = (*(1 for _ in x.shape[:-1]), 2 * s["radius"] + 1)
    squares = lax.reduce_window(jnp.square(floats), 0.0, lax.add, window, (1,) * x.ndim, "SAME")
    return (floats / (s["bias"] + s["alpha"] * squares) ** s["beta"]).astype(x.dtype)


def _max_pool(forward: ForwardPass, node: Node, x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, *_window_arguments(node))


def _avg_pool(forward: ForwardPass, node: Node, x: Array) -> Array:
    """Return the mean over the part of each window that is within the picture, without padding."""
    sums = lax.reduce_window(x, 0.0, lax.add, *_window_arguments(node))
    counts = np.ones((), np.float32)
    for size, width, pads in zip(x.shape[1:-1], node.settings["window"], node.settings["pads"], strict=True):
        inside = np.pad(np.ones(size, np.float32), pads)
        starts = range(0, len(inside) - width + 1, node.settings["strides"])
        counts = np.multiply.outer(counts, np.array([inside[start : start + width].sum() for start in starts]))
    return sums / jnp.asarray(counts[..., None], x.dtype)


def _window_arguments(node: Node) -> tuple[Any, Any, Any]:
    """Return window, strides and padding over all axes."""
    s, axes = node.settings, len(node.shape) - 1
    return (1, *s["window"], 1), (1, *(s["strides"],) * axes, 1), ((0, 0), *s["pads"], (0, 0))


def _zero_pad(forward: ForwardPass, node: Node, x: Array) -> Array:
    return jnp.pad(x, ((0, 0), *node.settings["pads"], (0, 0)))


def _pad_channels(forward: ForwardPass, node: Node, x: Array) -> Array:
    return jnp.pad(x, (*((0, 0) for _ in x.shape[:-1]), node.settings["pads"]))


OPERATIONS: dict[str, Callable[..., Array]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda forward, node, x: jax.nn.relu(x),
    "dropout": _dropout,
    "lrn": _lrn,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "zero_pad": _zero_pad,
    "pad_channels": _pad_channels,
    "global_avg_pool": lambda forward, node, x: jnp.mean(x, tuple(range(1, x.ndim - 1))),
    "flatten": lambda forward, node, x: x.reshape(x.shape[0], -1),
    "add": lambda forward, node, *xs: sum(xs[1:], start=xs[0]),
    "concat": lambda forward, node, *xs: jnp.concatenate(xs, -1),
}
