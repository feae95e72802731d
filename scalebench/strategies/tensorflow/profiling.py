"""Where the time of an update goes, by TensorFlow's own profiler."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scalebench.core.result import Operation, Profile
from scalebench.strategies.base import Loop, LossPart
from scalebench.strategies.tensorflow import devices, observed, xplane
from scalebench.strategies.tensorflow.xplane import Event, Line

LARGEST = 20
ONEDNN = re.compile(r"^_(MklNative|Mkl)")  # its operations are otherwise named as those that they stand for
OURS = "SyncDevice"
NCCL_KERNEL = re.compile(r"nccl", re.IGNORECASE)
PEER_COPY = "MemcpyP2P"
HANDED_OVER = "HorovodAllreduce"  # its event only hands a gradient to Horovod's thread, which is in no profile


class Watched(observed.Replay):
    """One update, at which the ranks meet and loops that have to be set up are, and then those that count."""

    def __init__(self, batch: Any, updates: int) -> None:
        super().__init__(batch, updates + 1)
        self._updates = updates
        self.begun_s = self.ended_s = 0.0  # since the epoch

    def done(self, part: LossPart | None) -> bool:
        over = super().done(part)
        if over or self._left == self._updates:
            devices.synchronize()
            self.begun_s, self.ended_s = self.begun_s or time.time(), time.time()
        return over


def watched(train: Callable[[Loop], None], batch: Any, updates: int) -> tuple[list[Line], float]:
    """(what ran in so many updates on `batch`, wall seconds of one). Spoils the weights."""
    if batch is None:
        raise RuntimeError("profile replays the last batch of the training, and there was no training")
    loop = Watched(batch, updates)
    with xplane.recorded() as lines:
        train(loop)
    within = [
        line._replace(events=[event for event in line.events if loop.begun_s <= event.start_s <= loop.ended_s])
        for line in lines
    ]
    return within, (loop.ended_s - loop.begun_s) / updates


def profile(lines: list[Line], updates: int, step_s: float, carriers: Collection[str]) -> Profile:
    """The kernels of all GPUs, or where there are none the operations of all threads.

    `carriers`: names of operations that add gradients up over the devices of the process. A collective on the CPU runs
    in a thread in which it also waits for the other devices, as NCCL's kernels do on GPUs. `collective_s` is None
    where no such time can be seen: nothing is exchanged, or another library does it in threads of its own (Horovod).
    """
    device = "cuda" if any(line.events for line in lines if line.device == "cuda") else "cpu"
    sums: dict[Kind, Sum] = defaultdict(Sum)
    for line in lines:
        if line.device == device:
            for kind, own_s in own_times(line, carriers):
                sums[kind].add(own_s)
    largest = sorted(sums.items(), key=lambda item: -item[1].self_s)[:LARGEST]
    carried = [one.self_s for kind, one in sums.items() if kind.collective and kind.name != HANDED_OVER]
    return Profile(
        steps=updates,
        step_s=step_s,
        kernel_s=sum(one.self_s for one in sums.values()) / updates if sums else None,
        collective_s=sum(carried) / updates if carried else None,
        operations=[
            Operation(kind.name, one.calls / updates, one.self_s / updates, kind.collective, device)
            for kind, one in largest
        ],
    )


class Kind(NamedTuple):
    """Type of operation, or name of a kernel; sums over devices are told from the others of their type."""

    name: str
    collective: bool


@dataclass
class Sum:
    """Of the calls of one kind."""

    calls: int = field(default=0)
    self_s: float = field(default=0.0)

    def add(self, own_s: float) -> None:
        self.calls += 1
        self.self_s += own_s


def own_times(line: Line, carriers: Collection[str]) -> Iterator[tuple[Kind, float]]:
    """Kind and own seconds of each operation of a line: without those of the operations within it."""
    of_line = _kernels(line, carriers) if line.device == "cuda" else _operations(line, carriers)
    open_: list[tuple[Kind, int, list[int]]] = []  # each within the one before: kind, end, picoseconds left
    for kind, event in sorted(of_line, key=lambda pair: (pair[1].start_ps, -pair[1].duration_ps)):
        while open_ and open_[-1][1] <= event.start_ps:
            done = open_.pop()
            yield done[0], done[2][0] / 1e12
        if open_:
            open_[-1][2][0] -= event.duration_ps
        open_.append((kind, event.start_ps + event.duration_ps, [event.duration_ps]))
    for kind, _, left in reversed(open_):
        yield kind, left[0] / 1e12


def _operations(line: Line, carriers: Collection[str]) -> Iterable[tuple[Kind, Event]]:
    for event in line.events:
        type_ = ONEDNN.sub("", event.operation.rpartition(":")[2])
        if type_ and type_ != OURS:
            collective = type_ in (*observed.COLLECTIVES, HANDED_OVER) or _carries(event.operation, carriers)
            yield Kind(type_, collective), event


def _kernels(line: Line, carriers: Collection[str]) -> Iterable[tuple[Kind, Event]]:
    for event in line.events:
        name = event.name.removeprefix("void ").partition("<")[0].partition("(")[0]  # without its template's arguments
        collective = bool(NCCL_KERNEL.search(name)) or name == PEER_COPY or _carries(event.operation, carriers)
        yield Kind(name, collective), event


def _carries(event: str, carriers: Collection[str]) -> bool:
    return any(observed.is_of(event, name) for name in carriers)
