"""Every way of feeding gives the same batches in the same order."""

import threading
from contextlib import nullcontext
from itertools import islice

import pytest
import torch

from scalebench.strategies.torch import batches as feeding

CPU = torch.device("cpu")
BATCHES = 14  # over two ends of epochs; 101 samples in batches of 20 end with one of a single sample


def first_batches(source, feed, ahead="none"):
    return list(islice(feeding.feed_batches(source, CPU, feed, ahead), BATCHES))


@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("ways", [("device", "none"), ("host", "queue"), ("device", "queue")])
def test_same_batches_as_from_the_host(source, ways, replica):
    part = source(replica, 3, first=7)
    expected = first_batches(part, "host")
    for batch, actual in zip(expected, first_batches(part, *ways), strict=True):
        assert torch.equal(batch.inputs, actual.inputs)
        assert torch.equal(batch.targets, actual.targets)
        assert (batch.global_samples, batch.samples) == (actual.global_samples, actual.samples)


def test_host_batches_are_the_sources(source):
    for batch, actual in zip(islice(source(), BATCHES), first_batches(source(), "host"), strict=True):
        assert (actual.inputs.numpy() == batch.inputs).all()
        assert (actual.targets.numpy() == batch.targets).all()


def test_fixed_makes_its_tensors_once(source):
    actual = first_batches(source(feed="fixed"), "fixed")
    assert all(batch is actual[0] for batch in actual)
    assert torch.equal(actual[0].inputs, first_batches(source(), "host")[0].inputs)


def test_closing_ends_the_thread(source):
    batches = feeding.feed_batches(source(), CPU, "host", "queue")
    next(batches)
    assert any(thread.name == "prefetch" for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_next_copy_is_issued_after_waiting_for_this_one(source, monkeypatch):
    """The double buffer, with fake streams, yields the same batches and waits before it issues the next copy."""
    notes = []

    class Stream:
        def __init__(self, device):
            pass

        def wait_stream(self, other):
            notes.append("wait")

    def copying(stream):
        notes.append("copy")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", copying)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: notes.append("record"))
    actual = list(islice(feeding._copy_ahead(feeding.feed_batches(source(), CPU, "host", "none"), CPU), BATCHES))
    for batch, expected in zip(actual, first_batches(source(), "host"), strict=True):
        assert torch.equal(batch.inputs, expected.inputs)
    assert notes == ["copy"] + ["wait", "record", "record", "copy"] * BATCHES
