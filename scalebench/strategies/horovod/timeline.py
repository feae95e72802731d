"""Horovod's timeline: the backend and the messages of gradient synchronization, and the seconds of its phases.

The timeline is a list of Chrome trace events by rank 0's background thread: each tensor is a "process" (`pid`), whose
phases begin and end (`ph` B and E), nested in each other; `ts` is in microseconds. Source: horovod/common/timeline.cc
and common.h of Horovod 0.28.1.
"""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json
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
class ObservedSync:
    """Gradient synchronization of several equal steps, as rank 0 sees it."""

    backend: str | None  # that sent the gradients; None: nothing was sent
    message_bytes: list[int]  # of each message of the last step, in the order of sending
    phases_s: dict[str, float]  # of a step: the time in which at least one tensor was in the phase


def read_timeline(events: Iterable[dict[str, Any]], steps: int) -> ObservedSync:
    """Read the events of so many steps.

    Messages are those of the last step: by then Horovod has cached the tensors, and fuses those that are ready at the
    same time. Phases leave the first step out: ranks start it at different times, and negotiate the tensors for the
    first time. Negotiation lasts from the first rank's announcement of a tensor until all ranks have it, so that it
    includes waiting for a slower rank. Phases overlap: their sum means nothing.
    """
    running: dict[int, list[tuple[str, int, float, bool]]] = defaultdict(list)  # the phases of each tensor, nested
    negotiations: Counter[int] = Counter()  # of each tensor, one in a step
    sent_steps: dict[int, int] = {}  # by tensor, the last step in which it was sent
    fused_steps: dict[int, int] = {}  # by tensor, the last step in which it was copied into a buffer with others
    messages: list[tuple[int, list[int]]] = []  # the step and the tensors of each
    tensor_bytes: dict[int, int] = {}
    backends, spans = set(), []
    is_sending = False  # fused tensors that begin now belong to the last message
    for event in events:
        tensor, kind = event.get("pid", 0), event["ph"]
        if kind == "B":
            phase = event["name"]
            negotiations[tensor] += phase.startswith("NEGOTIATE_")
            step = negotiations[tensor] - 1
            if phase == FUSION:
                fused_steps[tensor] = step
            is_message = phase in CARRIER_BACKENDS and sent_steps.get(tensor) != step
            if is_message:
                sent_steps[tensor] = step
                backends.add(CARRIER_BACKENDS[phase])
                # All tensors of a message begin before the first one ends. With NCCL a thread per message writes its
                # events, so that the next message may begin before the last one ends; one that is not fused goes alone.
                is_fused = fused_steps.get(tensor) == step
                if not (is_sending and is_fused):
                    messages.append((step, []))
                messages[-1][1].append(tensor)
                is_sending = is_fused
            running[tensor].append((phase, step, event["ts"] * MICROSECOND_S, is_message))
        elif kind == "E" and running[tensor]:
            phase, step, begin_s, is_message = running[tensor].pop()
            is_sending = is_sending and not is_message
            if step > 0:
                spans.append((tensor, phase, (begin_s, event["ts"] * MICROSECOND_S)))
            if "shape" in (described := event.get("args", {})):  # "dtype": "float32", "shape": "[16, 3, 7]"
                bits = ITEM_BITS.search(described["dtype"])  # none in `bool`
                items = math.prod(map(int, re.findall(r"\d+", described["shape"])))
                tensor_bytes[tensor] = items * (int(bits[0]) // 8 if bits else 1)
    last_step = max((step for step, _ in messages), default=0)
    phases_s = {}
    for name, pattern in PHASES.items():
        in_phase = [span for tensor, phase, span in spans if tensor in sent_steps and pattern.match(phase)]
        phases_s[name] = union_length(in_phase) / (steps - 1)
    return ObservedSync(
        backend="+".join(sorted(backends)) or None,
        message_bytes=[sum(tensor_bytes[tensor] for tensor in sent) for step, sent in messages if step == last_step],
        phases_s=phases_s,
    )


def union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the time that at least one of these (begin, end) covers."""
    total, covered = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def observe_sync(
    group: HorovodGroup, rank: int, train: Callable[[int], None], steps: int, copy_to: Path | None
) -> ObservedSync:
    """Train that many steps on every rank under the timeline, and return on all ranks what rank 0 sees in it, which
    also copies it to `copy_to`. Spoils the weights. Raises NotMeasured where Horovod cannot be restarted."""
    observed = None
    with group.record_timeline(lambda: train(steps)) as path:
        if rank == 0:
            observed = read_timeline(read_json(path), steps)
            if copy_to is not None:
                shutil.copyfile(path, copy_to)
    shared: ObservedSync = group.broadcast_object(observed)
    return shared
