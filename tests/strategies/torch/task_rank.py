"""A rank that does what the `task.json` of its folder names, and writes its observations to observed<k>.json."""

import contextlib
import sys
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.core.json_files import read_json, write_json
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import FORWARD, OPTIMIZER, PARTS, BatchReplay, NotMeasured
from scalebench.strategies.torch import profiling
from scalebench.strategies.torch.batches import TorchBatch
from scalebench.workloads.source import Source
from tests.strategies.builders import make_features


def shard(spec, strategy, record, progress):
    """Train one of two ranks of a sharded strategy."""
    strategy.setup()
    inputs, targets = map(torch.from_numpy, make_features(22))
    shard = slice(None, 9) if record.rank else slice(9, 22)
    batch = TorchBatch(inputs[shard], targets[shard], 22)
    observations = {"start_bytes": strategy.state_bytes()}
    strategy.train(BatchReplay(batch, 3))
    observations["state_bytes"], observations["messages"] = strategy.state_bytes(), strategy.message_sizes()
    observations["step"] = gloo_messages(lambda: strategy.train(BatchReplay(batch, 1)))
    strategy.run_isolated_sync(observations["messages"])  # buffers are made and tried
    observations["isolated_sync"] = gloo_messages(lambda: strategy.run_isolated_sync(observations["messages"]))
    # One batch for both and one more for rank 0, which the other one knows nothing of.
    uneven = Source(*make_features(5), global_batch=4, seed=3, replica=record.rank, replicas=2)
    observations["batches"] = len(list(uneven.in_order()))
    metrics = {}
    observations["evaluation"] = gloo_messages(lambda: metrics.update(strategy.evaluate(uneven)))
    observations["metrics"] = metrics
    strategy.train(BatchReplay(batch, 1))
    observations["again"] = gloo_messages(lambda: strategy.train(BatchReplay(batch, 1)))
    observations["messages_again"] = strategy.message_sizes()
    with contextlib.suppress(NotMeasured):
        strategy.set_gradient_sync(False)
        strategy.train(BatchReplay(batch, 1))  # the frozen copies are filled
        observations["without_sync"] = gloo_messages(lambda: strategy.train(BatchReplay(batch, 1)))
        strategy.set_gradient_sync(True)
    weights = strategy.parameters()
    observations["weights"] = float(sum(array.sum(dtype="float64") for array in weights.values()))
    observations["sizes"] = {name: array.size for name, array in weights.items()}
    write_json(progress.folder / f"observed{record.rank}.json", observations)


def gloo_messages(action):
    """Return (operation, input bytes) of what Gloo sent during the action, without single numbers."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        action()
    actual = [event for event in profiler.events() if event.name.startswith("gloo:")]
    actual.sort(key=lambda event: event.time_range.start)
    sizes = [(event.name.removeprefix("gloo:"), 4 * sum(map(prod, event.input_shapes))) for event in actual]
    return [(name, size) for name, size in sizes if size > 4 * 4]


def take_parts(spec, strategy, record, progress):
    """Train parts of steps on one of two ranks, and profile steps."""
    torch.manual_seed(record.rank)  # other samples on each rank, so that gradients differ where they are not averaged
    strategy.setup()
    batch = TorchBatch(torch.randn(20, 200, 3), torch.randn(20, 2), 40)
    strategy.train(BatchReplay(batch, 3))
    observations = {"trained": sum_weights(strategy)}
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
    observations["profile"] = msgspec.to_builtins(strategy.profile(3, None))
    write_json(progress.folder / f"observed{record.rank}.json", observations)


def sum_weights(strategy):
    """Sum up all weights: the sums are equal on ranks with the same weights."""
    return float(sum(array.sum(dtype=np.float64) for array in strategy.parameters().values()))


def count_broadcasts(spec, strategy, record, progress):
    """Count Lightning's broadcasts in three steps, by the option and by whether gradients are synchronized."""
    strategy.setup()
    batch = TorchBatch(*map(torch.from_numpy, make_features(20)), 40)
    counts = {}
    for sigterm in ("lightning", "never"):
        for sync in (True, False):
            strategy.options.sigterm = sigterm
            strategy.set_gradient_sync(sync)
            names = profiling.profile_steps(strategy.train, strategy.synchronize, batch, 3, False).names
            counts[f"{sigterm} {sync}"] = [names["gloo:broadcast"], names["gloo:all_reduce"] > 0]
    settings = {}
    for sigterm in ("lightning", "never"):
        strategy.options.sigterm = sigterm
        settings[sigterm] = strategy.settings_used().get("sigterm")
    write_json(progress.folder / f"observed{record.rank}.json", {"counts": counts, "settings": settings})


TASKS = {"count_broadcasts": count_broadcasts, "shard": shard, "take_parts": take_parts}

if __name__ == "__main__":
    run_folder = Path(sys.argv[1])
    exit_without_cleanup(run_rank(run_folder, TASKS[read_json(run_folder / "task.json")]))
