"""One of two ranks of what shards something; sharded<k>.json is what it saw."""

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
from scalebench.strategies.torch.observed import Replay
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import features


def body(spec: RunSpec, strategy: Any, record: RankRecord, progress: Any) -> None:
    strategy.setup()
    inputs, targets = map(torch.from_numpy, features(22))
    mine = slice(None, 9) if record.rank else slice(9, 22)
    batch = TorchBatch(inputs[mine], targets[mine], 22)
    seen: dict[str, Any] = {"start_bytes": strategy.state_bytes()}
    strategy.train(Replay(batch, 3))
    seen["state_bytes"], seen["messages"] = strategy.state_bytes(), strategy.message_sizes()
    seen["update"] = sent(lambda: strategy.train(Replay(batch, 1)))
    strategy.run_isolated_sync(seen["messages"])  # buffers are made and tried
    seen["exchange"] = sent(lambda: strategy.run_isolated_sync(seen["messages"]))
    # One batch for both and one more for rank 0, which the other one knows nothing of.
    uneven = Source(*features(5), global_batch=4, seed=3, replica=record.rank, replicas=2)
    seen["batches"] = len(list(uneven.in_order()))
    metrics: dict[str, float] = {}
    seen["evaluation"] = sent(lambda: metrics.update(strategy.evaluate(uneven)))
    seen["metrics"] = metrics
    strategy.train(Replay(batch, 1))
    seen["again"] = sent(lambda: strategy.train(Replay(batch, 1)))
    seen["messages_again"] = strategy.message_sizes()
    weights = strategy.parameters()
    seen["weights"] = float(sum(array.sum(dtype="float64") for array in weights.values()))
    seen["sizes"] = {name: array.size for name, array in weights.items()}
    write_json(progress.folder / f"sharded{record.rank}.json", seen)


def sent(action: Any) -> list[tuple[str, int]]:
    """What Gloo carried: its operation, and the bytes that went into it, but for single numbers."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        action()
    found = [event for event in profiler.events() if event.name.startswith("gloo:")]
    found.sort(key=lambda event: event.time_range.start)
    sizes = [(event.name.removeprefix("gloo:"), 4 * sum(map(prod, event.input_shapes))) for event in found]
    return [(name, size) for name, size in sizes if size > 4 * 4]


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
