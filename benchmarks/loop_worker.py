"""One process of loop_overhead: trains alternately as scalebench does, and with a hand-written loop."""

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
from scalebench.measure.timed_loop import BlockSeries, TimedLoop
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets, user_code

TURNS = 20
BLOCKS = 3  # in a turn
STEPS = 20  # in a block
BLOCK_S, MAX_STEPS = 0.1, 200  # of a block on a GPU


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    train, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    kind = "own_step" if user_code.is_user_model(spec.config.model) else spec.config.strategy.framework
    module = importlib.import_module(f"benchmarks.by_hand_{kind}")
    batches = iter(strategy.feed(train))
    loops = {"by_hand": module.ByHand(spec, record.rank, strategy)}
    if spec.device == "cuda" and kind == "torch" and getattr(strategy, "group", None) is None:
        loops["graph"] = module.ByGraph(spec, record.rank, strategy)
    block_s, steps = _scalebench_turn(strategy, batches, progress, spec, STEPS)
    if spec.device == "cuda":  # whose queue is drained at the end of a block
        steps = round(strategy.broadcast(min(max(BLOCK_S * steps / block_s, STEPS), MAX_STEPS)))
    else:
        steps = STEPS
    for loop in loops.values():
        loop.train(STEPS)
    turns: dict[str, list[float]] = {name: [] for name in ("blocks", "wall", *loops)}
    for turn in range(TURNS):
        order = ["blocks", *loops]
        for name in order if turn % 2 else order[::-1]:  # alternate which is first
            strategy.broadcast(0.0)
            strategy.synchronize()
            begin_s = time.perf_counter()
            if name == "blocks":
                block_s, done = _scalebench_turn(strategy, batches, progress, spec, steps)
                turns["blocks"].append(block_s / done)
                turns["wall"].append((time.perf_counter() - begin_s) / done)
            else:
                loops[name].train(BLOCKS * steps)
                strategy.synchronize()
                turns[name].append((time.perf_counter() - begin_s) / (BLOCKS * steps))
    if record.rank == 0:
        write_json(folder / "turns.json", turns)


def _scalebench_turn(
    strategy: Strategy, batches: Any, progress: ProgressFile, spec: RunSpec, steps: int
) -> tuple[float, int]:
    """Return (seconds inside blocks, steps) of some blocks, with all work of a measured run between them."""

    def report(series: BlockSeries) -> None:
        progress.update(len(series.seconds) * series.steps, sum(series.samples), sum(series.seconds))

    settings = spec.config.measure
    phase = stopping_rule.create_measure_phase(strategy, settings, True, report)
    decide = phase.decide
    phase.start = lambda before: steps
    phase.decide = lambda series: decide(series) | (len(series.seconds) >= BLOCKS)
    strategy.train(TimedLoop(strategy, batches, [phase]))
    return sum(phase.series.seconds), len(phase.series.seconds) * phase.series.steps


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda spec, strategy, record, progress: body(spec, strategy, record, progress, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
