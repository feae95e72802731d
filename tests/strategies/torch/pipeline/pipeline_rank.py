"""One stage of a model on made-up batches; staged<k>.json is what it saw."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import ModelSpec, RunSpec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import Replay

SIZES = (12, 12, 4, 12, 4)  # of the batches; the smaller ones are the last of an epoch


def batches(model: ModelSpec) -> list[TorchBatch]:
    """The same on every rank."""
    made = torch.Generator().manual_seed(1)
    found = []
    for size in SIZES:
        inputs = torch.randn(size, *model.input_shape, generator=made)
        if model.target_shape:
            targets = torch.rand(size, *model.target_shape, generator=made)
        else:
            targets = torch.randint(model.outputs, (size,), generator=made)
        found.append(TorchBatch(inputs, targets, size))
    return found


def losses(strategy: Any, model: ModelSpec) -> list[float] | None:
    """Mean of each update; None on a stage that has none."""
    found = [part for batch in batches(model) for part in train(strategy, batch) if part is not None]
    return [float(part.loss_sum) / part.samples for part in found] or None


def train(strategy: Any, batch: TorchBatch) -> list[Any]:
    once = Replay(batch, 1)
    strategy.train(once)
    return once.parts


def sums(strategy: Any) -> dict[str, float]:
    """Of all weights by name."""
    return {name: float(array.astype(float).sum()) for name, array in strategy.parameters().items()}


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    model = spec.config.model
    seen: dict[str, Any] = {"losses": losses(strategy, model), "weights": sums(strategy)}
    seen["params"], seen["messages"] = strategy.num_params(), strategy.message_sizes()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(strategy, batches(model)[0])
    seen["step"] = carried(profiler)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        strategy.run_isolated_sync(seen["messages"])
    seen["exchange"] = carried(profiler)
    seen["stages"] = [dataclasses.asdict(one) for one in strategy.stages()]
    write_json(progress.folder / f"staged{record.rank}.json", seen)


def carried(profiler: Any) -> list[str]:
    return sorted(event.name for event in profiler.events() if event.name.startswith("gloo:"))


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
