"""Steps as profiler and clock show them: recordings, the kinds of XLA's operations, the backend and all-reduces of a
step, the number of programs in flight, and the time of each device."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from scalebench.plugin_api import Event, Line, OperationKind

GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # the other lines of a GPU's plane repeat the same kernels
XLA_OPERATION = "hlo_op"  # the statistic that names the operation of XLA's program


@contextmanager
def record_lines() -> Iterator[list[Line]]:
    """Yield a list that after the block contains the lines recorded in it, which must wait for the work it issues."""
    lines: list[Line] = []
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing every Python call would slow down the steps
    with tempfile.TemporaryDirectory(prefix="scalebench-profile-") as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            yield lines
        finally:
            jax.profiler.stop_trace()
        for path in Path(folder).rglob("*.xplane.pb"):
            lines += read_lines(jax.profiler.ProfileData.from_file(str(path)))


def read_lines(data: Any) -> Iterator[Line]:
    """Yield the threads and streams of a recording, whose times count from its start."""
    start_ns = max((int(dict(plane.stats).get("profile_start_time", 0)) for plane in data.planes), default=0)
    for plane in data.planes:
        on_gpu = plane.name.startswith(GPU_PLANE)
        for line in plane.lines:
            if on_gpu and not line.name.startswith(STREAM):
                continue
            events = []
            for event in line.events:
                start_ps, duration_ps = (round(each * 1000) for each in (event.start_ns, event.duration_ns))
                operation = next((str(value) for name, value in event.stats if name == XLA_OPERATION), "")
                events.append(Event(event.name, start_ns * 1000 + start_ps, duration_ps, operation))
            name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
            yield Line(name, "cuda" if on_gpu else "cpu", events)


# %all-reduce.3 = (f32[7,16]{1,0}, f32[]) all-reduce(...); an asynchronous one is all-reduce-start(...)
ALL_REDUCE = re.compile(r"%?([\w.-]+) = (\(.*?\)|\S+) all-reduce(?:-start)?\(")
ARRAY = re.compile(r"\b([a-z]+[0-9]+)\[([0-9,]*)\]")
BITS = re.compile(r"[0-9]+$")
NCCL = re.compile(r"nccl", re.IGNORECASE)


def all_reduce_bytes(hlo: str) -> dict[str, int]:
    """Return the bytes of each all-reduce of a compiled program, as one device sends them, by operation name."""
    return {
        name: sum(_array_bytes(*array) for array in ARRAY.findall(shapes)) for name, shapes in ALL_REDUCE.findall(hlo)
    }


def _array_bytes(dtype: str, shape: str) -> int:
    bits, elements = BITS.search(dtype), math.prod(map(int, filter(None, shape.split(","))))
    return elements * int(bits[0]) // 8 if bits else elements


def observed_backend(events: Iterable[str], all_reduces: Iterable[str]) -> str | None:
    """Return nccl if its kernels are among the events, xla if XLA itself ran one of `all_reduces`, the program's
    operations that sum over devices; None: nothing was synchronized."""
    names = set(events)
    if any(NCCL.search(name) for name in names):
        return "nccl"
    return "xla" if names & set(all_reduces) else None


NUMBER_SUFFIX = re.compile(r"(\.\d+)+(\.clone)?$")  # as in the third fusion


def classify_event(event: Event, device: str, all_reduces: Collection[str]) -> OperationKind | None:
    """Return the kind of a GPU's kernel or of an operation of XLA, None for another event. `all_reduces` are the names
    of operations that sum gradients over devices; each device waits for the others in them."""
    if device == "cpu" and not event.operation:
        return None
    collective = event.operation in all_reduces or (device == "cuda" and bool(NCCL.search(event.name)))
    return OperationKind(NUMBER_SUFFIX.sub("", event.name), collective)


class ProgramBacklog:
    """Limits how many programs are issued ahead of the finished ones.

    XLA queues up to 32 programs for a CPU device. Issuing one more blocks one of the threads that run programs, and
    with one thread per device that may be a thread that an all-reduce waits for: a deadlock.
    """

    def __init__(self, max_issued: int = 8) -> None:
        self._max_issued, self._issued = max_issued, deque[jax.Array]()

    def add(self, result: jax.Array) -> None:
        """Add a result of a program that no other program consumes."""
        self._issued.append(result)
        if len(self._issued) > self._max_issued:
            self._issued.popleft().block_until_ready()


def device_seconds(issue: Callable[[], jax.Array], waiters: Executor) -> list[float]:
    """Return the seconds until each device has its part of the array that `issue` starts to compute.

    One thread waits for each device: a single thread would see a fast device only after a slow one that it waits for.
    """
    start_s = time.perf_counter()
    shards = issue().addressable_shards

    def seconds(shard: Any) -> float:
        shard.data.block_until_ready()
        return time.perf_counter() - start_s

    return list(waiters.map(seconds, sorted(shards, key=lambda shard: shard.index[0].start or 0)))
