"""The offset of a host's clock from that of rank 0's host, without which times of day of ranks do not compare.

Cristian 1989, "Probabilistic clock synchronization", with collectives for messages: the shortest round is the most
precise. Monotonic clocks need no offset: every duration is measured on one host.
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

CLOCK_ROUNDS = 12  # the first ones of a group are slow
BASE_STEP_S = 256.0  # a float32 holds the time of day in steps of this size, and the remainder to 15 microseconds
MAX_OFFSET_S = 0.1  # between hosts of one run: NTP keeps clocks together to milliseconds


class ClockSample(NamedTuple):
    """One broadcast of rank 0's time of day. The first two times are by this host's clock, the last by rank 0's."""

    called_s: float
    returned_s: float
    sent_s: float


def measure_clock_offset_s(spec: RunSpec, rank: int, broadcast: Callable[[float], float]) -> float | None:
    """Return this host's clock minus that of rank 0's host, in seconds; every rank of a group has to call this.

    None on rank 0's host, in a run on one node, and where `broadcast` passes no value on (Strategy.broadcast of a
    strategy whose processes do not act together).
    """
    if spec.nodes == 1:
        return None
    base_s = broadcast(time.time() // BASE_STEP_S if rank == 0 else math.nan) * BASE_STEP_S
    samples = []
    for _ in range(CLOCK_ROUNDS):
        called_s = time.time()
        sent_s = base_s + broadcast(called_s - base_s if rank == 0 else math.nan)
        samples.append(ClockSample(called_s, time.time(), sent_s))
    return None if spec.places[rank].node == spec.places[0].node else estimate_offset_s(samples)


def estimate_offset_s(samples: Sequence[ClockSample]) -> float | None:
    """Return the offset from broadcasts one right after the other; None where none of them passed a time on.

    Rank 0 starts one only when the one before is over, which this rank had joined by then: it sent the time after this
    rank had called the one before, and before this one returned here. The closer these two moments are, the better is
    the middle between them. Needs a broadcast that returns when every rank has called it.
    """
    rounds = [(now.returned_s - before.called_s, (now.returned_s + before.called_s) / 2 - now.sent_s)
              for before, now in pairwise(samples) if math.isfinite(now.sent_s)]  # fmt: skip
    return min(rounds)[1] if rounds else None


def to_rank_0_clock_s(at_s: float, rank: RankRecord) -> float:
    """Convert a time of day that this rank recorded to the clock of rank 0's host."""
    return at_s - (rank.clock_offset_s or 0.0)


def are_comparable(ranks: Sequence[RankRecord]) -> bool:
    """Return whether times of day of these ranks compare after to_rank_0_clock_s: all ranks measure their offsets
    together, so that at most one host has none, that of rank 0."""
    return len({rank.hostname for rank in ranks if rank.clock_offset_s is None}) <= 1


def to_this_host_clock_s(at_s: float, rank: RankRecord, ranks: Iterable[RankRecord]) -> float:
    """Convert a time of day that `rank` recorded to the clock of this host, if one of `ranks` ran here."""
    local = socket.gethostname()
    if rank.hostname == local:
        return at_s
    offset_s = next((other.clock_offset_s or 0.0 for other in ranks if other.hostname == local), 0.0)
    return to_rank_0_clock_s(at_s, rank) + offset_s


def clocks_differ(ranks: Sequence[RankRecord]) -> bool:
    """Return whether two hosts of the run have clocks that differ by more than MAX_OFFSET_S."""
    offsets_s = [rank.clock_offset_s or 0.0 for rank in ranks]
    return bool(offsets_s) and max(offsets_s) - min(offsets_s) > MAX_OFFSET_S
