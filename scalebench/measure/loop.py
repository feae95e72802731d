"""The measured loop: times blocks of updates, and asks between blocks whether to go on. Layer 2.

One device synchronisation ends each block and none happens inside; losses are fetched, progress is written
and ranks agree on the next step between blocks, outside the timed stretch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scalebench.strategy import LossPart, Strategy


@dataclass
class Series:
    """The blocks of one stretch of training, as this process saw them."""

    steps: int = 0  # updates in each block
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)  # mean per sample of each block
    step_losses: list[float | None] = field(default_factory=list)  # only kept when asked for


@dataclass
class Stage:
    """One stretch of training: how long its blocks are, and when it is over."""

    name: str
    start: Callable[[Series | None], int]  # the series of the stage before -> updates per block
    decide: Callable[[Series], bool]  # called after each block: True when the stage is over
    limit_s: float | None = None  # at the most, for the progress line
    series: Series = field(default_factory=Series)


class TimedLoop:
    """Iterates batches and times blocks of updates, stage after stage (warm-up, then measuring).

    `start` and `decide` of a stage run between blocks, on every rank alike; they are the only places where
    ranks talk, so all stop at the same step.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterable[Any],
        stages: list[Stage],
        on_stage: Callable[[Stage], None] = lambda stage: None,
        keep_step_losses: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._strategy = strategy
        self._batches = batches
        self._stages = iter(stages)
        self._on_stage = on_stage
        self._keep, self._clock = keep_step_losses, clock
        self._parts: list[LossPart | None] = []
        self._stage: Stage | None = None
        self._block_start_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        self._next_stage()
        self._start_block()
        for batch in self._batches:
            yield batch
            if self._stage is None:
                return

    def done(self, part: LossPart | None) -> bool:
        """One update was issued. True when the loop is over."""
        if self._stage is not None:
            self._parts.append(part)
            if len(self._parts) == self._stage.series.steps:
                self._end_block(self._stage)
        return self._stage is None

    def _start_block(self) -> None:
        self._strategy.synchronize()
        self._block_start_s = self._clock()

    def _end_block(self, stage: Stage) -> None:
        self._strategy.synchronize()
        stage.series.seconds.append(self._clock() - self._block_start_s)
        self._fetch_losses(stage.series)
        if stage.decide(stage.series):
            self._next_stage()
        if self._stage is not None:
            self._start_block()

    def _next_stage(self) -> None:
        before = self._stage.series if self._stage is not None else None
        self._stage = next(self._stages, None)
        if self._stage is not None:
            self._stage.series.steps = self._stage.start(before)
            self._on_stage(self._stage)

    def _fetch_losses(self, series: Series) -> None:
        parts = [part for part in self._parts if part is not None]
        sums = [float(part.loss_sum) for part in parts]
        samples = sum(part.samples for part in parts)
        series.samples.append(samples)
        series.losses.append(sum(sums) / samples if samples else None)
        if self._keep:
            series.step_losses += [
                s / part.samples if part.samples else None for s, part in zip(sums, parts, strict=True)
            ]
        self._parts = []


def one_iterator(batches: Iterable[Any]) -> Generator[Any, None, None]:
    """One iterator that outlives a loop, and whose closing ends the threads behind it."""
    yield from batches


def fixed(name: str, blocks: int, steps: int) -> Stage:
    """A stage of so many blocks of so many updates, without any talk between ranks."""
    return Stage(name, lambda before: steps, lambda series: len(series.seconds) >= blocks)
