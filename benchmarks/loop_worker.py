"""One process of loop_overhead: trains in turns as scalebench does and as one would by hand."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure import stopping_rule
from scalebench.measure.progress import ProgressFile
from scalebench.measure.timed_loop import Series, TimedLoop
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets

TURNS = 20
BLOCKS = 3  # of a turn


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    train, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    by_hand = importlib.import_module(f"benchmarks.by_hand_{spec.config.strategy.framework}").ByHand(
        spec, record.rank, strategy
    )
    batches = iter(strategy.feed(train))
    steps = _our_turn(strategy, batches, progress, spec)[1]
    by_hand.train(steps)
    turns: dict[str, list[float]] = {"by_hand": [], "blocks": [], "wall": []}
    for turn in range(TURNS):
        for ours in (True, False) if turn % 2 else (False, True):  # neither is always first
            strategy.broadcast(0.0)
            begin_s = time.perf_counter()
            if ours:
                block_s, done = _our_turn(strategy, batches, progress, spec)
                turns["blocks"].append(block_s / done)
                turns["wall"].append((time.perf_counter() - begin_s) / done)
            else:
                by_hand.train(steps)
                turns["by_hand"].append((time.perf_counter() - begin_s) / steps)
    if record.rank == 0:
        write_json(folder / "turns.json", turns)


def _our_turn(strategy: Strategy, batches: Any, progress: ProgressFile, spec: RunSpec) -> tuple[float, int]:
    """(seconds inside blocks, updates) of some blocks with all that a measured run does between them."""

    def report(series: Series) -> None:
        progress.update(len(series.seconds) * series.steps, sum(series.samples), sum(series.seconds))

    settings = spec.config.measure
    stage = stopping_rule.measuring(strategy, settings, True, report)
    decide = stage.decide
    stage.start = lambda before: 20
    stage.decide = lambda series: decide(series) | (len(series.seconds) >= BLOCKS)
    strategy.train(TimedLoop(strategy, batches, [stage]))
    return sum(stage.series.seconds), len(stage.series.seconds) * stage.series.steps


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda *parts: body(*parts, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
