"""The time of a step by operation, and Chrome traces, from JAX's profiler."""

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
from scalebench_jax.observed import NCCL
from scalebench_jax.xplane import Event, Line, Recording

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
