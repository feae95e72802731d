"""What is copied to the devices, and where nothing is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scalebench.strategies.base import NotMeasured
from scalebench.strategies.tensorflow import batches
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.conftest import DEVICES


def as_on_gpus(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same devices, taken for GPUs."""
    monkeypatch.setattr(one, "spec", dataclasses.replace(one.spec, device="cuda"))


@pytest.mark.parametrize("loop", ["custom", "fit"])
def test_each_device_is_sent_its_part_each_time(
    strategy: Any, source: Callable[..., Source], monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    one = strategy("strategy=mirrored", "gpus=2", f"strategy.options.loop={loop}")
    batch = next(iter(one.feed(source(first=1, global_batch=27))))
    with pytest.raises(NotMeasured, match="nothing is copied"):
        one.copy_batch(batch)
    as_on_gpus(one, monkeypatch)
    sent: list[tuple[Any, str]] = []
    parts = one.placed(batch).parts
    monkeypatch.setattr(batches, "put", lambda arrays, device: sent.append((arrays, device)))
    one.copy_batch(batch)
    one.copy_batch(batch)
    assert [device for _, device in sent] == [*DEVICES, *DEVICES]
    for (arrays, _), part in zip(sent, [*parts, *parts], strict=True):
        for array, tensor in zip(arrays, part, strict=True):
            assert isinstance(array, np.ndarray) and array.shape == tensor.shape
            np.testing.assert_array_equal(array, tensor)


def test_a_graph_that_takes_samples_to_the_devices_itself(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = strategy("strategy=multi_gpu_model", "gpus=2")
    as_on_gpus(one, monkeypatch)
    with pytest.raises(NotMeasured, match="the graph of multi_gpu_model itself"):
        one.copy_batch(None)
