"""How far the clock of a rank's host is from that of rank 0's: times of day of two hosts compare by it alone. Layer 2.

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

from scalebench.results import RankRecord
from scalebench.spec import RunSpec

ROUNDS = 12  # the first ones of a group are slow
STEP_S = 256.0  # a float32 holds the time of day in such steps, and what is left of it to 15 microseconds
APART_S = 0.1  # between hosts of one run: whoever keeps clocks with NTP has them together to milliseconds


class Heard(NamedTuple):
    """One broadcast of rank 0's time of day. The first two are by this host's clock, the last by that of rank 0's."""

    asked_s: float
    came_s: float
    sent_s: float


def measure(spec: RunSpec, rank: int, broadcast: Callable[[float], float]) -> float | None:
    """This host's clock minus that of rank 0's, in seconds; every rank of a group has to call this.

    None on rank 0's host, in a run on one node, and where `broadcast` brings nothing (Strategy.broadcast of a strategy
    whose processes do not act together).
    """
    if spec.nodes == 1:
        return None
    base_s = broadcast(time.time() // STEP_S if rank == 0 else math.nan) * STEP_S
    heard = []
    for _ in range(ROUNDS):
        asked_s = time.time()
        sent_s = base_s + broadcast(asked_s - base_s if rank == 0 else math.nan)
        heard.append(Heard(asked_s, time.time(), sent_s))
    return None if spec.places[rank].node == spec.places[0].node else offset_s(heard)


def offset_s(heard: Sequence[Heard]) -> float | None:
    """From broadcasts one right after the other.

    Rank 0 asks for one only when the one before is over, to which this rank had come by then: it sent the time
    after this rank had asked for the one before, and before this one came here. The closer these two moments are, the
    better is the middle between them. Needs a broadcast that comes back when every rank has called it.
    """
    rounds = [(now.came_s - before.asked_s, (now.came_s + before.asked_s) / 2 - now.sent_s)
              for before, now in pairwise(heard) if math.isfinite(now.sent_s)]  # fmt: skip
    return min(rounds)[1] if rounds else None


def on_rank_0_s(at_s: float, rank: RankRecord) -> float:
    """A time of day that this rank noted, by the clock of rank 0's host."""
    return at_s - (rank.clock_offset_s or 0.0)


def comparable(ranks: Sequence[RankRecord]) -> bool:
    """Whether times of day of these ranks compare, by on_rank_0_s: all ranks measure together, so that one host at the
    most has no offset then, which is that of rank 0."""
    return len({rank.hostname for rank in ranks if rank.clock_offset_s is None}) <= 1


def here_s(at_s: float, rank: RankRecord, ranks: Iterable[RankRecord]) -> float:
    """A time of day that `rank` noted, by the clock of this host as far as that is known: where one of `ranks` ran."""
    here = socket.gethostname()
    if rank.hostname == here:
        return at_s
    offset_s = next((other.clock_offset_s or 0.0 for other in ranks if other.hostname == here), 0.0)
    return on_rank_0_s(at_s, rank) + offset_s


def apart(ranks: Sequence[RankRecord]) -> bool:
    """Whether two hosts of the run have clocks that differ by more than APART_S."""
    offsets_s = [rank.clock_offset_s or 0.0 for rank in ranks]
    return bool(offsets_s) and max(offsets_s) - min(offsets_s) > APART_S
