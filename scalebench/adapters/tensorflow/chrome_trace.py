"""A profile as Chrome's tracing and Perfetto show it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from scalebench.adapters.tensorflow.xplane import Line

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
