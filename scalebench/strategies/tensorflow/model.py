"""A neutral network as a Keras model, its weights under their neutral names.

The operations are TensorFlow's own, in the layout that was asked for: Keras' layers transpose around pools and
never use the fused batch normalisation.

Operations of transformers in TensorFlow, on (samples, positions, channels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.strategies.tensorflow.user_model import OwnModel
from scalebench.workloads.datasets.images import PIXEL_SCALE
from scalebench.workloads.network import Network, Node


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


SEQUENCE_LAYERS_OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "embedding": _embedding,
    "positions": _positions,
    "layer_norm": _layer_norm,
    "gelu": lambda model, node, x, training: tf.nn.gelu(x, approximate=True),
    "attention": _attention,
}

Arrays = Mapping[str, NDArray[np.float32]]


class NetworkModel(keras.Model):
    """`network` with its weights set to `arrays`; call it with (samples, *input_shape), channels last.

    Inputs are floats, bytes that become floats here, or whole numbers to look up. `data_format` (nhwc or nchw) is
    how two-dimensional activations lie in memory, `compute_dtype` what they are computed in; the weights are float32
    in any case, and so is the output. Make it where its variables shall live: under a strategy's scope or a device; or
    name the device of each node in `device_of`, on which its operations then are as well.
    """

    drawing: tuple[keras.Variable, ...] = ()  # dropout here keeps no state of its own

    def __init__(
        self,
        network: Network,
        arrays: Arrays,
        *,
        data_format: str = "nhwc",
        compute_dtype: str = "float32",
        dropout: bool = True,
        device_of: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=network.name)
        self.network, self._device_of = network, dict(device_of or {})
        self.channels_first = data_format == "nchw" and len(network.input.shape) == 3
        self.computes_in, self.drops = tf.as_dtype(compute_dtype), dropout
        self.variable_of = {}
        for node in network.nodes:
            with self.device(node):
                self.variable_of |= {a.name: _variable(a.name, arrays[a.name], a.trainable) for a in node.arrays}
        self.trained = [self.variable_of[array.name] for array in network.arrays if array.trainable]
        self.moving = [self.variable_of[array.name] for array in network.arrays if not array.trainable]
        self.built = True

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        outputs = self.begun(inputs)
        self.through(self.network.nodes[1:], outputs, training)
        with self.device(self.network.output):
            return tf.cast(outputs[self.network.output.name], tf.float32)

    def begun(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the input of the network gives, for `through`."""
        with self.device(self.network.input):
            return {self.network.input.name: self._prepared(inputs)}

    def through(self, nodes: Iterable[Node], outputs: dict[str, tf.Tensor], training: bool) -> None:
        """Adds what these nodes give to `outputs`, which has what they read."""
        for node in nodes:
            xs = [outputs[name] for name in node.inputs]
            with self.device(node):
                outputs[node.name] = OPERATIONS[node.op](self, node, *xs, training=training)

    def device(self, node: Node) -> AbstractContextManager[Any]:
        """A scope of the node's own device, where it has one."""
        return tf.device(self._device_of[node.name]) if node.name in self._device_of else nullcontext()

    def weight(self, node: Node, last: str) -> tf.Tensor | None:
        """The node's array of that name in the type that is computed in; None if it has none."""
        variable = self.variable_of.get(f"{node.name}/{last}")
        return None if variable is None else tf.cast(variable, self.computes_in)

    def layout(self, node: Node) -> dict[str, str]:
        """The keyword argument for operations over one or two spatial axes."""
        if len(node.shape) == 2:
            return {"data_format": "NWC"}
        return {"data_format": "NCHW" if self.channels_first else "NHWC"}

    def per_axis(self, spatial: Any, channels: Any, batch: Any) -> list[Any]:
        """A list for all axes of an activation, from the values for its spatial axes."""
        return [batch, channels, *spatial] if self.channels_first else [batch, *spatial, channels]

    def padded(self, x: tf.Tensor, pads: Any, value: float = 0.0) -> tf.Tensor:
        paddings = self.per_axis([list(pad) for pad in pads], [0, 0], [0, 0])
        return tf.pad(x, paddings, constant_values=tf.cast(value, x.dtype))

    def _prepared(self, inputs: tf.Tensor) -> tf.Tensor:
        # Scaled before it is rounded: bfloat16 has few numbers near 2, and many near the 0 that they become.
        if inputs.dtype in (tf.int32, tf.int64):
            return inputs
        x = tf.cast(inputs, tf.float32) / PIXEL_SCALE - 1 if inputs.dtype == tf.uint8 else inputs
        x = tf.cast(x, self.computes_in)
        return tf.transpose(x, [0, 3, 1, 2]) if self.channels_first else x


def _variable(name: str, array: NDArray[np.float32], trainable: bool) -> keras.Variable:
    """A moving statistic is one of each replica, which is averaged only where it is read from outside."""
    shared = {} if trainable else {"synchronization": "on_read", "aggregation": "mean"}
    return keras.Variable(
        lambda shape, dtype: tf.constant(array, dtype),
        shape=array.shape,
        dtype="float32",
        trainable=trainable,
        name=name.replace("/", "."),
        **shared,
    )


