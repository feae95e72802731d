"""Who has which part in a transfer, and what is refused; on GPUs that are only named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalebench.strategies.base import NotMeasured
from scalebench.strategies.torch import bandwidth
from scalebench.strategies.torch.bandwidth import TransferRank, build_transfer
from scalebench.strategies.torch.group import TorchGroup
from tests.strategies.torch.conftest import spec_of


class Named(TorchGroup):
    """A group that nobody has joined."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def sum(self, values: list[float]) -> list[float]:
        return values


def here(
    rank: int, ranks: int = 3, kind: str = "cpu", backend: str = "gloo", nodes: tuple[int, ...] = ()
) -> TransferRank:
    spec = spec_of("ddp_gloo", ranks)
    spec.device = kind
    for place, node in zip(spec.places, nodes, strict=False):
        place.node = node
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank)
    return TransferRank(spec, rank, device, Named(backend))


@pytest.mark.parametrize(
    ("pattern", "peers"),
    [
        ("one_way", [(None, None), (2, None), (None, 1)]),
        ("both_ways", [(None, None), (2, 2), (1, 1)]),
        ("ring", [(1, 2), (2, 0), (0, 1)]),
    ],
)
def test_whom_a_rank_sends_to_and_receives_from(pattern: str, peers: list[Any]) -> None:
    """Of three ranks, from 1 to 2."""
    assert [bandwidth._find_peers(here(rank), pattern, 1, 2) for rank in range(3)] == peers


def test_a_rank_without_a_part_does_nothing() -> None:
    for kind, source, target in (("send_one_way", 1, 2), ("memcpy", 1, 1)):
        assert build_transfer(here(0), kind, source, target, 1024) is bandwidth._do_nothing


@pytest.mark.parametrize("kind", ["memcpy", "memcpy_all"])
def test_a_copy_in_host_memory_copies(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []
    buffer = bandwidth._allocate_bytes
    monkeypatch.setattr(bandwidth, "_allocate_bytes", lambda *words: made.append(buffer(*words)) or made[-1])
    action = build_transfer(here(1), kind, None if kind.endswith("_all") else 1, 1, 4096)
    sent, received = made
    assert sent.numel() == received.numel() == 4096 and sent.data_ptr() != received.data_ptr()
    sent.fill_(7)
    assert action() is None
    assert bool((received == 7).all())


def test_no_group_and_no_way_for_the_buffers_of_a_gpu() -> None:
    alone = here(0)
    alone.group = None
    with pytest.raises(NotMeasured, match=r"^ddp_gloo has no group of torch"):
        build_transfer(alone, "send_one_way", 0, 1, 1024)
    with pytest.raises(NotMeasured, match="gloo sends no buffers of a GPU"):
        build_transfer(here(0, kind="cuda"), "send_ring", None, None, 1024)


def access(monkeypatch: pytest.MonkeyPatch, seen: int, pairs: set[tuple[int, int]]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: (a.index, b.index) in pairs)


def refusal(kind: str, source: int | None, target: int | None, rank: int = 0, **words: Any) -> str | None:
    try:
        bandwidth._check_possible(here(rank, kind="cuda", backend="nccl", **words), kind, source, target)
    except NotMeasured as reason:
        return str(reason)
    return None


def test_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    access(monkeypatch, 3, {(0, 1), (1, 2)})
    assert refusal("peer_one_way", 0, 1) is None
    assert refusal("peer_one_way", 0, 2) == "CUDA gives the GPU of rank 0 no peer access to that of rank 2"
    assert refusal("peer_both_ways", 0, 1) is None and "rank 1 no peer access" in str(
        refusal("peer_both_ways", 0, 1, rank=1)
    )
    assert "rank 2 no peer access to that of rank 0" in str(refusal("peer_ring", None, None, rank=2))
    assert refusal("staged_one_way", 0, 2) is None and refusal("staged_ring", None, None, rank=2) is None


def test_gpus_that_a_process_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    access(monkeypatch, 1, set())
    assert refusal("staged_one_way", 0, 1) == "the process of rank 0 does not see the GPU of rank 1"
    assert refusal("host_to_device", 0, 0) is None


def test_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    access(monkeypatch, 3, {(0, 1)})
    nodes = (0, 0, 1)
    assert refusal("peer_one_way", 0, 1, nodes=nodes) is None
    for kind, ranks in (("peer_one_way", (0, 2)), ("staged_both_ways", (2, 1)), ("peer_ring", (None, None))):
        assert "of its own node only" in str(refusal(kind, *ranks, nodes=nodes))


def test_without_a_wrapper(strategy: Any) -> None:
    """One device, no group: host memory is still there."""
    alone = strategy("bare_torch")
    alone.transfer("memcpy", 0, 0, 4096)()
    with pytest.raises(NotMeasured, match="bare_torch has no collective operations of its own"):
        alone.collective("all_reduce", 4)
