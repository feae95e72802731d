"""Horovod's timeline: what carried which message, and how long the phases of an exchange took.

A list of Chrome trace events as rank 0's background thread writes them: each tensor is a "process" (`pid`), whose
phases begin and end (`ph` B and E) one within the other; `ts` is in microseconds. Source: horovod/common/timeline.cc
and common.h of Horovod 0.28.1.

What the exchange of some more updates looked like, by Horovod's timeline of them.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.horovod.group import HorovodOptions, Membership, forgets_fusion

# What the operation that carries a message is called -> backend. Adasum goes its own way over the same transport.
CARRIERS = {
    "NCCL_ALLREDUCE": "nccl",
    "NCCL_REDUCESCATTER": "nccl",
    "GLOO_ALLREDUCE": "gloo",
    "MPI_ALLREDUCE": "mpi",
    "MPI_ADASUM_ALLREDUCE": "mpi",
    "CCL_ALLREDUCE": "ccl",
}
PHASES = {
    "negotiate_s": re.compile("NEGOTIATE_ALLREDUCE|NEGOTIATE_ADASUM"),
    "queue_s": re.compile("QUEUE|WAIT_FOR_DATA|WAIT_FOR_OTHER_TENSOR_DATA"),
    "memcpy_s": re.compile("MEMCPY_"),
    "allreduce_s": re.compile("|".join(CARRIERS)),
}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
MICRO = 1e-6


@dataclass
class Activity:
    """One phase of one tensor."""

    tensor: str
    name: str
    update: int  # counted from 0
    begin_s: float
    end_s: float = math.nan


@dataclass
class Timeline:
    """Of several equal updates."""

    activities: list[Activity] = field(default_factory=list)
    messages: list[list[Activity]] = field(default_factory=list)  # what is carried together, in the order of sending
    tensor_bytes: dict[str, int] = field(default_factory=dict)

    def backend(self) -> str | None:
        """What carried the gradients; None: nothing was carried."""
        found = {CARRIERS[one.name] for one in self.activities if one.name in CARRIERS}
        return "+".join(sorted(found)) or None

    def message_bytes(self) -> list[int]:
        """Bytes of each message of the last update.

        By then Horovod knows the tensors, and fuses those that are ready at the same time.
        """
        last = max((message[0].update for message in self.messages), default=0)
        chosen = [message for message in self.messages if message[0].update == last]
        return [sum(self.tensor_bytes[one.tensor] for one in message) for message in chosen]

    def phases_s(self, updates: int) -> dict[str, float]:
        """Seconds of an update during which at least one tensor was in the phase, as rank 0 saw it.

        Negotiation lasts from the first rank's announcement of a tensor until all ranks have it, so that waiting for
        a slower rank is in it. Phases overlap: their sum is no time of anything. The first of the `updates`, in which
        ranks start at different times and introduce the tensors to each other, is left out.
        """
        steady = [one for one in self.activities if one.update > 0]
        found = {}
        for name, pattern in PHASES.items():
            spans = [(one.begin_s, one.end_s) for one in steady if pattern.match(one.name)]
            found[name] = union_length(spans) / (updates - 1)
        return found


def read(path: Path) -> Timeline:
    """The timeline in a file that Horovod has closed. ValueError where it is none, OSError where there is no file."""
    events = read_json(path)
    if not isinstance(events, list):
        raise ValueError(f"{path} is no timeline: a list of events is wanted")
    return parse(events)


def parse(events: Iterable[dict[str, Any]]) -> Timeline:
    """The activities of a timeline's events, and which tensors travelled together."""
    found, names = Timeline(), {}
    begun: dict[int, list[Activity]] = {}  # and not ended, by pid
    negotiations: Counter[int] = Counter()  # one of each tensor in an update
    sending = False  # whether the last message is still taking tensors
    for event in events:
        pid, kind = event.get("pid", 0), event["ph"]
        if kind == "M" and event["name"] == "process_name":
            names[pid], begun[pid] = event["args"].get("name", ""), []
        elif kind == "B":
            negotiations[pid] += event["name"].startswith("NEGOTIATE_")
            one = Activity(names[pid], event["name"], negotiations[pid] - 1, event["ts"] * MICRO)
            if _carries(one, begun[pid]):  # tensors of one message all begin before one of them ends
                found.messages += [] if sending else [[]]
                found.messages[-1].append(one)
                sending = True
            begun[pid].append(one)
        elif kind == "E" and begun[pid]:
            one = begun[pid].pop()
            one.end_s = event["ts"] * MICRO
            found.activities.append(one)
            sending = sending and not _carries(one, begun[pid])
            if "shape" in event.get("args", {}):
                found.tensor_bytes[one.tensor] = _bytes(event["args"])
    return found


