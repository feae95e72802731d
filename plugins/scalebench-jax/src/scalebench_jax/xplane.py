"""What JAX's profiler records of this process, as lines of events."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

GPU_PLANE, STREAM = "/device:GPU:", "Stream #"  # other lines of a GPU's plane tell of the same kernels once more
OF_XLA = "hlo_op"  # the statistic that names the operation of XLA's program


class Event(NamedTuple):
    """Something that ran without a break on one line; others may lie within it."""

    name: str
    start_ns: float  # since the recording began
    duration_ns: float
    operation: str = ""  # of XLA's program; "": of none


class Line(NamedTuple):
    """A thread, or a stream of a GPU."""

    name: str
    device: str  # cpu | cuda
    events: list[Event]

    def within(self, begun_ns: float, ended_ns: float) -> Line:
        return self._replace(events=[one for one in self.events if begun_ns <= one.start_ns <= ended_ns])


class Recording:
    """Filled when it is over."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.begun_ns = 0  # since the epoch


@contextmanager
def recorded() -> Iterator[Recording]:
    """What runs within; whatever is issued there has to be waited for there."""
    recording, options = Recording(), jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # of every call of a function, which slows updates down
    with tempfile.TemporaryDirectory(prefix="scalebench-profile-") as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            yield recording
        finally:
            jax.profiler.stop_trace()
        for path in Path(folder).rglob("*.xplane.pb"):
            read(recording, jax.profiler.ProfileData.from_file(str(path)))


def read(recording: Recording, data: Any) -> None:
    for plane in data.planes:
        recording.begun_ns = recording.begun_ns or int(dict(plane.stats).get("profile_start_time", 0))
        on_gpu = plane.name.startswith(GPU_PLANE)
        for line in plane.lines:
            if not on_gpu or line.name.startswith(STREAM):
                events = [_event(event) for event in line.events]
                name = f"GPU {plane.name.removeprefix(GPU_PLANE)} {line.name}" if on_gpu else line.name
                recording.lines.append(Line(name, "cuda" if on_gpu else "cpu", events))


def _event(event: Any) -> Event:
    operation = next((str(value) for name, value in event.stats if name == OF_XLA), "")
    return Event(event.name, event.start_ns, event.duration_ns, operation)
