"""Backend, message sizes, precision, layout and compiler of a step, observed in the traced graph and the profiler
rather than taken from the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from scalebench.strategies.base import BatchReplay, Loop, NotMeasured
from scalebench.strategies.tensorflow import devices, profiling
from scalebench.strategies.tensorflow.profiling import COLLECTIVES, OBSERVED_STEPS, Line, is_event_of

# NCCL's kernels, TensorFlow's operation on them, and its own event on the host, which needs no profiler of the GPU.
NCCL_EVENTS = ("ncclDevKernel", "ncclKernel", "ncclSym", "NcclAllReduce", "ncclAllReduce")


def reduction_operations(function: Any, scope: str = "") -> list[tf.Operation]:
    """Return the operations of a traced step that sum gradients over devices, one per message.

    A collective has an operation on every device, of which only the first device's are returned; without collectives
    the reduction is an AddN whose addends come from several devices. Scalars are left out: the sum of the losses, and
    the flag for finite gradients; so are those whose name lacks `scope`.
    """
    operations = [operation for graph in nested_graphs(function.graph) for operation in graph.get_operations()]
    operations = [operation for operation in operations if operation.inputs and operation.inputs[0].shape.rank != 0]
    operations = [operation for operation in operations if scope in operation.name]
    collectives = [operation for operation in operations if operation.type in COLLECTIVES]
    if collectives:
        return [operation for operation in collectives if operation.device == collectives[0].device]
    return [op for op in operations if op.type == "AddN" and len({addend.device for addend in op.inputs}) > 1]


def compiler_used(function: Any) -> str:
    """Return 'xla' if XLA compiled a part of the traced step, else 'none'."""
    calls = [
        op for graph in nested_graphs(function.graph) for op in graph.get_operations() if "PartitionedCall" in op.type
    ]
    return "xla" if any(call.node_def.attr["_XlaMustCompile"].b for call in calls) else "none"


def reduction_message_bytes(function: Any, scope: str = "") -> list[int]:
    """Return the bytes of each message of one step, as one device sends it."""
    addends = [operation.inputs[0] for operation in reduction_operations(function, scope)]
    return [addend.shape.num_elements() * addend.dtype.size for addend in addends]


def observe_backend(train: Callable[[Loop], None], function: Any, batch: Any) -> str | None:
    """Train two more steps on `batch` and return the backend that they used: nccl, ring or copy; None: nothing was
    sent. Spoils the weights. Raises NotMeasured as identify_backend does."""
    if batch is None:
        raise RuntimeError("backend_used replays the last batch of the training, and there was no training")
    operations = reduction_operations(function.get_concrete_function())
    with profiling.record_lines() as lines:
        train(BatchReplay(batch, OBSERVED_STEPS))
    on_gpus = any("GPU" in operation.device for operation in operations)
    return identify_backend({operation.name: operation.type for operation in operations}, lines, on_gpus)


def identify_backend(types: dict[str, str], lines: list[Line], on_gpus: bool) -> str | None:
    """Return the backend of profiled steps whose operations that sum gradients have these names and types.

    Raises NotMeasured where collectives ran on GPUs and the profiler recorded nothing of these (containers and
    clusters may forbid CUPTI): without their kernels NCCL looks like TensorFlow's own ring.
    """
    events = {event.name for line in lines for event in line.events}
    if any(sign in event for event in events for sign in NCCL_EVENTS):
        return "nccl"
    executed = {types[name] for name in types if any(is_event_of(event, name) for event in events)}
    if not executed & set(COLLECTIVES):
        return "copy" if executed else None
    if on_gpus and not any(line.device == "cuda" for line in lines):
        raise NotMeasured("TensorFlow's profiler recorded no kernel of the GPUs (CUPTI is missing or forbidden here)")
    return "ring"


def record_event_names(action: Callable[[], None]) -> set[str]:
    """Profile `action`; return the names of all events, which are 'name:type' for operations."""
    with profiling.record_lines() as lines:
        action()
    return {event.name for line in lines for event in line.events}


def precision_and_layout(function: Any, device: str, fixed_layout: bool) -> dict[str, str]:
    """Return 'precision' and 'data_format' of a traced step, from its first matrix product and first convolution.

    Without `fixed_layout` TensorFlow's layout optimizer may change the layout on GPUs, which is then left out.
    """
    operations = [operation for graph in nested_graphs(function.graph) for operation in graph.get_operations()]
    settings = {}
    product = next((operation for operation in operations if operation.type in ("Conv2D", "MatMul")), None)
    if product is not None:
        settings["precision"] = product.outputs[0].dtype.name
        if settings["precision"] == "float32" and devices.has_tf32(device):
            settings["precision"] = "tf32" if tf.config.experimental.tensor_float_32_execution_enabled() else "float32"
    conv = next((op for op in operations if op.type == "Conv2D" and op.inputs[0].shape[1:3].rank == 2), None)
    if conv is not None and (fixed_layout or "GPU" not in device) and not _is_one_dimensional(conv):
        settings["data_format"] = conv.get_attr("data_format").decode().lower()
    return settings


def nested_graphs(graph: Any) -> list[Any]:
    """Return a graph and the graphs of the functions and branches that it calls."""
    graphs = [graph]
    for operation in graph.get_operations():
        names = [value.func.name for value in operation.node_def.attr.values() if value.HasField("func")]
        called = [graph._get_function(name) for name in names if name]
        for function in called:
            if function is not None and getattr(function, "graph", None) is not None:
                graphs += nested_graphs(function.graph)
    return graphs


def _is_one_dimensional(conv: tf.Operation) -> bool:
    """Return whether a Conv2D is a convolution over one axis, which TensorFlow runs as one of height 1."""
    return any(operation.type == "ExpandDims" for operation in (conv.inputs[0].op, conv.inputs[1].op))
