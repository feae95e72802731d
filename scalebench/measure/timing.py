"""Actions timed by themselves, in blocks that all ranks begin together. Layer 2."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalebench.strategies.base import Strategy

Clock = Callable[[], float]
WARM_CALLS = 2  # the first may compile, the second may still set something up


def timed_blocks(
    strategy: Strategy, action: Callable[[], None], repeats: int, blocks: int, clock: Clock = time.perf_counter
) -> list[float]:
    """Seconds of each block of so many calls, as this rank sees them; every rank calls this alike."""
    found = []
    for _ in range(blocks):
        strategy.broadcast(0.0)  # nobody goes on before all have come
        start_s = clock()
        for _ in range(repeats):
            action()
        strategy.synchronize()
        found.append(clock() - start_s)
    return found


def warm_up(strategy: Strategy, action: Callable[[], None], clock: Clock = time.perf_counter) -> float:
    """Seconds of one call after a few that do not count, as rank 0 sees them, on every rank."""
    timed_blocks(strategy, action, WARM_CALLS, 1, clock)
    return strategy.broadcast(timed_blocks(strategy, action, 1, 1, clock)[0])


def how_many(limit_s: float, each_s: float, least: int, most: int) -> int:
    """How many of `each_s` fill `limit_s`, within bounds."""
    return most if each_s <= 0 else max(least, round(min(most, limit_s / each_s)))
