"""Joining and leaving the process group."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalebench.strategies.base import Unsupported
from scalebench.strategies.torch.group import Group

CPU = torch.device("cpu")


def test_port_taken(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RuntimeError, match=f"^port {port} of the rendezvous was taken by another program"):
            strategy("ddp_gloo")


@pytest.mark.skipif(dist.is_nccl_available(), reason="this PyTorch has NCCL")
def test_backend_that_is_not_built_in() -> None:
    with pytest.raises(Unsupported, match="without NCCL"):
        Group("nccl", CPU, 0, 1, 10.0)


def test_group_of_one(strategy: Any) -> None:
    group = strategy("independent_torch").group
    assert group.sum([1.5, 2.0]) == [1.5, 2.0]
    group.all_reduce_buffers([4096, 10])
    group.leave()
    group.leave()
    assert not dist.is_initialized()