def _conv(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    kernel = model.weight(node, "kernel")
    padding = padding_name(x, node, kernel.shape[:-2], model)
    if padding == "EXPLICIT":
        x, padding = model.padded(x, node.settings["pads"]), "VALID"
    x = tf.nn.convolution(x, kernel, strides=node.settings["strides"], padding=padding, **model.layout(node))
    bias = model.weight(node, "bias")
    # bias_add knows no NWC, and needs none: the channels stand last.
    return x if bias is None else tf.nn.bias_add(x, bias, "NCHW" if model.channels_first else None)


def _dense(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """As one product of two matrices, whatever the positions."""
    kernel, bias = model.weight(node, "kernel"), model.weight(node, "bias")
    y = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]) if len(node.shape) > 1 else x, kernel)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    return tf.reshape(y, [-1, *node.shape]) if len(node.shape) > 1 else y


def _batch_norm(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """The fused kernel, whose statistics and parameters are float32 also where `x` is not."""
    mean, variance = (model.variable_of[f"{node.name}/moving_{what}"] for what in ("mean", "variance"))
    beta = tf.convert_to_tensor(model.variable_of[f"{node.name}/beta"])
    gamma = model.variable_of.get(f"{node.name}/gamma")
    y, new_mean, new_variance = tf.compat.v1.nn.fused_batch_norm(
        x,
        tf.ones_like(beta) if gamma is None else tf.convert_to_tensor(gamma),
        beta,
        mean=tf.convert_to_tensor(mean),
        variance=tf.convert_to_tensor(variance),
        epsilon=node.settings["epsilon"],
        is_training=training,
        exponential_avg_factor=1 - node.settings["momentum"],
        **model.layout(node),
    )
    if training:
        mean.assign(new_mean)
        variance.assign(new_variance)
    return y


def _pool(pool: Callable[..., tf.Tensor], beyond: float | None) -> Callable[..., tf.Tensor]:
    """`beyond`: the value of padding that TensorFlow would not place itself; None: such a pool cannot be had."""

    def apply(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
        window = node.settings["window"]
        padding = padding_name(x, node, window, model)
        if padding == "EXPLICIT":
            if beyond is None:
                raise ValueError(f"{node.name}: TensorFlow has no mean over a window that leaves out such padding")
            x, padding = model.padded(x, node.settings["pads"], beyond), "VALID"
        return pool(x, list(window), node.settings["strides"], padding, **model.layout(node))

    return apply


def padding_name(x: tf.Tensor, node: Node, window: Any, model: NetworkModel) -> str:
    """SAME or VALID where TensorFlow would pad just so, which its kernels do by themselves; else EXPLICIT."""
    pads, strides = node.settings["pads"], node.settings["strides"]
    if all(pad == (0, 0) for pad in pads):
        return "VALID"
    axes = range(2, 2 + len(pads)) if model.channels_first else range(1, 1 + len(pads))
    for axis, width, pad in zip(axes, window, pads, strict=True):
        total = max((-(-x.shape[axis] // strides) - 1) * strides + width - x.shape[axis], 0)
        if pad != (total // 2, total - total // 2):
            return "EXPLICIT"
    return "SAME"


def _pad_channels(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    return tf.pad(x, model.per_axis([[0, 0]] * (len(node.shape) - 1), list(node.settings["pads"]), [0, 0]))


def _lrn(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    """The kernel knows channels last only, and on the CPU no bfloat16."""
    first = model.channels_first
    s = node.settings
    x = tf.cast(tf.transpose(x, [0, 2, 3, 1]) if first else x, tf.float32)
    x = tf.nn.local_response_normalization(x, s["radius"], s["bias"], s["alpha"], s["beta"])
    x = tf.cast(x, model.computes_in)
    return tf.transpose(x, [0, 3, 1, 2]) if first else x


def _flatten(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    x = tf.transpose(x, [0, 2, 3, 1]) if model.channels_first and len(x.shape) == 4 else x
    return tf.reshape(x, [-1, *node.shape])


def _dropout(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    return tf.nn.dropout(x, node.settings["rate"]) if training and model.drops else x


def _global_avg_pool(model: NetworkModel, node: Node, x: tf.Tensor, training: bool) -> tf.Tensor:
    return tf.reduce_mean(x, range(2, len(x.shape)) if model.channels_first else range(1, len(x.shape) - 1))


OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": lambda model, node, x, training: tf.nn.relu(x),
    "dropout": _dropout,
    "lrn": _lrn,
    "max_pool": _pool(tf.nn.max_pool, -np.inf),
    "avg_pool": _pool(tf.nn.avg_pool, None),
    "zero_pad": lambda model, node, x, training: model.padded(x, node.settings["pads"]),
    "pad_channels": _pad_channels,
    "global_avg_pool": _global_avg_pool,
    "flatten": _flatten,
    "add": lambda model, node, *xs, training: xs[0] + xs[1] if len(xs) == 2 else tf.add_n(xs),
    "concat": lambda model, node, *xs, training: tf.concat(xs, 1 if model.channels_first else -1),
    **SEQUENCE_LAYERS_OPERATIONS,
}


def read_weights(model: NetworkModel | OwnModel, statistics: bool = False) -> dict[str, NDArray[np.float32]]:
    """Copies of the trained arrays under their names, and of the moving statistics if asked for."""
    wanted = {id(variable) for variable in [*model.trained, *(model.moving if statistics else ())]}
    found = {name: variable for name, variable in model.variable_of.items() if id(variable) in wanted}
    return {name: np.array(variable.value.numpy()) for name, variable in found.items()}
