"""Horovod's timeline: the backend and the messages of gradient synchronization, and the seconds of its phases.

The timeline is a list of Chrome trace events by rank 0's background thread: each tensor is a "process" (`pid`), whose
phases begin and end (`ph` B and E), nested in each other; `ts` is in microseconds. Source: horovod/common/timeline.cc
and common.h of Horovod 0.28.1.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.horovod.group import HorovodGroup

# Name of the operation that sends a message -> backend. Adasum has its own operation over the same transport. A
# hierarchical all-reduce sends by several in turn, within nodes by NCCL and between them by MPI: the first one counts.
CARRIER_BACKENDS = {
    "NCCL_ALLREDUCE": "nccl",
    "NCCL_REDUCESCATTER": "nccl",
    "NCCL_REDUCE": "nccl",
    "GLOO_ALLREDUCE": "gloo",
    "MPI_ALLREDUCE": "mpi",
    "MPI_ADASUM_ALLREDUCE": "mpi",
    "CCL_ALLREDUCE": "ccl",
}
FUSION = "MEMCPY_IN_FUSION_BUFFER"  # a phase of messages of more than one tensor
OBSERVED_STEPS = 5  # ranks negotiate the tensors for the first time in the first one; the last one shows what is fused
PHASES = {
    "negotiate_s": re.compile("NEGOTIATE_ALLREDUCE|NEGOTIATE_ADASUM"),
    "queue_s": re.compile("QUEUE|WAIT_FOR_DATA|WAIT_FOR_OTHER_TENSOR_DATA"),
    "memcpy_s": re.compile("MEMCPY_"),
    "allreduce_s": re.compile("|".join([*CARRIER_BACKENDS, "NCCL_ALLGATHER", "NCCL_BCAST"])),
}
ITEM_BITS = re.compile(r"\d+$")  # of Horovod's names of types: float16, int64, uint8
MICROSECOND_S = 1e-6


@dataclass
class Activity:
    """One phase of one tensor."""

    tensor: str
    name: str
    step: int  # counted from 0
    begin_s: float
    end_s: float = math.nan
    is_message: bool = False  # the first operation that sends this tensor in this step


@dataclass
class HorovodTimeline:
    """The timeline of several equal steps."""

    activities: list[Activity] = field(default_factory=list)
    messages: list[list[Activity]] = field(default_factory=list)  # the tensors of each, in the order of sending
    tensor_bytes: dict[str, int] = field(default_factory=dict)

    def backend(self) -> str | None:
        """Return the backend that sent the gradients; None: nothing was sent."""
        names = {activity.name for activity in self.activities if activity.is_message}
        return "+".join(sorted({CARRIER_BACKENDS[name] for name in names})) or None

    def message_bytes(self) -> list[int]:
        """Return the bytes of each message of the last step.

        By then Horovod has cached the tensors, and fuses those that are ready at the same time.
        """
        last_step = max((message[0].step for message in self.messages), default=0)
        messages = [message for message in self.messages if message[0].step == last_step]
        return [sum(self.tensor_bytes[activity.tensor] for activity in message) for message in messages]

    def phases_s(self, steps: int) -> dict[str, float]:
        """Return for each phase the seconds of a step during which at least one tensor was in it, on rank 0.

        Negotiation lasts from the first rank's announcement of a tensor until all ranks have it, so that it includes
        waiting for a slower rank. Phases overlap: their sum means nothing. The first of the `steps` is left out: ranks
        start it at different times, and negotiate the tensors for the first time.
        """
        sent = {activity.tensor for activity in self.activities if activity.is_message}
        steady = [activity for activity in self.activities if activity.step > 0 and activity.tensor in sent]
        seconds = {}
        for name, pattern in PHASES.items():
            spans = [(activity.begin_s, activity.end_s) for activity in steady if pattern.match(activity.name)]
            seconds[name] = union_length(spans) / (steps - 1)
        return seconds


def read_timeline(path: Path) -> HorovodTimeline:
    """Read a timeline that Horovod has closed. ValueError if the file holds none, OSError if there is no file."""
    events = read_json(path)
    if not isinstance(events, list):
        raise ValueError(f"{path} is no timeline: a list of events is wanted")
    return parse_timeline(events)


def parse_timeline(events: Iterable[dict[str, Any]]) -> HorovodTimeline:
    """Collect the activities of a timeline's events, and the tensors that were sent in one message."""
    timeline, names = HorovodTimeline(), {}
    running: dict[int, list[Activity]] = {}  # by pid, nested
    negotiations: Counter[int] = Counter()  # one for each tensor in a step
    sent_steps: dict[int, int] = {}  # by pid, the last step in which it was sent
    fused_steps: dict[int, int] = {}  # by pid, the last step in which it was copied into a buffer with others
    is_sending = False  # fused tensors that begin now belong to the last message
    for event in events:
        pid, kind = event.get("pid", 0), event["ph"]
        if kind == "M" and event["name"] == "process_name":
            names[pid], running[pid] = event["args"].get("name", ""), []
        elif kind == "B":
            negotiations[pid] += event["name"].startswith("NEGOTIATE_")
            activity = Activity(names[pid], event["name"], negotiations[pid] - 1, event["ts"] * MICROSECOND_S)
            if activity.name == FUSION:
                fused_steps[pid] = activity.step
            if activity.name in CARRIER_BACKENDS and sent_steps.get(pid) != activity.step:
                sent_steps[pid], activity.is_message = activity.step, True
                # All tensors of a message begin before the first one ends. With NCCL a thread per message writes its
                # events, so that the next message may begin before the last one ends; one that is not fused goes alone.
                is_fused = fused_steps.get(pid) == activity.step
                timeline.messages += [] if is_sending and is_fused else [[]]
                timeline.messages[-1].append(activity)
                is_sending = is_fused
            running[pid].append(activity)
        elif kind == "E" and running[pid]:
            activity = running[pid].pop()
            activity.end_s = event["ts"] * MICROSECOND_S
            timeline.activities.append(activity)
            is_sending = is_sending and not activity.is_message
            if "shape" in event.get("args", {}):
                timeline.tensor_bytes[activity.tensor] = _parse_bytes(event["args"])
    return timeline


