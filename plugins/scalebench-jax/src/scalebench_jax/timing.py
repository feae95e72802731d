"""The number of programs in flight, measured steps, and the time of each device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import jax

from scalebench.plugin_api import LossPart


class ProgramBacklog:
    """Limits how many programs are issued ahead of the finished ones.

    XLA queues up to 32 programs for a CPU device. Issuing one more blocks one of the threads that run programs, and
    with one thread per device that may be a thread that an all-reduce waits for: a deadlock.
    """

    def __init__(self, max_issued: int = 8) -> None:
        self._max_issued, self._issued = max_issued, deque[jax.Array]()

    def add(self, result: jax.Array) -> None:
        """Add a result of a program that no other program consumes."""
        self._issued.append(result)
        if len(self._issued) > self._max_issued:
            self._issued.popleft().block_until_ready()


class MeasuredReplay:
    """A Loop that repeats one batch: a warm-up step, then the measured steps."""

    def __init__(self, batch: Any, steps: int, synchronize: Callable[[], None]) -> None:
        self._batch, self._left, self._steps = batch, steps + 1, steps
        self._synchronize = synchronize
        self.start_ns = self.end_ns = 0  # since the epoch

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self._left -= 1
        if self._left in (0, self._steps):
            self._synchronize()
            self.start_ns, self.end_ns = self.start_ns or time.time_ns(), time.time_ns()
        return self._left == 0


def device_seconds(issue: Callable[[], jax.Array], waiters: Executor) -> list[float]:
    """Return the seconds until each device has its part of the array that `issue` starts to compute.

    One thread waits for each device: a single thread would see a fast device only after a slow one that it waits for.
    """
    start_s = time.perf_counter()
    shards = issue().addressable_shards

    def seconds(shard: Any) -> float:
        shard.data.block_until_ready()
        return time.perf_counter() - start_s

    return list(waiters.map(seconds, sorted(shards, key=lambda shard: shard.index[0].start or 0)))
