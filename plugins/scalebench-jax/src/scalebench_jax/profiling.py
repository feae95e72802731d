"""Where the time of an update goes, by JAX's own profiler."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from scalebench.plugin_api import Profile, ProfiledOperation
from scalebench_jax.evidence import NCCL
from scalebench_jax.xplane import Event, Line, Recording

LARGEST = 20
NUMBERS = re.compile(r"(\.\d+)+(\.clone)?$")  # of the third fusion


def profile(lines: list[Line], updates: int, step_s: float, carriers: Collection[str]) -> Profile:
    """The kernels of all GPUs, or where there are none XLA's operations on all threads.

    `carriers`: names of operations that add gradients up over the devices, in which each device waits for the others.
    """
    device = "cuda" if any(line.events for line in lines if line.device == "cuda") else "cpu"
    calls: dict[tuple[str, bool], int] = defaultdict(int)
    own_s: dict[tuple[str, bool], float] = defaultdict(float)
    for line in lines:
        for event, own_ns in own_times(line) if line.device == device else ():
            collective = event.operation in carriers or (device == "cuda" and bool(NCCL.search(event.name)))
            kind = NUMBERS.sub("", event.name), collective
            calls[kind] += 1
            own_s[kind] += own_ns / 1e9
    carried = [seconds for (_, collective), seconds in own_s.items() if collective]
    return Profile(
        steps=updates,
        step_s=step_s,
        kernel_s=sum(own_s.values()) / updates if own_s else None,
        collective_s=sum(carried) / updates if carried else None,
        operations=[
            ProfiledOperation(name, calls[name, collective] / updates, seconds / updates, collective, device)
            for (name, collective), seconds in sorted(own_s.items(), key=lambda item: -item[1])[:LARGEST]
        ],
    )


def own_times(line: Line) -> Iterator[tuple[Event, float]]:
    """Own nanoseconds of each operation of a line: without those of the operations within it."""
    events = [event for event in line.events if event.operation or line.device == "cuda"]
    open_: list[tuple[Event, list[float]]] = []  # each within the one before: what is left of it
    for event in sorted(events, key=lambda one: (one.start_ns, -one.duration_ns)):
        while open_ and open_[-1][0].start_ns + open_[-1][0].duration_ns <= event.start_ns:
            done, left = open_.pop()
            yield done, max(0.0, left[0])
        if open_:
            open_[-1][1][0] -= event.duration_ns
        open_.append((event, [event.duration_ns]))
    for done, left in open_:
        yield done, max(0.0, left[0])


def write_trace(path: Path, recording: Recording, process: str) -> None:
    """As Chrome's tracing and Perfetto show it: the lines as threads of one process, gzipped JSON; `ts` and `dur` are
    microseconds, `ts` since the file's baseTimeNanoseconds, which are since the epoch."""
    pid = os.getpid()
    events: list[dict[str, Any]] = [_named("process_name", process, pid, 0)]
    shown = [line for line in recording.lines if line.events]
    for tid, line in enumerate(sorted(shown, key=lambda line: line.device == "cpu"), start=1):
        events.append(_named("thread_name", line.name, pid, tid))
        for event in line.events:
            times = {"ts": event.start_ns / 1e3, "dur": event.duration_ns / 1e3}
            events.append({"ph": "X", "name": event.name, "pid": pid, "tid": tid, **times})
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": recording.begun_ns}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
