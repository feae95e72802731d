"""What TensorFlow's profiler and the traced graph show of a step: the time by operation, the backend and the messages
of synchronization, precision, layout, compiler and FLOPs."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from scalebench.core.probe_record import Profile
from scalebench.strategies import recording
from scalebench.strategies.base import Loop, NotMeasured
from scalebench.strategies.recording import Event, Line, OperationKind, summarize_lines
from scalebench.strategies.tensorflow import devices

COLLECTIVES = ("CollectiveReduceV2", "CollectiveReduceV3", "CollectiveReduce", "NcclAllReduce")
OBSERVED_STEPS = 1  # after another one, which may still initialize something
# Prefixes before the name of the replaced operation: of oneDNN's operations, and of fused ones without oneDNN.
REPLACED = re.compile(r"^_(MklNative|Mkl|(?=Fused))")
SYNCHRONIZE_OPERATION = "SyncDevice"
# NCCL's kernels, TensorFlow's operation on them, and its own event on the host, which needs no profiler of the GPU.
NCCL_EVENTS = ("ncclDevKernel", "ncclKernel", "ncclSym", "NcclAllReduce", "ncclAllReduce")
NCCL_KERNEL = re.compile(r"nccl", re.IGNORECASE)
PEER_COPY = "MemcpyP2P"
HOROVOD_ENQUEUE = "HorovodAllreduce"  # only hands a gradient to Horovod's thread, which no profile contains
GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # the other lines of a GPU's plane repeat the same kernels
GPU_OPERATION = "tf_op"  # the statistic of a GPU kernel that names its operation
XLA_OPERATION = "hlo_op"  # a statistic that only operations of XLA programs have
NUMBER_SUFFIX = re.compile(r"(_\d+)?(\.\d+)?$")  # as in the second MatMul, or the third fusion
OPERATION = re.compile(r"[^\s:]+:\w+")
NO_KERNELS = "TensorFlow's profiler recorded no kernel of the GPUs (CUPTI is missing or forbidden here)"


@contextmanager
def record_lines() -> Iterator[list[Line]]:
    """Yield a list that after the block contains all lines recorded in it, including the work that it issued to the
    devices."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="scalebench-profile-") as folder:
        tf.profiler.experimental.start(folder)
        try:
            yield lines
            devices.synchronize()
        finally:
            tf.profiler.experimental.stop()
        for path in Path(folder).rglob("*.xplane.pb"):
            lines += parse_xspace(path.read_bytes())


