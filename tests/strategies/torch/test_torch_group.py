"""The process group and collective operations of a group with a single rank."""

from __future__ import annotations

import gc
import socket
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from scalebench.core.result import COLLECTIVES
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.torch import group as torch_group
from scalebench.strategies.torch.group import TorchCollective, TorchGroup


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_one_rank_keep_their_values(name: str, strategy: Any) -> None:
    action = strategy("ddp_gloo").collective(name, 64)
    action.put(lambda rank: np.arange(16, dtype=np.float32))
    action()
    np.testing.assert_array_equal(action.results()[0], np.arange(16))


def test_buffers_are_freed_with_the_action() -> None:
    """They are freed at once and not by the garbage collector: the buffers of the next size need the memory."""
    action = TorchCollective("all_to_all", 64, torch.device("cpu"), 0, 2)
    buffers = [weakref.ref(action._full), weakref.ref(action._output)]
    gc.disable()
    try:
        del action
        assert [buffer() for buffer in buffers] == [None, None]
    finally:
        gc.enable()


def test_operations_that_the_backend_lacks_are_not_measured(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*words: Any, **others: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support reduce")

    monkeypatch.setattr(dist, "reduce", lacks)
    group = strategy("ddp_gloo").group
    with pytest.raises(NotMeasured, match=r"^gloo of PyTorch .* has no reduce: ProcessGroupGloo does not support"):
        torch_group.build_torch_collective(group, "reduce", 64)


def test_lack_of_memory_on_the_gpu_is_not_measured(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*words: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch_group, "_allocate_floats", full)
    group = strategy("ddp_gloo").group
    with pytest.raises(NotMeasured, match="buffers of 64 bytes do not fit"):
        torch_group.build_torch_collective(group, "reduce", 64)


CPU = torch.device("cpu")


def test_a_taken_port_is_named(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RuntimeError, match=f"^port {port} of the rendezvous was taken by another program"):
            strategy("ddp_gloo")


@pytest.mark.skipif(dist.is_nccl_available(), reason="this PyTorch has NCCL")
def test_a_missing_backend_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="without NCCL"):
        TorchGroup("nccl", CPU, 0, 1, 10.0)


def test_a_group_of_one_rank_sums_and_leaves(strategy: Any) -> None:
    group = strategy("independent_torch").group
    assert group.sum([1.5, 2.0]) == [1.5, 2.0]
    group.all_reduce_buffers([4096, 10])
    group.leave()
    group.leave()
    assert not dist.is_initialized()
