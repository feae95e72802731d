"""Training under conditions that take turns, block by block: what differs between them is what they differ in. Layer 2.

Blocks that follow each other share whatever else the machine does, so that their difference is surer than that of two
measurements one after the other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalebench.measure.alone import Clock
from scalebench.strategy import LossPart, Strategy, probes_of


@dataclass(frozen=True)
class Condition:
    """How the updates of a block are made."""

    name: str
    exchange: bool = True
    fresh: bool = True  # each batch from the feed; else one batch over and over


class SwitchedLoop:
    """A Loop of `rounds` times one block of each condition, every second round in reverse against slow drifts.

    The first update of a block is not timed: it may still carry what the block before left, and what a switch costs.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterator[Any],
        conditions: Sequence[Condition],
        steps: int,
        rounds: int,
        clock: Clock = time.perf_counter,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """`steps` are timed in each block; `report` is called between blocks."""
        self._strategy, self._batches, self._steps = strategy, batches, steps
        self._clock, self._report = clock, report
        self._switches = any(not condition.exchange for condition in conditions)
        turns = [conditions, conditions[::-1]]
        self._plan = [condition for number in range(rounds) for condition in turns[number % 2]]
        self.seconds: dict[str, list[float]] = {condition.name: [] for condition in conditions}
        self.held: Any = None  # the batch drawn last
        self._done, self._start_s = 0, 0.0

    def __iter__(self) -> Iterator[Any]:
        self._begin(0)
        for drawn in itertools.count():  # counted by itself: trainers may draw ahead of their updates
            block = drawn // (self._steps + 1)
            if self.held is None or (block < len(self._plan) and self._plan[block].fresh):
                self.held = next(self._batches)
            yield self.held
            if self._over:
                return

    def done(self, part: LossPart | None) -> bool:
        """One update was issued. True when the loop is over."""
        block, within = divmod(self._done, self._steps + 1)
        self._done += 1
        if within == 0:
            self._strategy.synchronize()
            self._start_s = self._clock()
        elif within == self._steps:
            self._strategy.synchronize()
            self.seconds[self._plan[block].name].append(self._clock() - self._start_s)
            if not self._over:
                self._begin(block + 1)
        return self._over

    @property
    def _over(self) -> bool:
        return self._done >= len(self._plan) * (self._steps + 1)

    def _begin(self, block: int) -> None:
        self._report()
        if self._switches:  # a strategy may have no switch
            probes_of(self._strategy).set_gradient_sync(self._plan[block].exchange)
        self._strategy.broadcast(0.0)  # nobody goes on before all have come
