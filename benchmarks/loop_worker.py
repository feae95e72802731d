"""One process of loop_overhead: trains in turns as scalebench does and as one would by hand."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from scalebench.measure import stopping
from scalebench.measure.loop import Series, TimedLoop
from scalebench.measure.progress import ProgressFile
from scalebench.records import write_json
from scalebench.results import RankRecord
from scalebench.spec import RunSpec
from scalebench.strategy import Strategy
from scalebench.worker import run_rank
from scalebench.workloads import cache, datasets

TURNS = 20
BLOCKS = 3  # of a turn


class MaterialsCnn(nn.Module):
    """The network of the benchmark, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 16, kernel_size=7, padding=3)
        self.conv2 = nn.Conv1d(16, 24, kernel_size=7, padding=3)
        self.dense1 = nn.Linear(50 * 24, 125)
        self.dense2 = nn.Linear(125, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.transpose(1, 2)
        x = functional.max_pool1d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool1d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.dense1(x.transpose(1, 2).flatten(1)))
        return self.dense2(x)


class ByHand:
    """The loop that anybody would write first."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        inputs, targets = cache.open_arrays(datasets.prepare(spec.config))
        self.inputs, self.targets = torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())
        self.batch = spec.batch_per_device
        model = MaterialsCnn()
        self.net: nn.Module = DistributedDataParallel(model) if spec.config.strategy.backend else model
        self.optimizer = torch.optim.Adam(
            self.net.parameters(), lr=spec.config.train.learning_rate, eps=1e-7, fused=True
        )
        self.order = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(rank))
        self.at = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            rows = self.order[self.at : self.at + self.batch]
            self.at = (self.at + self.batch) % (len(self.order) - self.batch)
            self.optimizer.zero_grad()
            loss = functional.mse_loss(self.net(self.inputs[rows]), self.targets[rows])
            loss.backward()
            self.optimizer.step()


def body(spec: RunSpec, strategy: Strategy, record: RankRecord, progress: ProgressFile, folder: Path) -> None:
    train, _ = datasets.sources(spec, *strategy.shard())
    strategy.setup()
    by_hand = ByHand(spec, record.rank)
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
    stage = stopping.measuring(strategy, settings, True, report)
    decide = stage.decide
    stage.start = lambda before: 20
    stage.decide = lambda series: decide(series) | (len(series.seconds) >= BLOCKS)
    strategy.train(TimedLoop(strategy, batches, [stage]))
    return sum(stage.series.seconds), len(stage.series.seconds) * stage.series.steps


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    return run_rank(folder, lambda *parts: body(*parts, folder))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status) if status else sys.exit(0)
