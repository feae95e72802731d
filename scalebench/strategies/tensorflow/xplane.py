"""What TensorFlow's profiler records of this process, as lines of events.

A profile as Chrome's tracing and Perfetto show it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from scalebench.strategies.tensorflow import devices

GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # other lines of a GPU's plane tell of the same kernels once more
ANNOTATION = "tf_op"  # the statistic of a GPU's kernel that names its operation
OF_XLA = "hlo_op"  # a statistic that only the operations of XLA's programs have
NUMBERS = re.compile(r"(_\d+)?(\.\d+)?$")  # of the second MatMul, of the third fusion
OPERATION = re.compile(r"[^\s:]+:\w+")


class Event(NamedTuple):
    """Something that ran without a break on one line; others may lie within it."""

    name: str
    start_ps: int  # picoseconds since the epoch: as seconds in a float, neighbours would seem to overlap
    duration_ps: int
    operation: str = ""  # 'name:type' of the operation that this is, or whose kernel it is on a GPU; "": of none

    @property
    def start_s(self) -> float:
        return self.start_ps / 1e12

    @property
    def duration_s(self) -> float:
        return self.duration_ps / 1e12


class Line(NamedTuple):
    """A thread, or a stream of a GPU."""

    name: str
    device: str  # cpu | cuda
    events: list[Event]


@contextmanager
def recorded() -> Iterator[list[Line]]:
    """A list that has all lines of what ran within, and on the devices on its account, when it is over."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="scalebench-profile-") as folder:
        tf.profiler.experimental.start(folder)
        try:
            yield lines
            devices.synchronize()
        finally:
            tf.profiler.experimental.stop()
        for path in Path(folder).rglob("*.xplane.pb"):
            lines += read(path.read_bytes())


def read(serialized: bytes) -> list[Line]:
    """The lines of a serialized XSpace."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(serialized)
    begun_ns = max((_begun_ns(plane) for plane in space.planes), default=0)
    return [
        _line(plane, line, begun_ns)
        for plane in space.planes
        for line in plane.lines
        if not plane.name.startswith(GPU_PLANE) or line.name.startswith(STREAM)
    ]


def _begun_ns(plane: Any) -> int:
    """When the recording began, since the epoch; 0 in a plane that does not tell."""
    for stat in plane.stats:
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
            return int(stat.uint64_value or stat.int64_value)
    return 0


def _line(plane: Any, line: Any, begun_ns: int) -> Line:
    # Lines count from the beginning of the recording where that is told, else from the epoch.
    from_ns = line.timestamp_ns + (begun_ns if line.timestamp_ns < begun_ns else 0)
    on_gpu = plane.name.startswith(GPU_PLANE)
    events = [
        Event(
            plane.event_metadata[event.metadata_id].name,
            from_ns * 1000 + event.offset_ps,
            event.duration_ps,
            _annotation(plane, event) if on_gpu else _operation(plane, event),
        )
        for event in line.events
    ]
    name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
    return Line(name, "cuda" if on_gpu else "cpu", events)


def _operation(plane: Any, event: Any) -> str:
    name = str(plane.event_metadata[event.metadata_id].name)
    if OPERATION.fullmatch(name):
        return name
    of_xla = any(plane.stat_metadata[stat.metadata_id].name == OF_XLA for stat in event.stats)
    return f"{name}:{NUMBERS.sub('', name)}" if of_xla else ""


def _annotation(plane: Any, event: Any) -> str:
    for stat in event.stats:
        if plane.stat_metadata[stat.metadata_id].name == ANNOTATION:
            return stat.str_value or str(plane.stat_metadata[stat.ref_value].name)
    return ""


NOISE = ("ThreadpoolListener::", "MemoryAllocation", "MemoryDeallocation")  # half of all events, and they last no time


def write(path: Path, lines: list[Line], process: str) -> None:
    """The lines as threads of one process, gzipped JSON; `ts` and `dur` are microseconds, `ts` since the file's
    baseTimeNanoseconds, which are since the epoch.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format)
    """
    pid = os.getpid()
    events: list[dict[str, Any]] = [_named("process_name", process, pid, 0)]
    shown = [line for line in lines if line.events]
    base_ns = min((event.start_ps for line in shown for event in line.events), default=0) // 1000
    for tid, line in enumerate(sorted(shown, key=lambda line: line.device == "cpu"), start=1):
        events.append(_named("thread_name", line.name, pid, tid))
        for event in line.events:
            if not event.name.startswith(NOISE):
                times = {"ts": (event.start_ps - base_ns * 1000) / 1e6, "dur": event.duration_ps / 1e6}
                events.append({"ph": "X", "name": event.name, "pid": pid, "tid": tid, **times})
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
