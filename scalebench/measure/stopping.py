"""Warm-up and measuring as stages of the loop: how long, and who says stop. Layer 2."""

from __future__ import annotations

import time
from collections.abc import Callable

from scalebench.measure.loop import Series, Stage
from scalebench.spec import MeasureSpec
from scalebench.stats import precise_enough
from scalebench.strategy import Strategy

WARMUP_BLOCKS = 5
GO_ON, STOP = 1.0, 0.0
Report = Callable[[Series], None]


def warmup(settings: MeasureSpec, report: Report) -> Stage:
    """Warm-up by count: `warmup_steps` updates (rounded up to whole blocks), without talk between ranks."""
    steps = max(1, -(-settings.warmup_steps // WARMUP_BLOCKS))

    def decide(series: Series) -> bool:
        report(series)
        return len(series.seconds) * steps >= settings.warmup_steps

    return Stage("warmup", lambda before: steps, decide)


def steps_per_block(warm: Series | None, block_s: float) -> int:
    """Updates that fill about `block_s` seconds, from the median of the later half of the warm-up blocks."""
    later = sorted(warm.seconds[len(warm.seconds) // 2 :]) if warm is not None else []
    if not later or later[len(later) // 2] <= 0:
        return 1
    return max(1, round(block_s * warm.steps / later[len(later) // 2]))  # type: ignore[union-attr]


def measuring(strategy: Strategy, settings: MeasureSpec, lockstep: bool, report: Report) -> Stage:
    """The measured stage.

    In lockstep, rank 0 stops after `min_s` once the interval of its own throughput is narrow enough, and at
    `max_s` in any case; its broadcast word keeps all ranks at the same step. Replicas without any exchange
    run until a common deadline, `max_s` after rank 0 began, since talking between blocks would couple them.
    """
    start_s = 0.0

    def start(warm: Series | None) -> int:
        nonlocal start_s
        steps = int(strategy.broadcast(float(steps_per_block(warm, settings.block_s))))
        start_s = time.time() if lockstep else strategy.broadcast(time.time())
        return steps

    def decide(series: Series) -> bool:
        report(series)
        elapsed_s = time.time() - start_s
        if not lockstep:
            return elapsed_s >= settings.max_s
        word = GO_ON
        if strategy.place.rank == 0 and enough(series, settings, elapsed_s):
            word = STOP
        return strategy.broadcast(word) == STOP

    return Stage("measure", start, decide, settings.max_s)


def enough(series: Series, settings: MeasureSpec, elapsed_s: float) -> bool:
    if elapsed_s >= settings.max_s:
        return True
    return elapsed_s >= settings.min_s and precise_enough(series.seconds, series.samples, settings.target)
