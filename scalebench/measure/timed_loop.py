"""The measured loop: it times blocks of steps, and decides between blocks whether to go on.

One device synchronization ends each block and none happens inside; losses are fetched, progress is written
and ranks agree on the next step between blocks, outside the timed stretch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scalebench.strategies.base import LossPart, Strategy


@dataclass
class BlockSeries:
    """The blocks of one phase of the loop, as this process measured them."""

    steps: int = 0  # in each block
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)  # mean per sample of each block
    started_at_s: list[float] = field(default_factory=list)  # of each block, seconds since the epoch
    rounds: list[int] = field(default_factory=list)  # of each block, where runs take turns
    pauses: list[str] = field(default_factory=list)  # what each block includes beside training; "": nothing
    data_s: list[float] = field(default_factory=list)  # of each block, spent in waiting for samples


class StepBlock(NamedTuple):
    """Steps that were timed together, as this process measured them."""

    steps: int
    seconds: float
    parts: list[tuple[float | None, int]]  # (sum of the losses, samples) of each step that has some in this process
    pause: str = ""
    data_s: float = 0.0

    @property
    def samples(self) -> int:
        """The samples of all steps in this process."""
        return sum(samples for _, samples in self.parts)

    @property
    def loss(self) -> float | None:
        """The mean loss per sample; None without samples, and where the losses are not known."""
        losses = [loss_sum for loss_sum, _ in self.parts if loss_sum is not None]
        return sum(losses) / self.samples if self.samples and len(losses) == len(self.parts) else None


class LoopObserver(Protocol):
    """Follows a training block by block; it may shorten the next block, and end the training."""

    over: bool

    def steps_left(self) -> int | None:
        """Return the number of steps until the next block has to end at the latest; None: any number."""

    def on_step(self) -> None:
        """Called when a step has been issued and the next one has not: the moment to change the learning rate."""

    def on_block(self, block: StepBlock) -> None:
        """Called at the end of each block, also of a shortened one, before its phase decides whether to go on."""


@dataclass
class LoopPhase:
    """One phase of the loop: how many steps its blocks have, and when it is over."""

    name: str
    start: Callable[[BlockSeries | None], int]  # the series of the phase before -> steps per block
    decide: Callable[[BlockSeries], bool]  # called after each block: True when the phase is over
    limit_s: float | None = None  # the most that it may take, for the progress line
    series: BlockSeries = field(default_factory=BlockSeries)
    round: int | None = None  # of the cohort, where runs take turns
    discarded_blocks: int = 0  # how many of the next blocks are not kept


class TimedLoop:
    """Iterates over batches and times blocks of steps, one phase after the other (warm-up, then measuring).

    `start` and `decide` of a phase run between blocks, on every rank; they are the only places where ranks
    communicate, so that all stop at the same step.
    """

    def __init__(
        self,
        strategy: Strategy,
        batches: Iterable[Any],
        phases: list[LoopPhase],
        on_phase: Callable[[LoopPhase], None] = lambda phase: None,
        clock: Callable[[], float] = time.perf_counter,
        observer: LoopObserver | None = None,
    ) -> None:
        self._strategy = strategy
        self._batches = batches
        self._phases = iter(phases)
        self._on_phase, self._clock, self._observer = on_phase, clock, observer
        self._parts: list[LossPart | None] = []
        self._phase: LoopPhase | None = None
        self._block_start_s = self._started_at_s = 0.0
        self._block_steps = 0  # of the block that has begun
        self._data_s = 0.0  # of the block, in which the feed gave no batch yet

    def __iter__(self) -> Iterator[Any]:
        self._next_phase()
        if self._phase is not None:
            self._start_block(self._phase)
        batches = iter(self._batches)
        while self._phase is not None:
            begin_s = time.perf_counter()
            batch = next(batches, batches)
            self._data_s += time.perf_counter() - begin_s
            if batch is batches:
                return
            yield batch

    def done(self, part: LossPart | None) -> bool:
        """Count one step that was issued. True when the loop is over."""
        if self._phase is not None:
            self._parts.append(part)
            if self._observer is not None:
                self._observer.on_step()
            if len(self._parts) == self._block_steps:
                self._end_block(self._phase)
        return self.over

    @property
    def over(self) -> bool:
        """True when all phases are over."""
        return self._phase is None

    def _start_block(self, phase: LoopPhase) -> None:
        limit = None if self._observer is None else self._observer.steps_left()
        self._block_steps = phase.series.steps if limit is None else min(phase.series.steps, limit)
        self._strategy.synchronize()
        self._started_at_s, self._data_s = time.time(), 0.0
        self._block_start_s = self._clock()

    def _end_block(self, phase: LoopPhase) -> None:
        self._strategy.synchronize()
        block = self._fetch_block(self._clock() - self._block_start_s)
        if self._observer is not None:
            self._observer.on_block(block)
        is_kept = block.steps == phase.series.steps  # figures are over blocks of equal length
        if is_kept and phase.discarded_blocks:
            phase.discarded_blocks, is_kept = phase.discarded_blocks - 1, False
        if is_kept:
            self._keep_block(phase, block)
        if self._observer is not None and self._observer.over:
            self._phase = None
        elif is_kept and phase.decide(phase.series):
            self._next_phase()
        if self._phase is not None:
            self._start_block(self._phase)

    def _next_phase(self) -> None:
        before = self._phase.series if self._phase is not None else None
        self._phase = next(self._phases, None)
        if self._phase is not None:
            self._phase.series.steps = self._phase.start(before)
            self._on_phase(self._phase)

    def _fetch_block(self, seconds: float) -> StepBlock:
        present = [part for part in self._parts if part is not None]
        parts = [(None if part.loss_sum is None else float(part.loss_sum), part.samples) for part in present]
        pauses = dict.fromkeys(word for part in present for word in part.pause.split())
        block = StepBlock(
            len(self._parts), seconds, parts, " ".join(pauses), self._data_s + sum(part.data_s for part in present)
        )
        self._parts = []
        return block

    def _keep_block(self, phase: LoopPhase, block: StepBlock) -> None:
        series = phase.series
        series.started_at_s.append(self._started_at_s)
        series.rounds += [] if phase.round is None else [phase.round]
        series.seconds.append(block.seconds)
        series.samples.append(block.samples)
        series.losses.append(block.loss)
        series.pauses.append(block.pause)
        series.data_s.append(block.data_s)


def closable_iterator(batches: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the batches from one iterator that outlives a loop; closing it ends the threads behind it."""
    yield from batches


def fixed_length_phase(name: str, blocks: int, steps: int) -> LoopPhase:
    """Return a phase of a fixed number of blocks and steps, in which ranks do not communicate."""
    return LoopPhase(name, lambda before: steps, lambda series: len(series.seconds) >= blocks)
