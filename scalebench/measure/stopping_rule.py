"""Warm-up and measuring as phases of the loop: how long they last, and which rank decides."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from scalebench.core.spec import MeasureSpec
from scalebench.core.stats.estimates import precise_enough
from scalebench.core.stats.steady_state import MIN_BLOCKS, find_steady_start
from scalebench.measure.timed_loop import BlockSeries, LoopPhase
from scalebench.measure.timing import Clock, choose_block_s
from scalebench.strategies.base import Strategy

MIN_WARMUP_STEPS = 5  # however slow they are
MIN_REPEAT_BLOCKS = 8  # in a share of the time, if those of all repeats together have time for them
MIN_PROGRAM_STEPS, MIN_PROGRAM_BLOCKS = 4, 32  # of a user's program: in a block, as far as there is time for so many
Report = Callable[[BlockSeries], None]


class Warmup:
    """Warm-up until steady state is detected, in blocks of one step, so that compiling is in a block of its own.

    Rank 0 examines its own series after `warmup_steps` steps and after each doubling; it broadcasts its decision, which
    keeps all ranks at the same step. Replicas without any synchronization decide each for itself. Where steps are so
    slow that `warmup_steps` of them do not fit into `warmup_max_s`, as many as fit are enough, but at least five.
    """

    def __init__(
        self, strategy: Strategy, settings: MeasureSpec, synchronous: bool, report: Report, clock: Clock
    ) -> None:
        """`report` is called with the series after each block."""
        self._strategy, self._settings, self._synchronous = strategy, settings, synchronous
        self._report, self._clock = report, clock
        self._next_check = self._min_steps = max(settings.warmup_steps, MIN_BLOCKS)
        self._max_steps = max(settings.warmup_steps, settings.warmup_max_steps, 1)
        self._start_s = 0.0
        self.steady_after_steps: int | None = None  # None: no steady state within the bounds
        self.phase = LoopPhase("warmup", self._start, self._decide, settings.warmup_max_s)

    def _start(self, before: BlockSeries | None) -> int:
        self._start_s = self._clock()
        return 1

    def _decide(self, series: BlockSeries) -> bool:
        self._report(series)
        steps = len(series.seconds)
        if steps == MIN_WARMUP_STEPS:  # fewer than `_min_steps`, which is 16 or more
            self._next_check = self._steps_in_time(series)
        if steps < self._next_check:
            return steps >= self._max_steps
        self._next_check = 2 * steps
        steady_from = find_steady_start(series.seconds, self._settings.target)
        if self._synchronous:
            decision = self._strategy.broadcast(-1.0 if steady_from is None else float(steady_from))
            steady_from = None if decision < 0 else int(decision)
        self.steady_after_steps = steady_from
        return steady_from is not None or steps >= self._max_steps or self._is_late()

    def _steps_in_time(self, series: BlockSeries) -> int:
        """Return the fewest steps to make. By the median, since the first ones may compile for as long as many others
        take."""
        fit = min(self._min_steps, self._settings.warmup_max_s / max(statistics.median(series.seconds), 1e-9))
        if self._synchronous:
            fit = self._strategy.broadcast(float(fit))
        return max(MIN_WARMUP_STEPS, math.ceil(fit))

    def _is_late(self) -> bool:
        late = self._clock() - self._start_s >= self._settings.warmup_max_s
        return self._strategy.broadcast(float(late)) > 0 if self._synchronous else late


def choose_steps_per_block(warmup: BlockSeries | None, block_s: float, device: str) -> int:
    """Return the steps of a block that is as long as `choose_block_s` says for this kind of device, by the median of
    the later half of the warm-up blocks."""
    later = sorted(warmup.seconds[len(warmup.seconds) // 2 :]) if warmup is not None else []
    if warmup is None or not later or later[len(later) // 2] <= 0:
        return 1
    step_s = later[len(later) // 2] / warmup.steps
    return max(1, round(choose_block_s(device, step_s, block_s) / step_s))


def create_measure_phase(
    strategy: Strategy, settings: MeasureSpec, synchronous: bool, report: Report, clock: Clock = time.perf_counter
) -> LoopPhase:
    """Return the measured phase of a run, which ends once its throughput has a narrow interval.

    Of synchronous ranks, rank 0 stops after `min_s` once the interval of its own throughput is narrow enough, and at
    `max_s` in any case; it broadcasts its decision, which keeps all ranks at the same step. Replicas without any
    synchronization run until a common deadline, `max_s` after rank 0 began, since any communication between blocks
    would couple them.
    """
    now = clock if synchronous else time.time  # processes have only the time of day in common
    start_s = 0.0

    def start(warmup: BlockSeries | None) -> int:
        nonlocal start_s
        steps = choose_steps_per_block(warmup, settings.block_s, strategy.spec.device)
        if strategy.has_program and warmup is not None and warmup.seconds:
            # Between blocks ranks wait for each other, which their training alone would not: few steps make that much.
            in_time = settings.max_s / MIN_PROGRAM_BLOCKS / max(statistics.median(warmup.seconds), 1e-9)
            steps = max(steps, min(MIN_PROGRAM_STEPS, int(in_time)))
        steps = int(strategy.broadcast(float(steps)))
        start_s = now() if synchronous else strategy.broadcast(now())
        return steps

    def decide(series: BlockSeries) -> bool:
        report(series)
        elapsed_s = now() - start_s
        if not synchronous:
            return elapsed_s >= settings.max_s
        stop = strategy.place.rank == 0 and is_long_enough(series, settings, elapsed_s)
        return strategy.broadcast(float(stop)) > 0

    return LoopPhase("measure", start, decide, settings.max_s)


def create_training_phase(
    strategy: Strategy, settings: MeasureSpec, interval: Callable[[], int | None], limit_s: float | None
) -> LoopPhase:
    """Return the measured phase of a training with a stop of its own, which LoopObserver.over ends.

    `interval` returns the steps from one point of its curve to the next, which blocks are fitted into.
    """

    def start(warmup: BlockSeries | None) -> int:
        steps = int(strategy.broadcast(float(choose_steps_per_block(warmup, settings.block_s, strategy.spec.device))))
        return fit_steps_to_interval(steps, interval())

    return LoopPhase("measure", start, lambda series: False, limit_s)


def fit_steps_to_interval(steps: int, interval: int | None) -> int:
    """Return the steps per block, at most `steps`, with which nearly all of the `interval` steps between two points of
    the curve are in full blocks: the others count only for the training itself, and in no measured figure."""
    return steps if interval is None else max(1, interval // -(-interval // steps))


def is_long_enough(series: BlockSeries, settings: MeasureSpec, elapsed_s: float) -> bool:
    """Return whether measuring may stop: at its time limit, or when throughput is precise enough.

    `settings` are those of one repeat. Where its share of the time is too short for a few blocks it may take longer,
    but not longer than all repeats together.
    """
    if elapsed_s < min(settings.min_s, settings.max_s):  # asked after every block, of which there may be thousands
        return False
    kept: Sequence[int] = range(len(series.seconds))
    if any(series.pauses):
        trained = [number for number, pause in enumerate(series.pauses) if not pause]
        if len(trained) >= MIN_REPEAT_BLOCKS:  # blocks of training alone, which evaluation and saving do not use up
            kept = trained
            elapsed_s -= sum(series.seconds) - sum(series.seconds[number] for number in kept)
    if elapsed_s >= settings.max_s:
        return len(kept) >= MIN_REPEAT_BLOCKS or elapsed_s >= settings.max_s * (settings.repeats or 1)
    # A rank without losses, as the first stage of a pipeline is, counts its steps instead.
    amounts = series.samples if all(series.samples) else [series.steps] * len(series.seconds)
    seconds = [series.seconds[number] for number in kept]
    if elapsed_s < settings.min_s:
        return False
    return precise_enough(seconds, [amounts[n] for n in kept], settings.target, series.steps)
