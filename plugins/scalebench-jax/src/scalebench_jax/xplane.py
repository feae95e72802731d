"""Recordings of this process by JAX's profiler, as lines of events."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

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
