"""TensorFlow's profiler: recordings of this process as lines of events, Chrome traces of them, and the time of a step
by operation."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from scalebench.core.result import Profile, ProfiledOperation
from scalebench.strategies.base import BatchReplay, Loop, LossPart
from scalebench.strategies.tensorflow import devices

COLLECTIVES = ("CollectiveReduceV2", "CollectiveReduceV3", "CollectiveReduce", "NcclAllReduce")
OBSERVED_STEPS = 2  # the first step may still initialize something
MAX_OPERATIONS = 20  # in the record of a profile
# Prefixes before the name of the replaced operation: of oneDNN's operations, and of fused ones without oneDNN.
REPLACED = re.compile(r"^_(MklNative|Mkl|(?=Fused))")
SYNCHRONIZE_OPERATION = "SyncDevice"
NCCL_KERNEL = re.compile(r"nccl", re.IGNORECASE)
PEER_COPY = "MemcpyP2P"
HOROVOD_ENQUEUE = "HorovodAllreduce"  # only hands a gradient to Horovod's thread, which no profile contains
GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # the other lines of a GPU's plane repeat the same kernels
GPU_OPERATION = "tf_op"  # the statistic of a GPU kernel that names its operation
XLA_OPERATION = "hlo_op"  # a statistic that only operations of XLA programs have
NUMBER_SUFFIX = re.compile(r"(_\d+)?(\.\d+)?$")  # as in the second MatMul, or the third fusion
OPERATION = re.compile(r"[^\s:]+:\w+")
UNTIMED_EVENTS = (
    "ThreadpoolListener::",
    "MemoryAllocation",
    "MemoryDeallocation",
)  # half of all events, of no duration


def is_event_of(event: str, name: str) -> bool:
    """Return whether an event belongs to the operation `name`; the name of an inlined call may come before it."""
    operation = event.partition(":")[0]
    return operation == name or operation.endswith(f"/{name}")


class Event(NamedTuple):
    """An uninterrupted piece of work on one line; events may be nested."""

    name: str
    start_ps: int  # picoseconds since the epoch: as float seconds, adjacent events would seem to overlap
    duration_ps: int
    operation: str = ""  # 'name:type' of the operation that this event or GPU kernel belongs to; "" if there is none

    @property
    def start_s(self) -> float:
        return self.start_ps / 1e12

    @property
    def duration_s(self) -> float:
        return self.duration_ps / 1e12


class Line(NamedTuple):
    """The events of a thread, or of a GPU stream."""

    name: str
    device: str  # cpu | cuda
    events: list[Event]


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

    space = xplane_pb2.XSpace.FromString(serialized)
    starts_ns = [
        int(stat.uint64_value or stat.int64_value)
        for plane in space.planes
        for stat in plane.stats
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time"
    ]
    recording_ns = max(starts_ns, default=0)
    return [
        _parse_line(plane, line, recording_ns)
        for plane in space.planes
        for line in plane.lines
        if not plane.name.startswith(GPU_PLANE) or line.name.startswith(STREAM)
    ]


def _parse_line(plane: Any, line: Any, recording_ns: int) -> Line:
    # Times of lines are relative to the start of the recording if it is in the file, else to the epoch.
    from_ns = line.timestamp_ns + (recording_ns if line.timestamp_ns < recording_ns else 0)
    on_gpu = plane.name.startswith(GPU_PLANE)
    events = []
    for event in line.events:
        name = str(plane.event_metadata[event.metadata_id].name)
        stats = {plane.stat_metadata[stat.metadata_id].name: stat for stat in event.stats}
        if on_gpu:
            stat = stats.get(GPU_OPERATION)
            operation = (stat.str_value or str(plane.stat_metadata[stat.ref_value].name)) if stat is not None else ""
        elif OPERATION.fullmatch(name):
            operation = name
        else:
            operation = f"{name}:{NUMBER_SUFFIX.sub('', name)}" if XLA_OPERATION in stats else ""
        events.append(Event(name, from_ns * 1000 + event.offset_ps, event.duration_ps, operation))
    name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
    return Line(name, "cuda" if on_gpu else "cpu", events)


def write_chrome_trace(path: Path, lines: list[Line], process: str) -> None:
    """Write the lines as threads of one process, as gzipped JSON; `ts` and `dur` are microseconds, `ts` relative to the
    file's baseTimeNanoseconds, which count from the epoch.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format)
    """
    pid = os.getpid()
    events: list[dict[str, Any]] = [_metadata_event("process_name", process, pid, 0)]
    used_lines = [line for line in lines if line.events]
    base_ns = min((event.start_ps for line in used_lines for event in line.events), default=0) // 1000
    for tid, line in enumerate(sorted(used_lines, key=lambda line: line.device == "cpu"), start=1):
        events.append(_metadata_event("thread_name", line.name, pid, tid))
        for event in line.events:
            if not event.name.startswith(UNTIMED_EVENTS):
                times = {"ts": (event.start_ps - base_ns * 1000) / 1e6, "dur": event.duration_ps / 1e6}
                events.append({"ph": "X", "name": event.name, "pid": pid, "tid": tid, **times})
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def _metadata_event(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


class MeasuredReplay(BatchReplay):
    """A warm-up step, in which ranks synchronize and trainers set up their loop, followed by the measured steps."""

    def __init__(self, batch: Any, steps: int) -> None:
        super().__init__(batch, 1 + steps)
        self.start_s = self.end_s = 0.0  # since the epoch

    def done(self, part: LossPart | None) -> bool:
        is_over = super().done(part)
        if is_over or len(self.parts) == 1:
            devices.synchronize()
            self.start_s, self.end_s = self.start_s or time.time(), time.time()
        return is_over


def profile_steps(train: Callable[[Loop], None], batch: Any, steps: int) -> tuple[list[Line], float]:
    """Train that many steps on `batch`; return (recorded lines, wall seconds per step). Spoils the weights."""
    if batch is None:
        raise RuntimeError("profile replays the last batch of the training, and there was no training")
    loop = MeasuredReplay(batch, steps)
    with record_lines() as lines:
        train(loop)
    measured = [
        line._replace(events=[event for event in line.events if loop.start_s <= event.start_s <= loop.end_s])
        for line in lines
    ]
    return measured, (loop.end_s - loop.start_s) / steps


def summarize_profile(lines: list[Line], steps: int, step_s: float, sync_operations: Collection[str]) -> Profile:
    """Sum up the kernels of all GPUs, or without GPUs the operations of all threads.

    `sync_operations` are the names of operations that sum gradients over the devices of the process. On the CPU a
    collective runs in a thread in which it also waits for the other devices, as NCCL kernels do on GPUs.
    `collective_s` is None if that time is not visible: nothing is synchronized, or another library does it in its own
    threads (Horovod).
    """
    device = "cuda" if any(line.events for line in lines if line.device == "cuda") else "cpu"
    times: dict[OperationKind, list[float]] = defaultdict(list)  # the exclusive seconds of each call
    for line in lines:
        if line.device == device:
            for kind, self_s in exclusive_times(line, sync_operations):
                times[kind].append(self_s)
    sums = {kind: sum(seconds) for kind, seconds in times.items()}
    largest = sorted(sums.items(), key=lambda item: -item[1])[:MAX_OPERATIONS]
    collective_s = [total_s for kind, total_s in sums.items() if kind.collective and kind.name != HOROVOD_ENQUEUE]
    return Profile(
        steps=steps,
        step_s=step_s,
        kernel_s=sum(sums.values()) / steps if sums else None,
        collective_s=sum(collective_s) / steps if collective_s else None,
        operations=[
            ProfiledOperation(kind.name, len(times[kind]) / steps, total_s / steps, kind.collective, device)
            for kind, total_s in largest
        ],
    )


class OperationKind(NamedTuple):
    """The type of an operation or name of a kernel, and whether it sums over devices."""

    name: str
    collective: bool


def exclusive_times(line: Line, sync_operations: Collection[str]) -> Iterator[tuple[OperationKind, float]]:
    """Yield the kind and the exclusive seconds of each operation of a line, that is without nested operations."""
    stack: list[tuple[OperationKind, int, list[int]]] = []  # nested operations: kind, end, exclusive picoseconds
    for event in sorted(line.events, key=lambda event: (event.start_ps, -event.duration_ps)):
        kind = _classify(event, line.device == "cuda", sync_operations)
        if kind is None:
            continue
        while stack and stack[-1][1] <= event.start_ps:
            ended = stack.pop()
            yield ended[0], ended[2][0] / 1e12
        if stack:
            stack[-1][2][0] -= event.duration_ps
        stack.append((kind, event.start_ps + event.duration_ps, [event.duration_ps]))
    for kind, _, self_ps in reversed(stack):
        yield kind, self_ps[0] / 1e12


def _classify(event: Event, on_gpu: bool, sync_operations: Collection[str]) -> OperationKind | None:
    """Return the kind of a GPU's kernel or of an operation on the CPU; None where it is neither."""
    if on_gpu:
        name = event.name.removeprefix("void ").partition("<")[0].partition("(")[0]  # without template arguments
        collective = bool(NCCL_KERNEL.search(name)) or name == PEER_COPY
    else:
        name = REPLACED.sub("", event.operation.rpartition(":")[2])
        collective = name in (*COLLECTIVES, HOROVOD_ENQUEUE)
        if not name or name == SYNCHRONIZE_OPERATION:
            return None
    return OperationKind(name, collective or any(is_event_of(event.operation, each) for each in sync_operations))