def _carries(one: Activity, around: list[Activity]) -> bool:
    """Whether the tensor travels in it; Adasum's operation holds a plain one, which is no message more."""
    return one.name in CARRIERS and not any(outer.name in CARRIERS for outer in around)


def _bytes(args: dict[str, str]) -> int:
    """Of a tensor described as `"dtype": "float32", "shape": "[16, 3, 7]"`."""
    return math.prod(map(int, re.findall(r"\d+", args["shape"]))) * ITEM_BYTES[args["dtype"]]


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the time that at least one of these (begin, end) covers."""
    total, covered = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


UPDATES = 3  # the first introduces the tensors to each other, the last tells what is fused
BACKENDS = sorted({*CARRIERS.values()})


@dataclass
class Exchange:
    """Known on all ranks."""

    backend: str | None
    message_bytes: list[int]
    phases_s: dict[str, float]  # of one update


class Observer:
    """Has the group train on under the timeline, and tells all ranks what rank 0 saw."""

    def __init__(
        self, membership: Membership, rank: int, share: Callable[[float], float], options: HorovodOptions
    ) -> None:
        """`share` broadcasts rank 0's number."""
        self._membership, self._rank, self._share, self._options = membership, rank, share, options
        self._path = Path(tempfile.gettempdir(), f"scalebench-timeline-{uuid.uuid4().hex}", "timeline.json")
        self._seen: Exchange | None = None

    def seen(self, train: Callable[[int], None]) -> Exchange:
        """A few updates, watched once."""
        if self._seen is None:
            self._seen = self._watch(train, UPDATES, None)
            if forgets_fusion(self._options):
                self._seen.message_bytes = []  # those of another threshold
        return self._seen

    def keep(self, train: Callable[[int], None], updates: int, path: Path) -> dict[str, float]:
        """Seconds of each phase of an update; rank 0 keeps Horovod's file at `path`. NotMeasured where it would show
        another exchange than the one measured, or none."""
        if forgets_fusion(self._options):
            raise NotMeasured(
                "Horovod 0.28.1 forgets its fusion threshold when a timeline starts with cycle_time_ms set"
            )
        seen = self._watch(train, updates, path)
        if seen.backend is None:
            raise NotMeasured("nothing was exchanged, so that there is no timeline of it")
        return seen.phases_s

    def _watch(self, train: Callable[[int], None], updates: int, keep: Path | None) -> Exchange:
        """`train` does so many updates on every rank. Spoils the weights."""
        self._path.parent.mkdir()
        try:
            with self._membership.recorded(self._path, self._share):
                train(updates)
            mine = Exchange(None, [], dict.fromkeys(PHASES, 0.0))
            if self._rank == 0:
                seen = read(self._path)
                mine = Exchange(seen.backend(), seen.message_bytes(), seen.phases_s(updates))
                if keep is not None:
                    shutil.copyfile(self._path, keep)
            return self._shared(mine)
        finally:
            shutil.rmtree(self._path.parent)

    def _shared(self, mine: Exchange) -> Exchange:
        backends = (mine.backend or "").split("+")
        found = [name for name in BACKENDS if self._share(float(name in backends))]
        sizes = mine.message_bytes
        count = int(self._share(float(len(sizes))))
        told = [int(self._share(float(sizes[i]) if i < len(sizes) else 0.0)) for i in range(count)]
        phases = {name: self._share(mine.phases_s[name]) for name in PHASES}
        return Exchange("+".join(found) or None, told, phases)
