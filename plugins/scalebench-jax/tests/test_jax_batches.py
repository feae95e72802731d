"""Samples dealt out over devices and parts, and the same batches from all feeds."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from scalebench_jax.batches import BatchFeeder, JaxBatch, split_batch

from scalebench.workloads.source import Source


@pytest.mark.parametrize(("samples", "devices", "pieces"), [(12, 3, 2), (31, 2, 1), (31, 3, 4), (3, 3, 4), (7, 3, 2)])
def test_each_row_counts_once(samples: int, devices: int, pieces: int) -> None:
    dealt = split_batch(samples, devices, pieces)
    counts = np.ones(dealt.rows.shape) if dealt.counts is None else dealt.counts
    assert sorted(dealt.rows[counts == 1]) == list(range(samples))
    assert (counts.sum((1, 2)).max() - counts.sum((1, 2)).min()) <= 1
    assert (counts.sum(2).max(1) - counts.sum(2).min(1)).max() <= 1
    part = -(-samples // devices)
    assert dealt.rows.shape[2] == -(-part // pieces)


def test_devices_have_contiguous_parts_and_the_first_ones_what_is_left() -> None:
    dealt = split_batch(5, 2, 1)
    assert dealt.rows.tolist() == [[[0, 1, 2]], [[3, 4, 0]]]
    assert dealt.counts is not None
    assert dealt.counts.tolist() == [[[1, 1, 1]], [[1, 1, 0]]]


def source(**settings: Any) -> Source:
    """23 samples in batches of 7: the last one of an epoch has 9."""
    inputs = np.arange(23, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    return Source(inputs, np.arange(23), global_batch=7, seed=1, replica=0, replicas=1, devices=3, **settings)


def feeder(devices: list[jax.Device], pieces: int = 2) -> BatchFeeder:
    mesh = Mesh(np.array(devices), ("devices",))
    return BatchFeeder(len(devices), pieces, NamedSharding(mesh, Spec("devices")), NamedSharding(mesh, Spec()))


def rows(batch: JaxBatch) -> list[int]:
    """Numbers of its samples, in the order in which the devices have them."""
    inputs, targets, counts = (None if one is None else np.asarray(one) for one in batch.part)
    assert inputs is not None
    kept = np.ones(inputs.shape[:3], bool) if counts is None else counts.astype(bool)
    np.testing.assert_array_equal(inputs[kept][:, 0], targets[kept])
    assert len(targets[kept]) == batch.samples == float(batch.global_samples)
    return [int(number) for number in targets[kept]]


@pytest.mark.parametrize("feed", ["host", "device"])
def test_batches_of_two_epochs(feed: str, devices: list[jax.Device]) -> None:
    wanted = [[int(one) for one in batch.targets] for batch in itertools.islice(source(), 6)]
    with closing(feeder(devices).batches(source(), feed, "none")) as batches:
        assert [rows(batch) for batch in itertools.islice(batches, 6)] == wanted


def test_each_device_has_its_own_part(devices: list[jax.Device]) -> None:
    batch = next(feeder(devices, pieces=1).batches(source(), "host", "none"))
    assert batch.part.inputs.shape == (3, 1, 3, 4)
    assert [shard.device for shard in batch.part.inputs.addressable_shards] == devices
    assert np.asarray(batch.part.counts).sum((1, 2)).tolist() == [3, 2, 2]


def test_shapes_are_known_beforehand(devices: list[jax.Device]) -> None:
    """To the type and the device, or what is compiled for them could not be used."""
    made, whole = feeder(devices), source().arrays()
    for batch in itertools.islice(made.batches(source(), "host", "none"), 4):
        like = made.like(batch.samples, *whole)
        for one, other in zip(like.part[:2], batch.part[:2], strict=True):
            assert (one.shape, one.dtype, one.sharding) == (other.shape, other.dtype, other.sharding)
        assert (like.part.counts is None) == (batch.part.counts is None)