def parse_xspace(serialized: bytes) -> list[Line]:
    """Return the lines of a serialized XSpace."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    planes = xplane_pb2.XSpace.FromString(serialized).planes
    recording_ns = 0
    for plane in planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                recording_ns = max(recording_ns, int(stat.uint64_value or stat.int64_value))
    lines = []
    for plane in planes:
        on_gpu = plane.name.startswith(GPU_PLANE)
        for line in plane.lines:
            if on_gpu and not line.name.startswith(STREAM):
                continue
            # Times of lines are relative to the start of the recording if it is in the file, else to the epoch.
            from_ns, events = line.timestamp_ns + (recording_ns if line.timestamp_ns < recording_ns else 0), []
            for event in line.events:
                name, operation = str(plane.event_metadata[event.metadata_id].name), ""
                stats = {plane.stat_metadata[stat.metadata_id].name: stat for stat in event.stats}
                if on_gpu:
                    if (stat := stats.get(GPU_OPERATION)) is not None:
                        operation = stat.str_value or str(plane.stat_metadata[stat.ref_value].name)
                elif OPERATION.fullmatch(name):
                    operation = name
                elif XLA_OPERATION in stats:
                    operation = f"{name}:{NUMBER_SUFFIX.sub('', name)}"
                events.append(Event(name, from_ns * 1000 + event.offset_ps, event.duration_ps, operation))
            name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
            lines.append(Line(name, "cuda" if on_gpu else "cpu", events))
    return lines


def record_steps(train: Callable[[Loop], None], batch: Any, steps: int = OBSERVED_STEPS) -> tuple[list[Line], float]:
    """Return the recorded lines and the seconds per step of that many more steps on `batch`, which spoil the
    weights."""
    return recording.profile_steps(train, batch, steps, record_lines, devices.synchronize)


def summarize_profile(
    lines: list[Line], steps: int, step_s: float, sync_operations: Collection[str], on_gpus: bool
) -> Profile:
    """Sum up the kernels of all GPUs, or without GPUs the operations of all threads.

    `sync_operations` are the names of operations that sum gradients over the devices of the process. On the CPU a
    collective runs in a thread in which it also waits for the other devices, as NCCL kernels do on GPUs.
    Raises NotMeasured where no kernel of the GPUs was recorded.
    """
    device = "cuda" if on_gpus else "cpu"
    if on_gpus and not any(line.events for line in lines if line.device == device):
        raise NotMeasured(NO_KERNELS)
    classify = partial(classify_event, sync_operations=sync_operations)
    return summarize_lines(lines, steps, step_s, device, classify, unseen=HOROVOD_ENQUEUE)


def classify_event(event: Event, device: str, sync_operations: Collection[str] = ()) -> OperationKind | None:
    """Return the kind of the operation that an event is, None where it is none."""
    if device == "cuda":
        name = event.name.removeprefix("void ").partition("<")[0].partition("(")[0]  # without template arguments
        collective = bool(NCCL_KERNEL.search(name)) or name == PEER_COPY
    else:
        name = REPLACED.sub("", event.operation.rpartition(":")[2])
        collective = name in (*COLLECTIVES, HOROVOD_ENQUEUE)
        if not name or name == SYNCHRONIZE_OPERATION:
            return None
    return OperationKind(name, collective or any(is_event_of(event.operation, each) for each in sync_operations))


def is_event_of(event: str, name: str) -> bool:
    """Return whether an event belongs to the operation `name`; the name of an inlined call may come before it."""
    operation = event.partition(":")[0]
    return operation == name or operation.endswith(f"/{name}")


def nested_operations(graph: Any) -> list[tf.Operation]:
    """Return the operations of a graph and of the functions and branches that it calls."""
    operations = list(graph.get_operations())
    for operation in graph.get_operations():
        for value in operation.node_def.attr.values():
            called = graph._get_function(value.func.name) if value.HasField("func") and value.func.name else None
            if getattr(called, "graph", None) is not None:
                operations += nested_operations(called.graph)
    return operations


def reduction_operations(function: Any, scope: str = "") -> list[tf.Operation]:
    """Return the operations of a traced step that sum gradients over devices, one per message.

    A collective has an operation on every device, of which only the first device's are returned; without collectives
    the reduction is an AddN whose addends come from several devices. Scalars are left out: the sum of the losses, and
    the flag for finite gradients; so are those whose name lacks `scope`.
    """
    operations = [
        operation
        for operation in nested_operations(function.graph)
        if operation.inputs and operation.inputs[0].shape.rank != 0 and scope in operation.name
    ]
    collectives = [operation for operation in operations if operation.type in COLLECTIVES]
    if collectives:
        return [operation for operation in collectives if operation.device == collectives[0].device]
    return [op for op in operations if op.type == "AddN" and len({addend.device for addend in op.inputs}) > 1]


def reduction_message_bytes(function: Any, scope: str = "") -> list[int]:
    """Return the bytes of each message of one step, as one device sends it."""
    addends = [operation.inputs[0] for operation in reduction_operations(function, scope)]
    return [addend.shape.num_elements() * addend.dtype.size for addend in addends]


def observe_backend(train: Callable[[Loop], None], function: Any, batch: Any) -> str | None:
    """Train two more steps on `batch` and return the backend that they used: nccl, ring or copy; None: nothing was
    sent. Spoils the weights. Raises NotMeasured as identify_backend does."""
    lines, _ = record_steps(train, batch)
    operations = reduction_operations(function.get_concrete_function())
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
    if types and not executed:  # though they were: the profiler of a busy machine loses what it began too late to see
        raise NotMeasured("TensorFlow's profiler recorded none of the operations that sum gradients")
    if not executed & set(COLLECTIVES):
        return "copy" if executed else None
    if on_gpus and not any(line.device == "cuda" for line in lines):
        raise NotMeasured(NO_KERNELS)
    return "ring"


def settings_used(function: Any, device: str, fixed_layout: bool) -> dict[str, str]:
    """Return 'compiler' of a traced step, and 'precision' and 'data_format' by its first matrix product and its first
    convolution over pictures; what cannot be determined is left out.

    Without `fixed_layout` TensorFlow's layout optimizer may change the layout on GPUs, which is then left out.
    """
    operations = nested_operations(function.graph)
    calls = [operation.node_def for operation in operations if "PartitionedCall" in operation.type]
    settings = {"compiler": "xla" if any(call.attr["_XlaMustCompile"].b for call in calls) else "none"}
    product = next((operation for operation in operations if operation.type in ("Conv2D", "MatMul")), None)
    if product is not None:
        settings["precision"] = product.outputs[0].dtype.name
        if settings["precision"] == "float32" and devices.has_tf32(device):
            settings["precision"] = "tf32" if tf.config.experimental.tensor_float_32_execution_enabled() else "float32"
    conv = next((op for op in operations if op.type == "Conv2D" and op.inputs[0].shape[1:3].rank == 2), None)
    # A convolution over one axis is one of height 1 for TensorFlow, which expands its inputs.
    is_flat = conv is not None and any(operand.op.type == "ExpandDims" for operand in conv.inputs)
    if conv is not None and not is_flat and (fixed_layout or "GPU" not in device):
        settings["data_format"] = conv.get_attr("data_format").decode().lower()
    return settings


# Operations whose products are not counted: functions, loops of recurrent layers, and transposed convolutions.
UNCOUNTED = re.compile(r"\w*(?:PartitionedCall|While|If|BackpropInput\w*|MatMul\w*|RNN\w*)|Case|XlaLaunch")


def count_flops(graph: tf.Graph) -> int | None:
    """Count the FLOPs of convolutions, matrix products and attention in a graph of fixed shapes, 2 per multiply-add.

    None where it has operations whose products cannot be seen, or shapes that are not fixed. TensorFlow's own count
    (float_operation of its profiler) knows neither einsums nor products of batches, and adds up biases and means too.
    """
    multiply_adds = 0
    for operation in graph.get_operations():
        try:
            match operation.type:
                case "MatMul" | "BatchMatMulV2" as kind:
                    transposed = operation.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
                    summed = operation.inputs[0].shape[-2 if transposed else -1]
                    multiply_adds += math.prod(operation.outputs[0].shape) * summed
                case "Einsum":  # the sizes of all labels, as they are summed over at once
                    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
                    sizes: dict[str, int] = {}
                    for term, tensor in zip(terms, operation.inputs, strict=True):
                        sizes |= dict(zip(term, tensor.shape, strict=True))
                    multiply_adds += math.prod(sizes.values())
                case "Conv2D" | "Conv3D":
                    multiply_adds += math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[1].shape[:-1])
                case "DepthwiseConv2dNative":
                    multiply_adds += math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[1].shape[:2])
                case other if UNCOUNTED.fullmatch(other):
                    return None
        except (TypeError, ValueError):  # a size is None, or the ellipsis of an einsum
            return None
    return 2 * multiply_adds