def _parse_bytes(args: dict[str, str]) -> int:
    """Compute the bytes of a tensor described as `"dtype": "float32", "shape": "[16, 3, 7]"`."""
    bits = ITEM_BITS.search(args["dtype"])  # none in `bool`
    return math.prod(map(int, re.findall(r"\d+", args["shape"]))) * (int(bits[0]) // 8 if bits else 1)


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the time that at least one of these (begin, end) covers."""
    total, covered = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


@dataclass
class ObservedSync:
    """Gradient synchronization as observed on rank 0, with the same values on all ranks."""

    backend: str | None
    message_bytes: list[int]
    phases_s: dict[str, float]  # of one step


def _check_sent(observed: ObservedSync) -> dict[str, float]:
    """Return the seconds of the phases."""
    if observed.backend is None:
        raise NotMeasured("nothing was synchronized, so that there is no timeline of it")
    return observed.phases_s


class SyncObserver:
    """Trains more steps under the timeline and shares rank 0's observations with all ranks."""

    def __init__(
        self,
        group: HorovodGroup,
        spec: RunSpec,
        rank: int,
        broadcast: Callable[[float], float],
        train: Callable[[int], None],
    ) -> None:
        """`broadcast` returns rank 0's number, `train` takes the number of steps."""
        self._group, self._spec, self._rank, self._broadcast, self._train = group, spec, rank, broadcast, train
        self._steps = OBSERVED_STEPS
        self._observed: ObservedSync | None = None
        if (before := spec.sync_observation) is not None:
            self._steps = before.steps
            self._observed = ObservedSync(before.backend, before.message_bytes, before.phases_s)

    def observe(self) -> ObservedSync:
        """Return what a few steps under the timeline show. They are trained at the first call only, and not at all
        where a launch before this one has observed them."""
        if self._observed is None:
            self._observed = self._train_with_timeline(self._steps, None)
        return self._observed

    def sync_phases(self) -> tuple[int, dict[str, float]]:
        """Return the observed steps, and the seconds of each phase of a step. Raises NotMeasured where nothing was
        sent."""
        return self._steps, _check_sent(self.observe())

    def record_timeline(self, steps: int, path: Path) -> dict[str, float]:
        """Return the seconds of each phase of a step. Rank 0 copies Horovod's file to `path`, unless a launch before
        this one has left it there. Raises NotMeasured where nothing was sent."""
        if self._spec.sync_observation is not None:
            return _check_sent(self.observe())
        observed = self._train_with_timeline(steps, path)
        if self._spec.observes_sync:  # there is one timeline
            self._observed = observed
        return _check_sent(observed)

    def _train_with_timeline(self, steps: int, copy_to: Path | None) -> ObservedSync:
        """Train that many steps on every rank under the timeline. Spoils the weights."""
        before, path = int(self._spec.observes_sync), self._group.timeline  # steps since the timeline began
        try:
            with self._group.record_timeline(self._broadcast):
                self._train(steps)
            observed = ObservedSync(None, [], dict.fromkeys(PHASES, 0.0))
            if self._rank == 0:
                timeline = read_timeline(path)
                phases_s = timeline.phases_s(before + steps)
                observed = ObservedSync(timeline.backend(), timeline.message_bytes(), phases_s)
                if copy_to is not None:
                    shutil.copyfile(path, copy_to)
            return self._group.broadcast_object(observed)
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)
