"""Programs that are under way: how many, on which device for how long, and updates that are there to be looked at."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import jax

from scalebench.plugin_api import LossPart


class Backlog:
    """Keeps programs that are issued from being too far ahead of those that are done.

    XLA lets 32 of them wait for a device of the CPU. Who issues one more is held up in one of the threads that are to
    run the others, and with a thread for each device that can be the one that an all-reduce is waiting for: for ever.
    """

    def __init__(self, most: int = 8) -> None:
        self._most, self._issued = most, deque[jax.Array]()

    def add(self, result: jax.Array) -> None:
        """Something that a program gives, and that no other one takes away."""
        self._issued.append(result)
        if len(self._issued) > self._most:
            self._issued.popleft().block_until_ready()


class Watched:
    """A Loop that hands out one batch for so many updates, after one that sets up what has to be."""

    def __init__(self, batch: Any, updates: int, synchronize: Callable[[], None]) -> None:
        self._batch, self._left, self._updates = batch, updates + 1, updates
        self._synchronize = synchronize
        self.begun_ns = self.ended_ns = 0  # since the epoch

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self._left -= 1
        if self._left in (0, self._updates):
            self._synchronize()
            self.begun_ns, self.ended_ns = self.begun_ns or time.time_ns(), time.time_ns()
        return self._left == 0


def seconds_of_devices(issue: Callable[[], jax.Array], waiters: Executor) -> list[float]:
    """Seconds until each device has its part of the array that `issue` begins to compute, in the order of its parts.

    One thread waits for each device: one for all would see a quick one only when it is through with a slow one.
    """
    start_s = time.perf_counter()
    shards = issue().addressable_shards

    def seconds(shard: Any) -> float:
        shard.data.block_until_ready()
        return time.perf_counter() - start_s

    return list(waiters.map(seconds, sorted(shards, key=lambda shard: shard.index[0].start or 0)))
