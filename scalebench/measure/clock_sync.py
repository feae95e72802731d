"""The offset of the clock of a rank's host from that of rank 0's, without which their times do not compare. Layer 2.

Cristian 1989, "Probabilistic clock synchronization", with collectives for messages: the round that took least time says
most. Monotonic clocks need none of it: what is measured is measured on one host.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec

ROUNDS = 12  # the first ones of a group are slow
STEP_S = 256.0  # a float32 holds the time of day in such steps, and what is left of it to 15 microseconds
MAX_OFFSET_S = 0.1  # between hosts of one run: NTP keeps clocks together to milliseconds


class ClockSample(NamedTuple):
    """One broadcast of rank 0's time of day. The first two are by this host's clock, the last by that of rank 0's."""

    called_s: float
    returned_s: float
    sent_s: float


def measure(spec: RunSpec, rank: int, broadcast: Callable[[float], float]) -> float | None:
    """Return this host's clock minus that of rank 0's, in seconds; every rank of a group has to call this.

    None on rank 0's host, in a run on one node, and where `broadcast` brings nothing (Strategy.broadcast of a strategy
    whose processes do not act together).
    """
    if spec.nodes == 1:
        return None
    base_s = broadcast(time.time() // STEP_S if rank == 0 else math.nan) * STEP_S
    samples = []
    for _ in range(ROUNDS):
        called_s = time.time()
        sent_s = base_s + broadcast(called_s - base_s if rank == 0 else math.nan)
        samples.append(ClockSample(called_s, time.time(), sent_s))
    return None if spec.places[rank].node == spec.places[0].node else offset_s(samples)


def offset_s(samples: Sequence[ClockSample]) -> float | None:
    """Return the offset by broadcasts one right after the other.

    Rank 0 starts one only when the one before is over, which this rank had joined by then: it sent the time after this
    rank had called the one before, and before this one returned here. The closer these two moments are, the better is
    the middle between them. Needs a broadcast that returns when every rank has called it.
    """
    rounds = [(now.returned_s - before.called_s, (now.returned_s + before.called_s) / 2 - now.sent_s)
              for before, now in pairwise(samples) if math.isfinite(now.sent_s)]  # fmt: skip
    return min(rounds)[1] if rounds else None


def on_rank_0_s(at_s: float, rank: RankRecord) -> float:
    """Convert a time of day that this rank recorded to the clock of rank 0's host."""
    return at_s - (rank.clock_offset_s or 0.0)


def comparable(ranks: Sequence[RankRecord]) -> bool:
    """Return whether times of day of these ranks compare, by on_rank_0_s: all ranks measure together, so that at most
    one host has no offset then, that of rank 0."""
    return len({rank.hostname for rank in ranks if rank.clock_offset_s is None}) <= 1


def on_this_host_s(at_s: float, rank: RankRecord, ranks: Iterable[RankRecord]) -> float:
    """Convert a time of day that `rank` recorded to the clock of this host, if one of `ranks` ran here."""
    local = socket.gethostname()
    if rank.hostname == local:
        return at_s
    offset_s = next((other.clock_offset_s or 0.0 for other in ranks if other.hostname == local), 0.0)
    return on_rank_0_s(at_s, rank) + offset_s


def differ(ranks: Sequence[RankRecord]) -> bool:
    """Return whether two hosts of the run have clocks that differ by more than MAX_OFFSET_S."""
    offsets_s = [rank.clock_offset_s or 0.0 for rank in ranks]
    return bool(offsets_s) and max(offsets_s) - min(offsets_s) > MAX_OFFSET_S
