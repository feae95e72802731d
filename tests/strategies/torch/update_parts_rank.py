"""One of two ranks whose update is taken apart and profiled; probed<k>.json is what it saw."""

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
from scalebench.strategies.torch.observed import Replay

UPDATES = 3


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    torch.manual_seed(record.rank)  # other samples on each rank, so that gradients differ where they are not averaged
    strategy.setup()
    batch = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 40)
    strategy.train(Replay(batch, 3))
    seen: dict[str, Any] = {"trained": total(strategy)}
    strategy.set_gradient_sync(False)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for part in (*PARTS, FORWARD, OPTIMIZER):
            strategy.partial_step(batch, part)
    seen["apart_names"] = sorted({event.name for event in profiler.events()})
    seen["apart"] = total(strategy)
    if record.rank == 1:
        strategy.partial_step(batch, OPTIMIZER)  # of one rank alone: nobody would answer an exchange
    strategy.set_gradient_sync(True)
    strategy.train(Replay(batch, 1))
    seen["gradients"] = [float(one.grad.double().sum()) for one in strategy.model.parameters()]
    began_s, trace = time.time(), progress.folder / f"trace{record.rank}.json.gz"
    seen["profile"] = dataclasses.asdict(strategy.profile(UPDATES, trace))
    seen["within_s"] = [began_s, time.time()]
    seen["messages"] = strategy.message_sizes()
    write_json(progress.folder / f"probed{record.rank}.json", seen)


def total(strategy: Any) -> float:
    """Of all weights: the same on ranks whose weights are the same."""
    return float(sum(array.sum(dtype=np.float64) for array in strategy.parameters().values()))


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
