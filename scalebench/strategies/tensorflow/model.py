"""A framework-neutral network as a Keras model, with its weights under their neutral names.

The operations are TensorFlow's own, in the configured memory layout: Keras' layers transpose around pooling and never
use fused batch normalization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.strategies.tensorflow.user_model import LossReportingModel, UserModel
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import Network, Node


@tf.custom_gradient
def lookup_rows(table: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    """Return rows of a table, with a dense gradient like PyTorch's. The gradient of tf.gather has only the used rows,
    which differ between devices, so that synchronizing it sends more with every device."""

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        gradients, indices = tf.reshape(upstream, [-1, table.shape[1]]), tf.reshape(rows, [-1])
        return tf.math.unsorted_segment_sum(gradients, indices, table.shape[0]), None

    return tf.gather(table, rows), backward


def _layer_norm(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Normalize in float32 for any input type, as PyTorch does."""
    floats = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(floats, [-1], keepdims=True)
    gamma, beta = (tf.convert_to_tensor(model.variables_by_name[f"{node.name}/{last}"]) for last in ("gamma", "beta"))
    normalized = (floats - mean) * tf.math.rsqrt(variance + node.settings["epsilon"])
    return tf.cast(normalized * gamma + beta, x.dtype)


def _attention(model: NetworkModel, node: Node, *xs: tf.Tensor, training: bool) -> tf.Tensor:
    """Compute causal attention from all pairs of positions with a mask, since TensorFlow has no kernel for it."""
    positions, width = node.shape
    heads, head_width = node.settings["heads"], node.settings["head_width"]
    split = (tf.reshape(x, [-1, positions, heads, head_width]) for x in xs)
    query, key, value = (tf.transpose(x, [0, 2, 1, 3]) for x in split)
    products = tf.matmul(query, key, transpose_b=True) / tf.cast(math.sqrt(head_width), query.dtype)
    causal_mask = tf.linalg.band_part(tf.ones([positions, positions], tf.bool), -1, 0)
    attention = tf.nn.softmax(tf.where(causal_mask, products, products.dtype.min))
    return tf.reshape(tf.transpose(tf.matmul(attention, value), [0, 2, 1, 3]), [-1, positions, width])


