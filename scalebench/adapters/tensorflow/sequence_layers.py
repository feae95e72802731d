"""Operations of transformers in TensorFlow, on (samples, positions, channels)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from scalebench.workloads.network import Node

if TYPE_CHECKING:
    from scalebench.adapters.tensorflow.network import NetworkModel


def _embedding(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    return looked_up(model.weight(node, "embeddings"), x)


@tf.custom_gradient
def looked_up(table: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    """Those rows of the table. Its gradient is as large as the table, as PyTorch's is: tf.gather gives the rows that
    were used, of which every device has others, and an exchange of these sends more the more devices there are."""

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        width = table.shape[1]
        each, of = tf.reshape(upstream, [-1, width]), tf.reshape(rows, [-1])
        return tf.math.unsorted_segment_sum(each, of, table.shape[0]), None

    return tf.gather(table, rows), backward


def _positions(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    return x + model.weight(node, "embeddings")


def _layer_norm(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """In float32 whatever comes, as PyTorch does it."""
    floats = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(floats, [-1], keepdims=True)
    gamma, beta = (tf.convert_to_tensor(model.variable_of[f"{node.name}/{last}"]) for last in ("gamma", "beta"))
    normalised = (floats - mean) * tf.math.rsqrt(variance + node.settings["epsilon"])
    return tf.cast(normalised * gamma + beta, x.dtype)


def _attention(model: NetworkModel, node: Node, *xs: tf.Tensor, training: bool) -> tf.Tensor:
    """TensorFlow has no kernel for it: all pairs of positions are multiplied, and the later ones masked."""
    positions, width = node.shape
    heads, head_width = node.settings["heads"], node.settings["head_width"]
    split = (tf.reshape(x, [-1, positions, heads, head_width]) for x in xs)
    query, key, value = (tf.transpose(x, [0, 2, 1, 3]) for x in split)
    products = tf.matmul(query, key, transpose_b=True) / tf.cast(math.sqrt(head_width), query.dtype)
    seen = tf.linalg.band_part(tf.ones([positions, positions], tf.bool), -1, 0)
    shares = tf.nn.softmax(tf.where(seen, products, products.dtype.min))
    return tf.reshape(tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3]), [-1, positions, width])


OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "embedding": _embedding,
    "positions": _positions,
    "layer_norm": _layer_norm,
    "gelu": lambda model, node, x, training: tf.nn.gelu(x, approximate=True),
    "attention": _attention,
}
