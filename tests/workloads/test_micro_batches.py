"""Which batches divide: as a source gives them, and none is read for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec import Config, DatasetSpec, Place, RunSpec
from scalebench.workloads.partition import BatchSize, default_micro_batches, epoch_batch_sizes, indivisible_reason
from scalebench.workloads.source import Source


def spec_of(samples: int, global_batch: int, gpus: int, feed: str = "host") -> RunSpec:
    config = Config(dataset=DatasetSpec(size=samples, validation_share=0.0, feed=feed))
    places = [Place(rank, rank, 0, [rank], [], 1) for rank in range(gpus)]
    return RunSpec(config, "cpu", gpus, 1, places, -(-global_batch // gpus), global_batch, "0" * 16)


@given(st.integers(4, 60), st.integers(4, 40), st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]), st.data())
def test_sizes_are_those_of_an_epoch(
    samples: int, global_batch: int, devices: tuple[int, int], data: st.DataObject
) -> None:
    gpus, replicas = devices
    replica = data.draw(st.integers(0, replicas - 1))
    rows = np.zeros(samples)
    source = Source(rows, rows, global_batch=global_batch, seed=1, replica=replica, replicas=replicas, devices=gpus)
    epoch = [BatchSize(batch.samples, batch.global_samples) for batch in source.epoch(0)]
    found = epoch_batch_sizes(spec_of(samples, global_batch, gpus), replica, replicas)
    assert found == [epoch[0], epoch[-1]]
    assert set(epoch) == set(found)


def test_one_batch_again_and_again_has_no_other_last_one() -> None:
    assert epoch_batch_sizes(spec_of(25, 10, 2), 0, 1) == [(10, 10), (5, 5)]
    assert epoch_batch_sizes(spec_of(25, 10, 2, "fixed"), 0, 1) == [(10, 10), (10, 10)]


@pytest.mark.parametrize(
    ("last", "micro_batches", "words"),
    [(8, 2, None), (8, 1, None), (5, 1, None), (5, 2, "the last batch of an epoch has 5 samples"), (8, 4, "a batch")],
)
def test_what_does_not_divide_is_named(last: int, micro_batches: int, words: str | None) -> None:
    found = indivisible_reason([BatchSize(10, 10), BatchSize(last, last)], micro_batches)
    assert found is None if words is None else found is not None and found.startswith(words)
    assert found is None or "change strategy.options.micro_batches" in found


@pytest.mark.parametrize(
    ("samples", "global_batch", "gpus", "replicas", "stages", "number"),
    [
        (4096, 1024, 2, 1, 2, 4),
        (225, 150, 2, 1, 2, 5),  # batches of 150 and 75
        (64, 16, 4, 1, 4, 8),
        (64, 16, 4, 2, 2, 4),
        (60, 20, 1, 1, 1, 2),
        (31, 31, 2, 1, 2, 31),  # sample by sample
        (630, 32, 2, 1, 2, 2),  # 32 and 22
        (41, 31, 2, 1, 2, 4),  # 31 and 10 have no divisor in common
        (30, 15, 4, 2, 2, 4),  # 8 and 7 neither
    ],
)
def test_the_usual_number_divides_every_batch(
    samples: int, global_batch: int, gpus: int, replicas: int, stages: int, number: int
) -> None:
    spec = spec_of(samples, global_batch, gpus)
    assert default_micro_batches(spec, replicas, stages) == number
    told = [indivisible_reason(epoch_batch_sizes(spec, replica, replicas), number) for replica in range(replicas)]
    assert all(one is None for one in told) == (samples not in (41, 30))
