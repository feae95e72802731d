"""Steps under a profiler that records lines of events, as those of TensorFlow and JAX do: the steps alone, the time by
operation, and a Chrome trace. Each framework's adapter reads the lines and says which events are operations."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from scalebench.core.probe_record import Profile, ProfiledOperation
from scalebench.strategies.base import BatchReplay, Loop

MAX_OPERATIONS = 20  # in the record of a profile
# Half of all events, of no duration.
UNTIMED_EVENTS = ("ThreadpoolListener::", "MemoryAllocation", "MemoryDeallocation")


class Event(NamedTuple):
    """An uninterrupted piece of work on one line; events may be nested."""

    name: str
    start_ps: int  # picoseconds since the epoch: as float seconds, adjacent events would seem to overlap
    duration_ps: int
    operation: str = ""  # of the framework, that this event or GPU kernel belongs to; "" if there is none


class Line(NamedTuple):
    """The events of a thread, or of a GPU stream."""

    name: str
    device: str  # cpu | cuda
    events: list[Event]


class OperationKind(NamedTuple):
    """The type of an operation or name of a kernel, and whether it sums over devices."""

    name: str
    collective: bool


Classify = Callable[[Event, str], OperationKind | None]  # of (event, device of its line); None: no operation


def profile_steps(
    train: Callable[[Loop], None],
    batch: Any,
    steps: int,
    record_lines: Callable[[], AbstractContextManager[list[Line]]],
    synchronize: Callable[[], None],
) -> tuple[list[Line], float]:
    """Train that many steps on `batch`, after one in which ranks synchronize and trainers set up their loop; return
    (recorded lines, wall seconds per step). Spoils the weights.

    The list that `record_lines` yields contains all lines after its block, in which `synchronize` waits for devices.
    """
    if batch is None:
        raise RuntimeError("profile replays the last batch of the training, and there was no training")
    times_s: list[float] = []  # since the epoch

    def after_step(number: int) -> None:
        if number in (1, 1 + steps):
            synchronize()
            times_s.append(time.time())

    with record_lines() as lines:
        train(BatchReplay(batch, 1 + steps, after_step))
    start_s, end_s = times_s
    measured = [
        line._replace(events=[event for event in line.events if start_s <= event.start_ps / 1e12 <= end_s])
        for line in lines
    ]
    return measured, (end_s - start_s) / steps


def summarize_lines(
    lines: list[Line], steps: int, step_s: float, device: str, classify: Classify, unseen: str = ""
) -> Profile:
    """Sum up the operations on all lines of a kind of device (cpu: threads, cuda: streams).

    `collective_s` is None where that time is not visible: nothing is synchronized, or only by the operation `unseen`,
    which another library does in threads of its own.
    """
    calls = (call for line in lines if line.device == device for call in exclusive_times(line, classify))
    return build_profile(average_operations(calls, steps, device), steps, step_s, unseen)


def average_operations(
    calls: Iterable[tuple[OperationKind, float]], steps: int, device: str
) -> list[ProfiledOperation]:
    """Return the operations of one step, largest first, from the exclusive seconds of each call in that many steps."""
    times: dict[OperationKind, list[float]] = defaultdict(list)
    for kind, self_s in calls:
        times[kind].append(self_s)
    operations = [
        ProfiledOperation(kind.name, len(each) / steps, sum(each) / steps, kind.collective, device)
        for kind, each in times.items()
    ]
    return sorted(operations, key=lambda operation: -operation.self_s)


def build_profile(operations: list[ProfiledOperation], steps: int, step_s: float, unseen: str = "") -> Profile:
    """Build the profile from all operations of one step, but for one whose time is not its own.

    Without a collective operation their time is None: replicas that do not synchronize look like those whose
    communication the profiler does not see.
    """
    collective_s = [each.self_s for each in operations if each.collective and each.name != unseen]
    return Profile(
        steps,
        step_s,
        kernel_s=sum(each.self_s for each in operations) if operations else None,
        collective_s=sum(collective_s) if collective_s else None,
        operations=operations[:MAX_OPERATIONS],
    )


def exclusive_times(line: Line, classify: Classify) -> Iterator[tuple[OperationKind, float]]:
    """Yield the kind and the exclusive seconds of each operation of a line, that is without nested operations."""
    stack: list[tuple[OperationKind, int, list[int]]] = []  # nested operations: kind, end, exclusive picoseconds
    for event in sorted(line.events, key=lambda event: (event.start_ps, -event.duration_ps)):
        kind = classify(event, line.device)
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


def write_chrome_trace(path: Path, lines: list[Line], process: str) -> None:
    """Write the lines as threads of one process, as gzipped JSON; `ts` and `dur` are microseconds, `ts` relative to the
    file's baseTimeNanoseconds, which count from the epoch.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format)
    """
    pid = os.getpid()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}
    ]
    used_lines = sorted((line for line in lines if line.events), key=lambda line: line.device == "cpu")
    base_ns = min((event.start_ps for line in used_lines for event in line.events), default=0) // 1000
    for tid, line in enumerate(used_lines, start=1):
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": line.name}})
        for event in line.events:
            if not event.name.startswith(UNTIMED_EVENTS):
                times = {"ts": (event.start_ps - base_ns * 1000) / 1e6, "dur": event.duration_ps / 1e6}
                events.append({"ph": "X", "name": event.name, "pid": pid, "tid": tid, **times})
    content = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