def _lstm(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Compute one product for the inputs of all positions, then the recurrence position by position, unrolled.

    TensorFlow has a fused kernel on GPUs only (cuDNN), which takes its weights in a format of its own.
    """
    kernel, recurrent, bias = (model.weight(node, last) for last in ("kernel", "recurrent_kernel", "bias"))
    projected = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel), bias)
    positions = tf.unstack(tf.reshape(projected, [-1, node.shape[0], kernel.shape[1]]), axis=1)
    hidden = cell = tf.zeros_like(positions[0][:, : node.shape[1]])
    outputs = []
    for gates in positions:
        enter, keep, candidate, leave = tf.split(gates + tf.matmul(hidden, recurrent), 4, axis=1)
        cell = tf.sigmoid(keep) * cell + tf.sigmoid(enter) * tf.tanh(candidate)
        hidden = tf.sigmoid(leave) * tf.tanh(cell)
        outputs.append(hidden)
    return tf.stack(outputs, axis=1)


WeightArrays = Mapping[str, NDArray[np.float32]]


class NetworkModel(LossReportingModel):
    """A Keras model of `network` with weights from `arrays`; it takes (samples, *input_shape), channels last.

    Inputs are floats, bytes that are scaled to floats here, or integers to look up. `data_format` (nhwc or nchw) is the
    memory layout of two-dimensional activations, `compute_dtype` their type; weights and output are always float32.
    Create it in the scope or on the device of its variables, or name a device for each node in `node_devices`, which
    then also runs the node's operations.
    """

    random_states: tuple[keras.Variable, ...] = ()  # dropout here has no state

    def __init__(
        self,
        network: Network,
        arrays: WeightArrays,
        *,
        data_format: str = "nhwc",
        compute_dtype: str = "float32",
        dropout: bool = True,
        node_devices: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=network.name)
        self.network, self._node_devices = network, dict(node_devices or {})
        self.channels_first = data_format == "nchw" and len(network.input.shape) == 3
        self.activation_dtype, self.uses_dropout = tf.as_dtype(compute_dtype), dropout
        self.variables_by_name = {}
        for node in network.nodes:
            with self.device_scope(node):
                for array in node.arrays:
                    # A moving statistic is kept per replica, and averaged only when it is read from outside.
                    distribution = {} if array.trainable else {"synchronization": "on_read", "aggregation": "mean"}
                    self.variables_by_name[array.name] = keras.Variable(
                        lambda shape, dtype, name=array.name: tf.constant(arrays[name], dtype),
                        shape=array.shape,
                        dtype="float32",
                        trainable=array.trainable,
                        name=array.name.replace("/", "."),
                        **distribution,
                    )
        self.trained = [self.variables_by_name[array.name] for array in network.arrays if array.trainable]
        self.moving_statistics = [self.variables_by_name[array.name] for array in network.arrays if not array.trainable]
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        x, network = inputs, self.network
        with self.device_scope(network.input):
            if x.dtype not in (tf.int32, tf.int64):  # which are to be looked up
                # Scaled in float32: bytes lose more in bfloat16 than their scaled values near 0.
                x = tf.cast(x, tf.float32) / PIXEL_SCALE - 1 if x.dtype == tf.uint8 else x
                x = tf.cast(x, self.activation_dtype)
                x = tf.transpose(x, [0, 3, 1, 2]) if self.channels_first else x
        outputs = {network.input.name: x}
        for node in network.nodes[1:]:
            with self.device_scope(node):
                node_inputs = (outputs[name] for name in node.inputs)
                outputs[node.name] = OPERATIONS[node.op](self, node, *node_inputs, training=training)
        with self.device_scope(network.output):
            return tf.cast(outputs[network.output.name], tf.float32)

    def device_scope(self, node: Node) -> AbstractContextManager[Any]:
        """Return a scope of the node's device, if it has its own."""
        return tf.device(self._node_devices[node.name]) if node.name in self._node_devices else nullcontext()

    def weight(self, node: Node, last: str) -> tf.Tensor | None:
        """Return the node's array of that name in the compute dtype; None if it has none."""
        variable = self.variables_by_name.get(f"{node.name}/{last}")
        return None if variable is None else tf.cast(variable, self.activation_dtype)

    def layout_argument(self, node: Node) -> dict[str, str]:
        """Return the layout keyword argument of operations over one or two spatial axes."""
        if len(node.shape) == 2:
            return {"data_format": "NWC"}
        return {"data_format": "NCHW" if self.channels_first else "NHWC"}

    def per_axis(self, spatial: Any, channels: Any, batch: Any) -> list[Any]:
        """Return a list of values for all axes of an activation, in the order of its layout."""
        return [batch, channels, *spatial] if self.channels_first else [batch, *spatial, channels]

    def channels_last(self, x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(x, [0, 2, 3, 1]) if self.channels_first and len(x.shape) == 4 else x

    def pad(self, x: tf.Tensor, pads: Any, value: float = 0.0) -> tf.Tensor:
        paddings = self.per_axis([list(pad) for pad in pads], [0, 0], [0, 0])
        return tf.pad(x, paddings, constant_values=tf.cast(value, x.dtype))


def _conv(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    kernel = model.weight(node, "kernel")
    padding = padding_name(x, node, kernel.shape[:-2], model)
    if padding == "EXPLICIT":
        x, padding = model.pad(x, node.settings["pads"]), "VALID"
    x = tf.nn.convolution(x, kernel, strides=node.settings["strides"], padding=padding, **model.layout_argument(node))
    bias = model.weight(node, "bias")
    # bias_add does not know NWC, and needs no format for channels last.
    return x if bias is None else tf.nn.bias_add(x, bias, "NCHW" if model.channels_first else None)


def _dense(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Compute one product of two matrices, also over several positions."""
    kernel, bias = model.weight(node, "kernel"), model.weight(node, "bias")
    y = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]) if len(node.shape) > 1 else x, kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    return tf.reshape(y, [-1, *node.shape]) if len(node.shape) > 1 else y


def _batch_norm(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Call the fused kernel, whose statistics and parameters are float32 for any type of `x`.

    It takes images only: curves and vectors become images that are one pixel wide.
    """
    mean, variance = (model.variables_by_name[f"{node.name}/moving_{name}"] for name in ("mean", "variance"))
    beta = tf.convert_to_tensor(model.variables_by_name[f"{node.name}/beta"])
    gamma = model.variables_by_name.get(f"{node.name}/gamma")
    are_images = len(node.shape) == 3
    y, new_mean, new_variance = tf.compat.v1.nn.fused_batch_norm(
        x if are_images else tf.reshape(x, (-1, math.prod(node.shape[:-1]), 1, node.shape[-1])),
        tf.ones_like(beta) if gamma is None else tf.convert_to_tensor(gamma),
        beta,
        mean=tf.convert_to_tensor(mean),
        variance=tf.convert_to_tensor(variance),
        epsilon=node.settings["epsilon"],
        is_training=training,
        exponential_avg_factor=1 - node.settings["momentum"],
        **(model.layout_argument(node) if are_images else {}),
    )
    if training:
        mean.assign(new_mean)
        variance.assign(new_variance)
    return y if are_images else tf.reshape(y, (-1, *node.shape))


def _create_pool(pool: Callable[..., tf.Tensor], padding_value: float | None) -> Callable[..., tf.Tensor]:
    """Create a pooling operation; `padding_value` is for padding that is not TensorFlow's SAME, None: unsupported."""

    def apply(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
        window = node.settings["window"]
        padding = padding_name(x, node, window, model)
        if padding == "EXPLICIT":
            if padding_value is None:
                raise ValueError(f"{node.name}: TensorFlow has no mean over a window that leaves out such padding")
            x, padding = model.pad(x, node.settings["pads"], padding_value), "VALID"
        return pool(x, list(window), node.settings["strides"], padding, **model.layout_argument(node))

    return apply


def padding_name(x: tf.Tensor, node: Node, window: Any, model: NetworkModel) -> str:
    """Return SAME or VALID if TensorFlow's kernels pad the same way by themselves, else EXPLICIT."""
    pads, strides = node.settings["pads"], node.settings["strides"]
    if all(pad == (0, 0) for pad in pads):
        return "VALID"
    axes = range(2, 2 + len(pads)) if model.channels_first else range(1, 1 + len(pads))
    for axis, width, pad in zip(axes, window, pads, strict=True):
        total = max((-(-x.shape[axis] // strides) - 1) * strides + width - x.shape[axis], 0)
        if pad != (total // 2, total - total // 2):
            return "EXPLICIT"
    return "SAME"


def _lrn(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """Normalize in float32 and channels last: the kernel has no other layout, and on the CPU no bfloat16."""
    s = node.settings
    x = tf.cast(model.channels_last(x), tf.float32)
    x = tf.nn.local_response_normalization(x, s["radius"], s["bias"], s["alpha"], s["beta"])
    x = tf.cast(x, model.activation_dtype)
    return tf.transpose(x, [0, 3, 1, 2]) if model.channels_first else x


# By the names of workloads.network: (model, node, *inputs, training) -> output.
OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda model, node, x, training: tf.nn.relu(x),
    "dropout": lambda model, node, x, training: (
        tf.nn.dropout(x, node.settings["rate"]) if training and model.uses_dropout else x
    ),
    "lrn": _lrn,
    "max_pool": _create_pool(tf.nn.max_pool, -np.inf),
    "avg_pool": _create_pool(tf.nn.avg_pool, None),
    "zero_pad": lambda model, node, x, training: model.pad(x, node.settings["pads"]),
    "pad_channels": lambda model, node, x, training: tf.pad(
        x, model.per_axis([[0, 0]] * (len(node.shape) - 1), list(node.settings["pads"]), [0, 0])
    ),
    "global_avg_pool": lambda model, node, x, training: tf.reduce_mean(
        x, range(2, len(x.shape)) if model.channels_first else range(1, len(x.shape) - 1)
    ),
    "flatten": lambda model, node, x, training: tf.reshape(model.channels_last(x), [-1, *node.shape]),
    "add": lambda model, node, *xs, training: xs[0] + xs[1] if len(xs) == 2 else tf.add_n(xs),
    "concat": lambda model, node, *xs, training: tf.concat(xs, 1 if model.channels_first else -1),
    "embedding": lambda model, node, x, training: lookup_rows(model.weight(node, "embeddings"), x),
    "positions": lambda model, node, x, training: x + model.weight(node, "embeddings"),
    "layer_norm": _layer_norm,
    "gelu": lambda model, node, x, training: tf.nn.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": _lstm,
}


def read_weights(model: NetworkModel | UserModel, statistics: bool = False) -> dict[str, NDArray[np.float32]]:
    """Return copies of the trained arrays by name, with `statistics` also of the moving statistics."""
    included = {id(variable) for variable in [*model.trained, *(model.moving_statistics if statistics else ())]}
    return {
        name: np.array(variable.value.numpy())
        for name, variable in model.variables_by_name.items()
        if id(variable) in included
    }
