"""One process of monitor_cost: trains, and records when each block ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.measure import stopping_rule
from scalebench.measure.progress import ProgressFile
from scalebench.measure.timed_loop import BlockSeries, LoopPhase, TimedLoop, fixed_length_phase
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets

SECONDS = 40.0


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    train, _ = datasets.open_sources(spec, *strategy.shard())
    strategy.setup()
    ends_s: list[float] = []
    begin_s = time.time()

    def start(warmup: BlockSeries | None) -> int:
        steps = stopping_rule.choose_steps_per_block(warmup, spec.config.measure.block_s, spec.device)
        return int(strategy.broadcast(float(steps)))

    def decide(series: BlockSeries) -> bool:
        ends_s.append(time.time())
        progress.update(len(series.seconds) * series.steps, sum(series.samples), sum(series.seconds))
        return strategy.broadcast(float(time.time() - begin_s > SECONDS)) == 1.0

    measured = LoopPhase("measure", start, decide)
    strategy.train(TimedLoop(strategy, strategy.feed(train), [fixed_length_phase("warmup", 10, 10), measured]))
    if record.rank == 0:
        step_s = [seconds / measured.series.steps for seconds in measured.series.seconds]
        write_json(folder / "blocks.json", {"ends_s": ends_s, "step_s": step_s})


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda spec, strategy, record, progress: body(spec, strategy, record, progress, folder))


if __name__ == "__main__":
    exit_without_cleanup(main(sys.argv[1:]))
