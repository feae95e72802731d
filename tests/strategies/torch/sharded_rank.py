"""One of two ranks of a sharded strategy, which writes its observations to sharded<k>.json."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.core.json_files import write_json
from scalebench.core.result import RankRecord
from scalebench.core.spec import RunSpec
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.strategies.torch.observed import BatchReplay
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import make_features


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    inputs, targets = map(torch.from_numpy, make_features(22))
    shard = slice(None, 9) if record.rank else slice(9, 22)
    batch = TorchBatch(inputs[shard], targets[shard], 22)
    observations: dict[str, Any] = {"start_bytes": strategy.state_bytes()}
    strategy.train(BatchReplay(batch, 3))
    observations["state_bytes"], observations["messages"] = strategy.state_bytes(), strategy.message_sizes()
    observations["step"] = gloo_messages(lambda: strategy.train(BatchReplay(batch, 1)))
    strategy.run_isolated_sync(observations["messages"])  # buffers are made and tried
    observations["isolated_sync"] = gloo_messages(lambda: strategy.run_isolated_sync(observations["messages"]))
    # One batch for both and one more for rank 0, which the other one knows nothing of.
    uneven = Source(*make_features(5), global_batch=4, seed=3, replica=record.rank, replicas=2)
    observations["batches"] = len(list(uneven.in_order()))
    metrics: dict[str, float] = {}
    observations["evaluation"] = gloo_messages(lambda: metrics.update(strategy.evaluate(uneven)))
    observations["metrics"] = metrics
    strategy.train(BatchReplay(batch, 1))
    observations["again"] = gloo_messages(lambda: strategy.train(BatchReplay(batch, 1)))
    observations["messages_again"] = strategy.message_sizes()
    weights = strategy.parameters()
    observations["weights"] = float(sum(array.sum(dtype="float64") for array in weights.values()))
    observations["sizes"] = {name: array.size for name, array in weights.items()}
    write_json(progress.folder / f"sharded{record.rank}.json", observations)


def gloo_messages(action: Any) -> list[tuple[str, int]]:
    """Return (operation, input bytes) of what Gloo sent during the action, without single numbers."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        action()
    actual = [event for event in profiler.events() if event.name.startswith("gloo:")]
    actual.sort(key=lambda event: event.time_range.start)
    sizes = [(event.name.removeprefix("gloo:"), 4 * sum(map(prod, event.input_shapes))) for event in actual]
    return [(name, size) for name, size in sizes if size > 4 * 4]


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
