"""`train.precision` and `train.data_format`: what they ask of TensorFlow, and what a traced update really has."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from scalebench.strategies.base import Unsupported

COMPUTES_IN = {"float32": "float32", "tf32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
TF32_CAPABILITY = (8, 0)  # Ampere; TensorFlow ignores the setting on older GPUs
PRODUCTS = ("Conv2D", "MatMul")


def choose(precision: str, device: str) -> str:
    """The type to compute in; sets whether GPUs may round products to TF32. Unsupported where they cannot."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if precision == "tf32" and not _has_tf32(device):
        raise Unsupported("train.precision=tf32 needs a GPU of compute capability 8.0 or above; use float32")
    return COMPUTES_IN[precision]


def scaled(optimizer: keras.optimizers.Optimizer, precision: str) -> keras.optimizers.Optimizer:
    """The optimizer, for float16 with a dynamic scale of the loss, which keeps small gradients from vanishing."""
    return keras.optimizers.LossScaleOptimizer(optimizer) if precision == "float16" else optimizer


def check_channels_first(device: str, computes_in: str) -> None:
    """Unsupported where TensorFlow has no kernels for channels first: on the CPU only oneDNN brings them, and those
    for float16 only on some processors."""
    if "GPU" in device:
        return
    try:
        _channels_first_gradient(tf.zeros((1, 2, 4, 4), computes_in), tf.zeros((3, 3, 2, 2), computes_in))
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        raise Unsupported(
            f"train.data_format=nchw has no kernels for {computes_in} in this TensorFlow on this CPU (is "
            "TF_ENABLE_ONEDNN_OPTS=0 set?); use nhwc"
        ) from None


def keep_layout() -> None:
    """The layout that was asked for is the one that runs: on GPUs TensorFlow would turn it to what it thinks best."""
    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})


def of_update(function: Any, device: str, layout_kept: bool) -> dict[str, str]:
    """'precision' and 'data_format' of a traced update, from its first product and convolution."""
    operations = [operation for graph in graphs(function.graph) for operation in graph.get_operations()]
    found = {}
    product = next((operation for operation in operations if operation.type in PRODUCTS), None)
    if product is not None:
        found["precision"] = product.outputs[0].dtype.name
        if found["precision"] == "float32" and _has_tf32(device):
            found["precision"] = "tf32" if tf.config.experimental.tensor_float_32_execution_enabled() else "float32"
    images = next((op for op in operations if op.type == "Conv2D" and op.inputs[0].shape[1:3].rank == 2), None)
    if images is not None and (layout_kept or "GPU" not in device) and not _one_dimensional(images):
        found["data_format"] = images.get_attr("data_format").decode().lower()
    return found


def graphs(graph: Any) -> list[Any]:
    """A function's graph and those of the functions and branches that it calls."""
    found = [graph]
    for operation in graph.get_operations():
        names = [value.func.name for value in operation.node_def.attr.values() if value.HasField("func")]
        called = [graph._get_function(name) for name in names if name]
        for function in called:
            if function is not None and getattr(function, "graph", None) is not None:
                found += graphs(function.graph)
    return found


def _one_dimensional(conv: tf.Operation) -> bool:
    """A convolution over one axis is run as one of height 1."""
    return any(operation.type == "ExpandDims" for operation in (conv.inputs[0].op, conv.inputs[1].op))


def _has_tf32(device: str) -> bool:
    if "GPU" not in device:
        return False
    index = int(device.rpartition(":")[2])
    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[index])
    return tuple(details.get("compute_capability", (0, 0))) >= TF32_CAPABILITY


@tf.function
def _channels_first_gradient(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(x, kernel, 1, "SAME", data_format="NCHW")
        y = tf.nn.max_pool2d(y, 2, 2, "VALID", data_format="NCHW")
        y = tf.nn.avg_pool2d(y, 2, 2, "VALID", data_format="NCHW")
    return tape.gradient(y, [x, kernel])
