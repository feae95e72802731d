"""Runs whose steps take a known time, with batches of several sizes."""

import dataclasses
import math

from scalebench.core.spec import HardwareSpec
from tests.builders import sweeps
from tests.builders.runs import simulated_config
from tests.builders.sweeps import training_run

# Of `batched`, whatever its batch: as long as a step of ten samples of tests.builders.sweeps.
STEP_S = {("bare_torch", 1): 0.01, ("ddp_gloo", 1): 0.01 / 0.95, ("ddp_gloo", 2): 0.01 / 0.95 / 0.9}


def batched(strategy, gpus, batch, run=None, repeat=0, **settings):
    """Make a run, or change this one, to have `batch` samples a device in a step that takes as long as before."""
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch, **settings)
    made = run or sweeps.run(strategy, gpus, repeat, train=train)
    made.run_id, made.fingerprint = f"{made.run_id}-{batch}", f"{strategy}-{gpus}-{made.scale.seed}-{batch}-{settings}"
    made.scale.batch_per_device, made.scale.global_batch = batch, batch * gpus
    made.spec["train"]["batch_per_device"] = batch
    for rank in made.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
    made.workload.steps_per_epoch = math.ceil(1000 / made.scale.global_batch)
    made.quality.learning_rate = train.learning_rate
    return made


def aimed(gpus, batch, seed, seconds, reached=True):
    """Make a training that ends after `seconds`, at its target or short of it."""
    values = (0.4, 0.2, 0.1 if reached else 0.16)
    run = training_run("ddp_gloo", gpus, seed, values, epoch_s=seconds / 3, settings={"batch_per_device": batch})
    return batched("ddp_gloo", gpus, batch, run)


def make_batch_run(
    batch, gpus=1, strategy="ddp_gloo", repeat=0, bucket=25.0, slower=1.0, minute=0, hardware=None, **settings
):
    """A run of `batch` samples a device whose steps take as long as one of ten: batch times the throughput."""
    train = dataclasses.replace(simulated_config().train, batch_per_device=batch, **settings)
    other = {} if hardware is None else {"hardware": HardwareSpec(hardware)}
    made = sweeps.run(strategy, gpus, repeat, minute=minute, train=train, **other)
    made.fingerprint = "-".join(map(str, (strategy, gpus, batch, bucket, hardware, *settings.values())))
    made.run_id = f"{made.fingerprint}-{repeat}"
    made.spec["strategy"]["options"] = {"bucket_cap_mb": bucket}
    for rank in made.ranks:
        rank.block_samples = [2 * batch] * len(rank.block_s)
        rank.block_s = [slower * seconds for seconds in rank.block_s]
    return made


def make_saturating_runs(batch, gpus=1):
    """Runs of 10 to 10,000 samples a device; throughput rises with the batch up to this one, and then no more."""
    return [make_batch_run(size, gpus, slower=max(1.0, size / batch)) for size in (10, 100, 1000, 10000)]
