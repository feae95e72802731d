"""A neutral network as one function of its weights, channels last."""

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
class Pass:
    """What the operations of one forward pass share. `counts` is 1 for each sample and 0 for padding, which is there to
    make shapes equal and must not be seen in statistics; None: there is no padding."""

    weights: Arrays
    moving: Arrays
    moved: Arrays  # moving statistics after this pass, filled as it goes on
    dtype: Any
    counts: Array | None = None
    key: Array | None = None  # of dropout; None: nothing is dropped
    training: bool = False

    def weight(self, node: Node, last: str) -> Array | None:
        """The node's array of that name in the type that is computed in; None if it has none."""
        found = self.weights.get(f"{node.name}/{last}")
        return None if found is None else found.astype(self.dtype)


@dataclass(frozen=True)
class NetworkFunction:
    """`network` for samples of its input shape: floats, or bytes that become floats here. Weights are float32 in any
    case, and so is the output; `dtype` is what activations are computed in."""

    network: Network
    dtype: Any = jnp.float32
    dropout: bool = True

    def __post_init__(self) -> None:
        """Unsupported for a network with operations that are not written for JAX here."""
        known = {"input", *OPERATIONS}
        lacking = sorted({node.op for node in self.network.nodes} - known)
        if lacking:
            raise Unsupported(
                f"model={self.network.name} has operations that this adapter does not know: {', '.join(lacking)}; "
                "take another model, or another framework"
            )

    def infer(self, weights: Arrays, moving: Arrays, inputs: Array) -> Array:
        """(samples, outputs) for validation."""
        return self._run(Pass(weights, moving, {}, self.dtype), inputs)

    def train(
        self, weights: Arrays, moving: Arrays, inputs: Array, counts: Array | None, key: Array
    ) -> tuple[Array, Arrays]:
        """(outputs, moving statistics after this pass) in training."""
        one = Pass(weights, moving, dict(moving), self.dtype, counts, key if self.dropout else None, True)
        return self._run(one, inputs), one.moved

    def _run(self, one: Pass, inputs: Array) -> Array:
        outputs = {"input": self._prepared(inputs)}
        for number, node in enumerate(self.network.nodes[1:]):
            at_node = one if one.key is None else replace(one, key=jax.random.fold_in(one.key, number))
            outputs[node.name] = OPERATIONS[node.op](at_node, node, *(outputs[name] for name in node.inputs))
        return outputs[self.network.output.name].astype(jnp.float32)

    def _prepared(self, inputs: Array) -> Array:
        # Scaled before it is rounded: bfloat16 has few numbers near 2, and many near the 0 that they become.
        x = inputs.astype(jnp.float32) / PIXEL_SCALE - 1 if inputs.dtype == jnp.uint8 else inputs
        return x.astype(self.dtype)


def _conv(one: Pass, node: Node, x: Array) -> Array:
    kernel, bias = one.weight(node, "kernel"), one.weight(node, "bias")
    axes = len(node.shape) - 1
    x = lax.conv_general_dilated(
        x, kernel, (node.settings["strides"],) * axes, node.settings["pads"], dimension_numbers=LAYOUTS[axes]
    )
    return x if bias is None else x + bias


def _dense(one: Pass, node: Node, x: Array) -> Array:
    kernel, bias = one.weight(node, "kernel"), one.weight(node, "bias")
    return x @ kernel if bias is None else x @ kernel + bias


def _batch_norm(one: Pass, node: Node, x: Array) -> Array:
    """In float32 throughout; the moving variance is the unbiased one."""
    mean, variance = (one.moving[f"{node.name}/moving_{what}"] for what in ("mean", "variance"))
    floats = x.astype(jnp.float32)
    if one.training:
        mean, variance = _statistics(one, node, floats)
    factor = lax.rsqrt(variance + node.settings["epsilon"])
    gamma, beta = one.weights.get(f"{node.name}/gamma"), one.weights[f"{node.name}/beta"]
    factor = factor if gamma is None else factor * gamma
    return ((floats - mean) * factor + beta).astype(x.dtype)