def _count_matrix_product(operation: tf.Operation) -> int:
    left, transposed = operation.inputs[0].shape, "transpose_a" if operation.type == "MatMul" else "adj_x"
    return math.prod(operation.outputs[0].shape) * left[-2 if operation.get_attr(transposed) else -1]


def _count_einsum(operation: tf.Operation) -> int:
    """Multiply the sizes of all labels, as they are summed over at once."""
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    return math.prod({label: size for term, each in zip(terms, operation.inputs, strict=True)
                      for label, size in zip(term, each.shape, strict=True)}.values())  # fmt: skip


def _count_convolution(operation: tf.Operation) -> int:
    return math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[1].shape[:-1])


MULTIPLY_ADDS: dict[str, Callable[[tf.Operation], int]] = {
    "MatMul": _count_matrix_product,
    "BatchMatMulV2": _count_matrix_product,
    "Einsum": _count_einsum,
    "Conv2D": _count_convolution,
    "Conv3D": _count_convolution,
    "DepthwiseConv2dNative": lambda operation: (
        math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[1].shape[:2])
    ),
}
# Operations whose products are not counted: functions, loops of recurrent layers, and transposed convolutions.
UNCOUNTED = re.compile(r"\w*(?:PartitionedCall|While|If|BackpropInput\w*|MatMul\w*|RNN\w*)|Case|XlaLaunch")


def count_flops(graph: tf.Graph) -> int | None:
    """Count the FLOPs of convolutions, matrix products and attention in a graph of fixed shapes, 2 per multiply-add.

    None where it has operations whose products cannot be seen, or shapes that are not fixed.
    """
    multiply_adds = 0
    for operation in graph.get_operations():
        if count := MULTIPLY_ADDS.get(operation.type):
            try:
                multiply_adds += count(operation)
            except (TypeError, ValueError):  # a size is None, or the ellipsis of an einsum
                return None
        elif UNCOUNTED.fullmatch(operation.type):
            return None
    return 2 * multiply_adds
