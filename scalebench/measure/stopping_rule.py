"""Warm-up and measuring as stages of the loop: how long, and who says stop. Layer 2."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from scalebench.core.spec import MeasureSpec
from scalebench.core.stats.estimates import precise_enough
from scalebench.core.stats.steady_state import FEWEST, steady_from
from scalebench.measure.timed_loop import Series, Stage
from scalebench.strategies.base import Strategy

GO_ON, STOP = 1.0, 0.0
ANY_CASE = 5  # updates of warm-up, however slow they are
Report = Callable[[Series], None]
Clock = Callable[[], float]


class Warmup:
    """Warm-up until steady state is found, of single updates, so that compiling is one of them.

    Rank 0 looks at its own series after `warmup_steps` updates and after each doubling; its broadcast word keeps all
    ranks at the same step. Replicas without any exchange look each for itself. Of updates so slow that `warmup_steps`
    of them do not fit into `warmup_max_s`, as many as fit are enough, but five in any case.
    """

    def __init__(self, strategy: Strategy, settings: MeasureSpec, lockstep: bool, report: Report, clock: Clock) -> None:
        self._strategy, self._settings, self._lockstep = strategy, settings, lockstep
        self._report, self._clock = report, clock
        self._next_look = self._least = max(settings.warmup_steps, FEWEST)
        self._most = max(settings.warmup_steps, settings.warmup_max_steps, 1)
        self._start_s = 0.0
        self.found_steps: int | None = None  # updates before steady state; None: it was not found within the bounds
        self.stage = Stage("warmup", self._start, self._decide, settings.warmup_max_s)

    def _start(self, before: Series | None) -> int:
        self._start_s = self._clock()
        return 1

    def _decide(self, series: Series) -> bool:
        self._report(series)
        steps = len(series.seconds)
        if steps == ANY_CASE:  # fewer than `_least`, which is 16 or more
            self._next_look = self._in_time(series)
        if steps < self._next_look:
            return steps >= self._most
        self._next_look = 2 * steps
        found = steady_from(series.seconds, self._settings.target)
        if self._lockstep:
            told = self._strategy.broadcast(-1.0 if found is None else float(found))
            found = None if told < 0 else int(told)
        self.found_steps = found
        return found is not None or steps >= self._most or self._late()

    def _in_time(self, series: Series) -> int:
        """Updates to be made at the least. The median, since the first ones may compile for as long as many others."""
        fit = min(self._least, self._settings.warmup_max_s / max(statistics.median(series.seconds), 1e-9))
        if self._lockstep:
            fit = self._strategy.broadcast(float(fit))
        return max(ANY_CASE, math.ceil(fit))

    def _late(self) -> bool:
        late = self._clock() - self._start_s >= self._settings.warmup_max_s
        return self._strategy.broadcast(float(late)) > 0 if self._lockstep else late


def steps_per_block(warm: Series | None, block_s: float) -> int:
    """Updates that fill about `block_s` seconds, from the median of the later half of the warm-up blocks."""
    later = sorted(warm.seconds[len(warm.seconds) // 2 :]) if warm is not None else []
    if not later or later[len(later) // 2] <= 0:
        return 1
    return max(1, round(block_s * warm.steps / later[len(later) // 2]))  # type: ignore[union-attr]


def measuring(
    strategy: Strategy, settings: MeasureSpec, lockstep: bool, report: Report, clock: Clock = time.perf_counter
) -> Stage:
    """The measured stage.

    In lockstep, rank 0 stops after `min_s` once the interval of its own throughput is narrow enough, and at
    `max_s` in any case; its broadcast word keeps all ranks at the same step. Replicas without any exchange
    run until a common deadline, `max_s` after rank 0 began, since talking between blocks would couple them.
    """
    now = clock if lockstep else time.time  # the time of day is what processes have in common
    start_s = 0.0

    def start(warm: Series | None) -> int:
        nonlocal start_s
        steps = int(strategy.broadcast(float(steps_per_block(warm, settings.block_s))))
        start_s = now() if lockstep else strategy.broadcast(now())
        return steps

    def decide(series: Series) -> bool:
        report(series)
        elapsed_s = now() - start_s
        if not lockstep:
            return elapsed_s >= settings.max_s
        word = GO_ON
        if strategy.place.rank == 0 and enough(series, settings, elapsed_s):
            word = STOP
        return strategy.broadcast(word) == STOP

    return Stage("measure", start, decide, settings.max_s)


def until_over(
    strategy: Strategy, settings: MeasureSpec, between: Callable[[], int | None], limit_s: float | None
) -> Stage:
    """The measured stage of a training that goes to a stop of its own: loop.Course says when it is over. `between`
    tells the updates from one point of its curve to the next, which blocks are fitted into."""

    def start(warm: Series | None) -> int:
        steps = int(strategy.broadcast(float(steps_per_block(warm, settings.block_s))))
        return fitted(steps, between())

    return Stage("measure", start, lambda series: False, limit_s)


def fitted(steps: int, between: int | None) -> int:
    """Updates per block, at the most `steps`, so that nearly all of those `between` two points are in whole blocks:
    the others are in no figure but the training's own."""
    return steps if between is None else max(1, between // -(-between // steps))


def enough(series: Series, settings: MeasureSpec, elapsed_s: float) -> bool:
    if elapsed_s >= settings.max_s:
        return True
    # A rank without losses, as the first stage of a pipeline is, counts its updates instead.
    done = series.samples if all(series.samples) else [series.steps] * len(series.seconds)
    return elapsed_s >= settings.min_s and precise_enough(series.seconds, done, settings.target)