def _statistics(one: Pass, node: Node, x: Array) -> tuple[Array, Array]:
    """Mean and biased variance over the samples, on which the moving statistics move. A channel with a single value has
    no variance to learn from: there they are left alone."""
    axes = tuple(range(x.ndim - 1))
    positions = math.prod(x.shape[1:-1])
    if one.counts is None:
        values: Any = float(x.shape[0] * positions)
        mean = jnp.mean(x, axes)
        variance = jnp.mean(jnp.square(x - mean), axes)
    else:
        counts = one.counts.reshape(-1, *(1 for _ in x.shape[1:]))
        values = jnp.sum(one.counts) * positions
        mean = jnp.sum(x * counts, axes) / jnp.maximum(values, 1)
        variance = jnp.sum(jnp.square(x - mean) * counts, axes) / jnp.maximum(values, 1)
        # Of padding alone: with none, each layer would blow it up until 0 times it is no number any more.
        variance = jnp.where(values > 0, variance, 1)
    kept = node.settings["momentum"]
    unbiased = lax.stop_gradient(variance) * (values / jnp.maximum(values - 1, 1))
    for what, now in (("mean", lax.stop_gradient(mean)), ("variance", unbiased)):
        name = f"{node.name}/moving_{what}"
        before = one.moving[name]
        one.moved[name] = jnp.where(values > 1, kept * before + (1 - kept) * now, before)
    return mean, variance


def _dropout(one: Pass, node: Node, x: Array) -> Array:
    if one.key is None:
        return x
    kept = 1 - node.settings["rate"]
    return jnp.where(jax.random.bernoulli(one.key, kept, x.shape), x / kept, 0).astype(x.dtype)


def _lrn(one: Pass, node: Node, x: Array) -> Array:
    s, floats = node.settings, x.astype(jnp.float32)
    window = (*(1 for _ in x.shape[:-1]), 2 * s["radius"] + 1)
    squares = lax.reduce_window(jnp.square(floats), 0.0, lax.add, window, (1,) * x.ndim, "SAME")
    return (floats / (s["bias"] + s["alpha"] * squares) ** s["beta"]).astype(x.dtype)


def _max_pool(one: Pass, node: Node, x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, *_slide(node))


def _avg_pool(one: Pass, node: Node, x: Array) -> Array:
    """The mean of what each window holds of the picture; padding does not count."""
    sums = lax.reduce_window(x, 0.0, lax.add, *_slide(node))
    held = np.ones((), np.float32)
    for size, width, pads in zip(x.shape[1:-1], node.settings["window"], node.settings["pads"], strict=True):
        inside = np.pad(np.ones(size, np.float32), pads)
        starts = range(0, len(inside) - width + 1, node.settings["strides"])
        held = np.multiply.outer(held, np.array([inside[start : start + width].sum() for start in starts]))
    return sums / jnp.asarray(held[..., None], x.dtype)


def _slide(node: Node) -> tuple[Any, Any, Any]:
    """Window, strides and padding over all axes."""
    s, axes = node.settings, len(node.shape) - 1
    return (1, *s["window"], 1), (1, *(s["strides"],) * axes, 1), ((0, 0), *s["pads"], (0, 0))


def _zero_pad(one: Pass, node: Node, x: Array) -> Array:
    return jnp.pad(x, ((0, 0), *node.settings["pads"], (0, 0)))


def _pad_channels(one: Pass, node: Node, x: Array) -> Array:
    return jnp.pad(x, (*((0, 0) for _ in x.shape[:-1]), node.settings["pads"]))


OPERATIONS: dict[str, Callable[..., Array]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda one, node, x: jax.nn.relu(x),
    "dropout": _dropout,
    "lrn": _lrn,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "zero_pad": _zero_pad,
    "pad_channels": _pad_channels,
    "global_avg_pool": lambda one, node, x: jnp.mean(x, tuple(range(1, x.ndim - 1))),
    "flatten": lambda one, node, x: x.reshape(x.shape[0], -1),
    "add": lambda one, node, *xs: sum(xs[1:], start=xs[0]),
    "concat": lambda one, node, *xs: jnp.concatenate(xs, -1),
}
