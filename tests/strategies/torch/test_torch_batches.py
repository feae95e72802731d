"""Every way of feeding gives the same batches in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest
import torch

from scalebench.strategies.torch import batches as feeding
from scalebench.workloads.source import Source

CPU = torch.device("cpu")
STEPS = 14  # over two ends of epochs; 101 samples in batches of 20 end with one of a single sample


def first_batches(source: Source, feed: str, ahead: str = "none") -> list[feeding.TorchBatch]:
    return list(islice(feeding.batches(source, CPU, feed, ahead), STEPS))


@pytest.mark.parametrize("replica", [0, 1, 2])
@pytest.mark.parametrize("ways", [("device", "none"), ("host", "queue"), ("device", "queue")])
def test_same_batches_as_from_the_host(source: Callable[..., Source], ways: tuple[str, str], replica: int) -> None:
    part = source(replica, 3, first=7)
    expected = first_batches(part, "host")
    for batch, found in zip(expected, first_batches(part, *ways), strict=True):
        assert torch.equal(batch.inputs, found.inputs)
        assert torch.equal(batch.targets, found.targets)
        assert (batch.global_samples, batch.samples) == (found.global_samples, found.samples)


def test_host_gives_what_the_source_holds(source: Callable[..., Source]) -> None:
    for batch, found in zip(islice(source(), STEPS), first_batches(source(), "host"), strict=True):
        assert (found.inputs.numpy() == batch.inputs).all()
        assert (found.targets.numpy() == batch.targets).all()


def test_fixed_makes_its_tensors_once(source: Callable[..., Source]) -> None:
    found = first_batches(source(feed="fixed"), "fixed")
    assert all(batch is found[0] for batch in found)
    assert torch.equal(found[0].inputs, first_batches(source(), "host")[0].inputs)


def test_device_leaves_the_source_as_it_was(source: Callable[..., Source]) -> None:
    part = source(1, 3)
    first_batches(part, "device")
    assert (part.replica, part.replicas) == (1, 3)


def test_closing_ends_the_thread(source: Callable[..., Source]) -> None:
    batches: Any = feeding.batches(source(), CPU, "host", "queue")
    next(batches)
    assert any(thread.name == "prefetch" for thread in threading.enumerate())
    batches.close()
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_next_copy_is_issued_after_waiting_for_this_one(
    source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double buffer with streams that only take notes: same batches, each wait before the copy that follows."""
    notes: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            pass

        def wait_stream(self, other: Stream) -> None:
            notes.append("wait")

    def copying(stream: Stream) -> Any:
        notes.append("copy")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", copying)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: notes.append("record"))
    found = list(islice(feeding._copied_ahead(feeding.batches(source(), CPU, "host", "none"), CPU), STEPS))
    for batch, expected in zip(found, first_batches(source(), "host"), strict=True):
        assert torch.equal(batch.inputs, expected.inputs)
    assert notes == ["copy"] + ["wait", "record", "record", "copy"] * STEPS
