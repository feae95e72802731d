"""Whether the batches of an epoch divide into micro-batches. Layer 1."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scalebench.spec import RunSpec
from scalebench.workloads import datasets
from scalebench.workloads.source import Source


class Size(NamedTuple):
    """Samples of a batch: of this replica's part, and of all replicas."""

    samples: int
    of_all: int


def batch_sizes(spec: RunSpec, replica: int, replicas: int) -> list[Size]:
    """Of the first batch of an epoch and of its last one, as a replica reads them. Raises InputError as Source."""
    samples = datasets.train_samples(spec.config, spec.config.dataset.size)
    rows = np.broadcast_to(np.float32(0), (samples,))  # as many as there are, none of which is made
    source = Source(
        rows, rows, global_batch=spec.global_batch, seed=0, replica=replica, replicas=replicas, devices=spec.gpus
    )
    last = 0 if spec.config.dataset.feed == "fixed" else source.updates_per_epoch - 1
    return [Size(len(source.batch_indices(0, update)), source.global_samples(update)) for update in (0, last)]


def usual(spec: RunSpec, replicas: int, stages: int) -> int:
    """How many micro-batches where nobody says it: the least number that divides all batches of all replicas, from
    twice the stages on, at which (p - 1) / (m + p - 1) of the time is lost, a third at the most; where there is none,
    the largest from as many as the stages on.

    Where there is none either, twice the stages, which `obstacle` then says of a batch that it does not divide into.
    """
    every = {size.samples for replica in {0, replicas - 1} for size in batch_sizes(spec, replica, replicas)}
    common = math.gcd(*every)
    dividing = [number for number in range(stages, common + 1) if common % number == 0]
    enough = [number for number in dividing if number >= 2 * stages]
    return min(enough) if enough else max(dividing, default=2 * stages)


def obstacle(sizes: list[Size], micro_batches: int) -> str | None:
    """Why they cannot be split into so many equal parts; None where they can."""
    for which, size in zip(("a batch", "the last batch of an epoch"), sizes, strict=True):
        if size.samples % micro_batches:
            return (
                f"{which} has {size.samples} samples, which do not divide into {micro_batches} micro-batches: change "
                f"strategy.options.micro_batches, the batch (train.batch_per_device) or dataset.size"
            )
    return None
