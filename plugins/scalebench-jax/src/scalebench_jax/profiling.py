"""Steps as profiler and clock show them: recordings, the time by operation, traces, the backend and all-reduces of a
step, the number of programs in flight, and the time of each device."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from scalebench.plugin_api import LossPart, Profile, ProfiledOperation

GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # the other lines of a GPU's plane repeat the same kernels
XLA_OPERATION = "hlo_op"  # the statistic that names the operation of XLA's program


class Event(NamedTuple):
    """An uninterrupted piece of work on one line; events may be nested."""

    name: str
    start_ns: float  # since the recording began
    duration_ns: float
    operation: str = ""  # of XLA's program; "": of none


class Line(NamedTuple):
    """The events of a thread, or of a GPU stream."""

    name: str
    device: str  # cpu | cuda
    events: list[Event]

    def within(self, start_ns: float, end_ns: float) -> Line:
        return self._replace(events=[event for event in self.events if start_ns <= event.start_ns <= end_ns])


class Recording:
    """The lines of a recording, which are set when it ends."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.start_ns = 0  # since the epoch


@contextmanager
def record_profile() -> Iterator[Recording]:
    """Record what runs in the block, which must wait for the work that it issues."""
    recording, options = Recording(), jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing every Python call would slow down the steps
    with tempfile.TemporaryDirectory(prefix="scalebench-profile-") as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            yield recording
        finally:
            jax.profiler.stop_trace()
        for path in Path(folder).rglob("*.xplane.pb"):
            add_lines(recording, jax.profiler.ProfileData.from_file(str(path)))


def add_lines(recording: Recording, data: Any) -> None:
    for plane in data.planes:
        recording.start_ns = recording.start_ns or int(dict(plane.stats).get("profile_start_time", 0))
        on_gpu = plane.name.startswith(GPU_PLANE)
        for line in plane.lines:
            if not on_gpu or line.name.startswith(STREAM):
                events = [_parse_event(event) for event in line.events]
                name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
                recording.lines.append(Line(name, "cuda" if on_gpu else "cpu", events))


def _parse_event(event: Any) -> Event:
    operation = next((str(value) for name, value in event.stats if name == XLA_OPERATION), "")
    return Event(event.name, event.start_ns, event.duration_ns, operation)


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
    elements = 1
    for size in filter(None, shape.split(",")):
        elements *= int(size)
    bits = BITS.search(dtype)
    return elements * int(bits[0]) // 8 if bits else elements


def observed_backend(events: Iterable[str], all_reduces: Iterable[str]) -> str | None:
    """Return nccl if its kernels are among the events, xla if XLA itself ran one of `all_reduces`, the program's
    operations that sum over devices; None: nothing was synchronized."""
    names = set(events)
    if any(NCCL.search(name) for name in names):
        return "nccl"
    return "xla" if names & set(all_reduces) else None


MAX_OPERATIONS = 20
NUMBER_SUFFIX = re.compile(r"(\.\d+)+(\.clone)?$")  # as in the third fusion


def summarize_profile(lines: list[Line], steps: int, step_s: float, all_reduces: Collection[str]) -> Profile:
    """Sum up the kernels of all GPUs, or without GPUs XLA's operations on all threads.

    `all_reduces` are the names of operations that sum gradients over devices; each device waits for the others in them.
    """
    device = "cuda" if any(line.events for line in lines if line.device == "cuda") else "cpu"
    calls: dict[tuple[str, bool], int] = defaultdict(int)
    self_s: dict[tuple[str, bool], float] = defaultdict(float)
    for line in lines:
        for event, self_ns in exclusive_times(line) if line.device == device else ():
            collective = event.operation in all_reduces or (device == "cuda" and bool(NCCL.search(event.name)))
            kind = NUMBER_SUFFIX.sub("", event.name), collective
            calls[kind] += 1
            self_s[kind] += self_ns / 1e9
    collective_s = [seconds for (_, collective), seconds in self_s.items() if collective]
    return Profile(
        steps=steps,
        step_s=step_s,
        kernel_s=sum(self_s.values()) / steps if self_s else None,
        collective_s=sum(collective_s) / steps if collective_s else None,
        operations=[
            ProfiledOperation(name, calls[name, collective] / steps, seconds / steps, collective, device)
            for (name, collective), seconds in sorted(self_s.items(), key=lambda item: -item[1])[:MAX_OPERATIONS]
        ],
    )


def exclusive_times(line: Line) -> Iterator[tuple[Event, float]]:
    """Yield the exclusive nanoseconds of each operation of a line, that is without nested operations."""
    events = [event for event in line.events if event.operation or line.device == "cuda"]
    stack: list[tuple[Event, list[float]]] = []  # nested operations: event, exclusive nanoseconds
    for event in sorted(events, key=lambda one: (one.start_ns, -one.duration_ns)):
        while stack and stack[-1][0].start_ns + stack[-1][0].duration_ns <= event.start_ns:
            done, left = stack.pop()
            yield done, max(0.0, left[0])
        if stack:
            stack[-1][1][0] -= event.duration_ns
        stack.append((event, [event.duration_ns]))
    for done, left in stack:
        yield done, max(0.0, left[0])


def write_chrome_trace(path: Path, recording: Recording, process: str) -> None:
    """Write the lines as threads of one process for Chrome's tracing and Perfetto, as gzipped JSON; `ts` and `dur` are
    microseconds, `ts` relative to the file's baseTimeNanoseconds, which count from the epoch."""
    pid = os.getpid()
    events: list[dict[str, Any]] = [_metadata_event("process_name", process, pid, 0)]
    shown = [line for line in recording.lines if line.events]
    for tid, line in enumerate(sorted(shown, key=lambda line: line.device == "cpu"), start=1):
        events.append(_metadata_event("thread_name", line.name, pid, tid))
        for event in line.events:
            times = {"ts": event.start_ns / 1e3, "dur": event.duration_ns / 1e3}
            events.append({"ph": "X", "name": event.name, "pid": pid, "tid": tid, **times})
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": recording.start_ns}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def _metadata_event(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


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


class MeasuredReplay:
    """A Loop that repeats one batch: a warm-up step, then the measured steps."""

    def __init__(self, batch: Any, steps: int, synchronize: Callable[[], None]) -> None:
        self._batch, self._left, self._steps = batch, steps + 1, steps
        self._synchronize = synchronize
        self.start_ns = self.end_ns = 0  # since the epoch

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self._left -= 1
        if self._left in (0, self._steps):
            self._synchronize()
            self.start_ns, self.end_ns = self.start_ns or time.time_ns(), time.time_ns()
        return self._left == 0


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
