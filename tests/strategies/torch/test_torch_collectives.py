"""Collective operations of a group of one, and what a backend lacks; real groups are in test_collectives_real."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from scalebench.core.result import COLLECTIVES
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.torch import collectives
from scalebench.strategies.torch.collectives import Collective


@pytest.mark.parametrize("name", COLLECTIVES)
def test_alone_everything_stays_as_it_is(name: str, strategy: Any) -> None:
    action = strategy("ddp_gloo").collective(name, 64)
    action.put(lambda rank: np.arange(16, dtype=np.float32))
    action()
    np.testing.assert_array_equal(action.results()[0], np.arange(16))


def test_buffers_are_freed_with_the_action() -> None:
    """At once, and not when the collector comes by: those of the next size need the room."""
    action = Collective("all_to_all", 64, torch.device("cpu"), 0, 2)
    buffers = [weakref.ref(action._whole), weakref.ref(action._other)]
    gc.disable()
    try:
        del action
        assert [buffer() for buffer in buffers] == [None, None]
    finally:
        gc.enable()


def test_an_operation_that_the_backend_lacks(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*words: Any, **others: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support reduce")

    monkeypatch.setattr(dist, "reduce", lacks)
    group = strategy("ddp_gloo").group
    with pytest.raises(NotMeasured, match=r"^gloo of PyTorch .* has no reduce: ProcessGroupGloo does not support"):
        collectives.collective(group, "reduce", 64)


def test_another_error_is_no_lack(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*words: Any, **others: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "reduce", breaks)
    group = strategy("ddp_gloo").group
    with pytest.raises(RuntimeError, match="closed by peer"):
        collectives.collective(group, "reduce", 64)


def test_no_room_on_the_gpu(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(collectives, "_buffer", full)
    group = strategy("ddp_gloo").group
    with pytest.raises(NotMeasured, match="buffers of 64 bytes do not fit"):
        collectives.collective(group, "reduce", 64)
