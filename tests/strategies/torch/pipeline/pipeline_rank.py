"""One stage of a model that trains on random batches and writes its observations to observed<k>.json."""

import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from scalebench.core.json_files import write_json
from scalebench.runner.worker import exit_without_cleanup, run_rank
from scalebench.strategies.base import BatchReplay
from scalebench.strategies.torch.batches import TorchBatch

BATCH_SIZES = (12, 12, 4, 12, 4)  # the smaller ones are the last of an epoch


def batches(model):
    """Return the same random batches on every rank."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for size in BATCH_SIZES:
        inputs = torch.randn(size, *model.input_shape, generator=generator)
        if model.target_shape:
            targets = torch.rand(size, *model.target_shape, generator=generator)
        else:
            targets = torch.randint(model.outputs, (size,), generator=generator)
        batches.append(TorchBatch(inputs, targets, size))
    return batches


def losses(strategy, model):
    """Train on all batches and return the mean loss of each step; None on a stage that has no loss."""
    parts = [part for batch in batches(model) for part in train(strategy, batch) if part is not None]
    return [float(part.loss_sum) / part.samples for part in parts] or None


def train(strategy, batch):
    replay = BatchReplay(batch, 1)
    strategy.train(replay)
    return replay.parts


def sums(strategy):
    """Return the sum of each array of weights by name."""
    return {name: float(array.astype(float).sum()) for name, array in strategy.parameters().items()}


def body(spec, strategy, record, progress):
    strategy.setup()
    model = spec.config.model
    waits = count_waits()
    observed = {"losses": losses(strategy, model), "waits": len(waits)}
    observed["weights"] = sums(strategy)
    observed["params"], observed["messages"] = strategy.num_params(), strategy.message_sizes()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(strategy, batches(model)[0])
    observed["step"] = gloo_events(profiler)
    strategy.run_isolated_sync(observed["messages"])  # which makes buffers
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        strategy.run_isolated_sync(observed["messages"])
    observed["isolated_sync"] = gloo_events(profiler)
    observed["stages"] = [msgspec.structs.asdict(stage) for stage in strategy.stages()]
    write_json(progress.folder / f"observed{record.rank}.json", observed)


def count_waits():
    """Return a list that from now on grows with each message for which this process waits until it has arrived."""
    waits = []

    def count(message):
        def counted(*args, **keys):
            waits.append(message.__name__)
            return message(*args, **keys)

        return counted

    dist.send, dist.recv = count(dist.send), count(dist.recv)
    return waits


def gloo_events(profiler):
    return sorted(event.name for event in profiler.events() if event.name.startswith("gloo:"))


if __name__ == "__main__":
    exit_without_cleanup(run_rank(Path(sys.argv[1]), body))
