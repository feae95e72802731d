"""One of two ranks that trains parts of steps and profiles steps, and writes its observations to probed<k>.json."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import FORWARD, OPTIMIZER, PARTS
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import BatchReplay

STEPS = 3


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    torch.manual_seed(record.rank)  # other samples on each rank, so that gradients differ where they are not averaged
    strategy.setup()
    batch = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 40)
    strategy.train(BatchReplay(batch, 3))
    observations: dict[str, Any] = {"trained": sum_weights(strategy)}
    strategy.set_gradient_sync(False)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for part in (*PARTS, FORWARD, OPTIMIZER):
            strategy.partial_step(batch, part)
    observations["apart_names"] = sorted({event.name for event in profiler.events()})
    observations["apart"] = sum_weights(strategy)
    if record.rank == 1:
        strategy.partial_step(batch, OPTIMIZER)  # on one rank only: a synchronization would hang
    strategy.set_gradient_sync(True)
    strategy.train(BatchReplay(batch, 1))
    observations["gradients"] = [float(parameter.grad.double().sum()) for parameter in strategy.model.parameters()]
    began_s, trace = time.time(), progress.folder / f"trace{record.rank}.json.gz"
    observations["profile"] = dataclasses.asdict(strategy.profile(STEPS, trace))
    observations["within_s"] = [began_s, time.time()]
    observations["messages"] = strategy.message_sizes()
    write_json(progress.folder / f"probed{record.rank}.json", observations)


def sum_weights(strategy: Any) -> float:
    """Sum up all weights: the sums are equal on ranks with the same weights."""
    return float(sum(array.sum(dtype=np.float64) for array in strategy.parameters().values()))


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
