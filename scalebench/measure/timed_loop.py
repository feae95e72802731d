"""The measured loop: times blocks of updates, and asks between blocks whether to go on. Layer 2.

One device synchronisation ends each block and none happens inside; losses are fetched, progress is written
and ranks agree on the next step between blocks, outside the timed stretch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scalebench.strategies.base import LossPart, Strategy


@dataclass
class Series:
    """The blocks of one stretch of training, as this process saw them."""

    steps: int = 0  # updates in each block
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)  # mean per sample of each block
    step_losses: list[float | None] = field(default_factory=list)  # only kept when asked for


class Block(NamedTuple):
    """Some updates that were timed together, as this process saw them."""

    steps: int
    seconds: float
    parts: list[tuple[float, int]]  # sum of the losses and samples of each update that has a loss here

    @property
    def samples(self) -> int:
        return sum(samples for _, samples in self.parts)

    @property
    def loss(self) -> float | None:
        """Mean per sample."""
        return sum(loss_sum for loss_sum, _ in self.parts) / self.samples if self.samples else None


class Course(Protocol):
    """A training that is on its way to a stop; it is told of every block, and may cut the next one short."""

    over: bool

    def room(self) -> int | None:
        """How many updates there may be before it has to be told again; None: any number."""

    def updated(self) -> None:
        """An update was issued, and the next is not: the moment to change the learning rate."""

    def ended(self, block: Block) -> None:
        """A block has ended, whole or cut short; its stage looks at it after that, if there is more to come."""


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
        course: Course | None = None,
    ) -> None:
        self._strategy = strategy
        self._batches = batches
        self._stages = iter(stages)
        self._on_stage = on_stage
        self._keep, self._clock, self._course = keep_step_losses, clock, course
        self._parts: list[LossPart | None] = []
        self._stage: Stage | None = None
        self._block_start_s = 0.0
        self._due = 0  # updates of the block that has begun

    def __iter__(self) -> Iterator[Any]:
        self._next_stage()
        if self._stage is not None:
            self._start_block(self._stage)
        for batch in self._batches:
            yield batch
            if self._stage is None:
                return

    def done(self, part: LossPart | None) -> bool:
        """One update was issued. True when the loop is over."""
        if self._stage is not None:
            self._parts.append(part)
            if self._course is not None:
                self._course.updated()
            if len(self._parts) == self._due:
                self._end_block(self._stage)
        return self._stage is None

    def _start_block(self, stage: Stage) -> None:
        room = None if self._course is None else self._course.room()
        self._due = stage.series.steps if room is None else min(stage.series.steps, room)
        self._strategy.synchronize()
        self._block_start_s = self._clock()

    def _end_block(self, stage: Stage) -> None:
        self._strategy.synchronize()
        block = self._fetched(self._clock() - self._block_start_s)
        if self._course is not None:
            self._course.ended(block)
        whole = block.steps == stage.series.steps  # figures are over blocks that are alike
        if whole:
            self._keep_block(stage.series, block)
        if self._course is not None and self._course.over:
            self._stage = None
        elif whole and stage.decide(stage.series):
            self._next_stage()
        if self._stage is not None:
            self._start_block(self._stage)

    def _next_stage(self) -> None:
        before = self._stage.series if self._stage is not None else None
        self._stage = next(self._stages, None)
        if self._stage is not None:
            self._stage.series.steps = self._stage.start(before)
            self._on_stage(self._stage)

    def _fetched(self, seconds: float) -> Block:
        parts = [(float(part.loss_sum), part.samples) for part in self._parts if part is not None]
        block = Block(len(self._parts), seconds, parts)
        self._parts = []
        return block

    def _keep_block(self, series: Series, block: Block) -> None:
        series.seconds.append(block.seconds)
        series.samples.append(block.samples)
        series.losses.append(block.loss)
        if self._keep:
            series.step_losses += [loss_sum / samples if samples else None for loss_sum, samples in block.parts]


def one_iterator(batches: Iterable[Any]) -> Generator[Any, None, None]:
    """One iterator that outlives a loop, and whose closing ends the threads behind it."""
    yield from batches


def fixed(name: str, blocks: int, steps: int) -> Stage:
    """A stage of so many blocks of so many updates, without any talk between ranks."""
    return Stage(name, lambda before: steps, lambda series: len(series.seconds) >= blocks)
