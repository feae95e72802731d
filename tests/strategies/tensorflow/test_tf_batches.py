"""Every way of feeding gives the same batches in the same order, dealt out to the devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from scalebench.strategies.tensorflow import batches as feeding
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.conftest import DEVICES

STEPS = 14  # over two ends of epochs; 101 samples in batches of 20 end with one of a single sample
WAYS = [("device", "none"), ("host", "queue"), ("host", "device")]


def first_batches(source: Source, feed: str, ahead: str = "none", devices: Any = DEVICES) -> list[feeding.TfBatch]:
    return list(islice(feeding.batches(source, devices, feed, ahead), STEPS))


@given(samples=st.integers(0, 1000), devices=st.integers(1, 17))
def test_spans(samples: int, devices: int) -> None:
    """One for each device; together they are the samples in order; they differ by at most one."""
    spans = feeding.spans(samples, devices)
    assert len(spans) == devices
    assert [row for span in spans for row in range(samples)[span]] == list(range(samples))
    sizes = [span.stop - span.start for span in spans]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("ways", WAYS)
def test_same_batches_as_from_the_host(source: Callable[..., Source], ways: tuple[str, str], replica: int) -> None:
    part = source(replica, 3, first=7)
    for batch, found in zip(first_batches(part, "host"), first_batches(part, *ways), strict=True):
        for one, other in zip(batch.parts, found.parts, strict=True):
            np.testing.assert_array_equal(one[0], other[0], strict=True)
            np.testing.assert_array_equal(one[1], other[1], strict=True)
        assert (batch.samples, float(batch.global_samples)) == (found.samples, float(found.global_samples))


def test_host_gives_what_the_source_holds(source: Callable[..., Source]) -> None:
    part = source(1, 2)
    for batch, found in zip(islice(part, STEPS), first_batches(part, "host"), strict=True):
        for column, wanted in enumerate((batch.inputs, batch.targets)):
            np.testing.assert_array_equal(np.concatenate([one[column] for one in found.parts]), wanted, strict=True)
        assert (found.samples, float(found.global_samples)) == (batch.samples, batch.global_samples)
        assert found.global_samples.dtype == tf.float32


@pytest.mark.parametrize("ways", [("host", "none"), ("fixed", "none"), *WAYS])
def test_each_part_is_on_its_device(source: Callable[..., Source], ways: tuple[str, str]) -> None:
    devices = DEVICES[::-1]  # the first one is where everything is by default
    for batch in first_batches(source(feed="fixed" if "fixed" in ways else "host"), *ways, devices=devices):
        for device, part in zip(devices, batch.parts, strict=True):
            assert [tensor.device.endswith(device.removeprefix("/")) for tensor in part] == [True, True]


def test_labels_and_bytes_keep_their_types(pictures: Callable[..., Source]) -> None:
    for ways in (("host", "none"), *WAYS):
        ((images, labels),) = first_batches(pictures(), *ways, devices=DEVICES[:1])[0].parts
        assert (images.dtype, labels.dtype) == (tf.uint8, tf.int64)


def test_fixed_makes_its_tensors_once(source: Callable[..., Source]) -> None:
    found = first_batches(source(feed="fixed"), "fixed")
    assert all(batch is found[0] for batch in found)
    np.testing.assert_array_equal(found[0].parts[1][0], first_batches(source(), "host")[0].parts[1][0])


def test_device_copies_the_training_set_once(source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only the numbers of its rows go there."""
    part, gathered = source(1, 3), []
    monkeypatch.setattr(part, "_gather", lambda *args: gathered.append(args))
    first_batches(part, "device")
    assert gathered == []
    assert (part.replica, part.replicas) == (1, 3)


@pytest.mark.parametrize("ahead", ["queue", "device"])
def test_prefetches_in_a_thread_that_closing_ends(source: Callable[..., Source], ahead: str) -> None:
    batches = feeding.batches(source(), DEVICES, "host", ahead)
    next(batches)
    assert any(thread.name == "prefetch" for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize(("ahead", "in_thread"), [("queue", False), ("device", True)])
def test_only_ahead_on_the_device_copies_in_the_thread(
    source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, ahead: str, in_thread: bool
) -> None:
    names: list[str] = []
    place = feeding.place

    def noting(*args: Any) -> feeding.TfBatch:
        names.append(threading.current_thread().name)
        return place(*args)

    monkeypatch.setattr(feeding, "place", noting)
    batches = feeding.batches(source(), DEVICES, "host", ahead)
    list(islice(batches, 3))
    batches.close()
    assert {name == "prefetch" for name in names} == {in_thread}


def test_parts_in_host_memory(source: Callable[..., Source]) -> None:
    """Copies of their own, which put back on the devices are the parts again."""
    (batch,) = islice(feeding.batches(source(first=1), DEVICES, "host", "none"), 1)
    on_host = feeding.on_host(batch)
    for device, part, arrays in zip(DEVICES, batch.parts, on_host, strict=True):
        again = feeding.put(arrays, device)
        for tensor, array, other in zip(part, arrays, again, strict=True):
            assert isinstance(array, np.ndarray) and array.flags.owndata
            assert other.device == tensor.device and other.device.endswith(device.removeprefix("/"))
            np.testing.assert_array_equal(other, tensor)
