"""Single transfers between the devices of a group, and between them and host memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import GroupSum, NotMeasured, create_on_all_ranks
from scalebench.strategies.torch.group import TorchGroup

Action = Callable[[], object]
CPU = torch.device("cpu")
ONE_WAY = ("one_way", "latency")


class TransferRank:
    """This rank with its device and its group, and the devices and nodes of the other ranks."""

    def __init__(self, spec: RunSpec, rank: int, device: torch.device, group: object) -> None:
        """`group` is the strategy's: a TorchGroup, Horovod's group, or None."""
        self.spec, self.rank, self.device, self.group = spec, rank, device, group
        self.sum_over_group: GroupSum = (
            (lambda values: values) if group is None else group.sum  # type: ignore[attr-defined]
        )

    def device_of(self, rank: int) -> torch.device:
        return torch.device(self.device.type, self.spec.places[rank].devices[0])

    def node_of(self, rank: int) -> int:
        return self.spec.places[rank].node


def build_transfer(rank: TransferRank, kind: str, source: int | None, target: int | None, size_bytes: int) -> Action:
    """Build this rank's part of a transfer, or an action that does nothing.

    Raises NotMeasured on all ranks if there is no such path or any rank lacks memory on its GPU.
    """
    single = kind.removesuffix("_all")
    _check_possible(rank, single, source, target)
    return create_on_all_ranks(
        lambda: _build_action(rank, single, source, target, size_bytes),
        rank.sum_over_group,
        (RuntimeError,),  # also from a GPU of another rank: no memory, or a mode that lets one process in
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs, or one lets a "
        "single process in (its compute mode is not default)",
    )


def _build_action(rank: TransferRank, kind: str, source: int | None, target: int | None, size_bytes: int) -> Action:
    method, _, pattern = kind.partition("_")
    if method in ("send", "peer", "staged"):
        pairs = _list_pairs(rank, pattern, source, target)
        receiver, sender = dict(pairs).get(rank.rank), {second: first for first, second in pairs}.get(rank.rank)
        if method == "send" and (receiver, sender) != (None, None):
            return _build_send(rank, receiver, sender, size_bytes)
        if method != "send" and receiver is not None:
            return _build_copy(rank, rank.device_of(receiver), size_bytes, staged=method == "staged")
        return _do_nothing
    if source not in (None, rank.rank):
        return _do_nothing
    kinds = ("host_to_device", "device_to_host") if kind == "host_both_ways" else (kind,)
    copies = [_build_local_copy(rank, each, size_bytes) for each in kinds]
    if len(copies) == 1:
        return copies[0]
    streams = [torch.cuda.Stream(rank.device) for _ in copies]  # on one stream they would run one after the other
    torch.cuda.synchronize(rank.device)  # the buffers were filled on another stream

    def run() -> None:
        for copy, stream in zip(copies, streams, strict=True):
            with torch.cuda.stream(stream):
                copy()

    return run


def _list_pairs(rank: TransferRank, pattern: str, source: int | None, target: int | None) -> list[tuple[Any, Any]]:
    """Return (sender, receiver) of each buffer that is on its way at once."""
    if pattern == "ring":
        ranks = rank.spec.processes
        return [(each, (each + 1) % ranks) for each in range(ranks)]
    return [(source, target)] if pattern in ONE_WAY else [(source, target), (target, source)]


def _check_possible(rank: TransferRank, kind: str, source: int | None, target: int | None) -> None:
    """Raise NotMeasured if there is no such path. All ranks decide the same: facts of a single rank are summed up."""
    method, _, pattern = kind.partition("_")
    if method == "send" and not isinstance(rank.group, TorchGroup):
        name = rank.spec.config.strategy.name
        raise NotMeasured(f"{name} has no group of torch.distributed, which would send from rank to rank")
    if method == "send" and rank.device.type == "cuda" and rank.group.backend != "nccl":
        raise NotMeasured(f"{rank.group.backend} sends no buffers of a GPU from rank to rank")
    if method not in ("peer", "staged"):
        return
    for first, second in _list_pairs(rank, pattern, source, target):
        if rank.node_of(first) != rank.node_of(second):
            raise NotMeasured("a process copies between GPUs of its own node only")
        copies, peer = rank.rank == first, rank.device_of(second)
        # A rank that sees one GPU calls it 0, and so does the other.
        invisible = copies and (peer == rank.device or peer.index >= torch.cuda.device_count())
        no_access = copies and not invisible and not torch.cuda.can_device_access_peer(rank.device, peer)
        invisible, no_access = map(bool, rank.sum_over_group([float(invisible), float(no_access)]))
        if invisible:
            raise NotMeasured(f"the process of rank {first} does not see the GPU of rank {second}")
        if no_access and method == "peer":
            raise NotMeasured(f"CUDA gives the GPU of rank {first} no peer access to that of rank {second}")


def _build_send(rank: TransferRank, receiver: int | None, sender: int | None, size_bytes: int) -> Action:
    """Send and receive through the group's backend, both in flight at once."""
    sent, received = (_allocate_bytes(size_bytes, rank.device) for _ in range(2))

    def run() -> None:
        directions = [(dist.isend, sent, receiver), (dist.irecv, received, sender)]
        operations = [dist.P2POp(operation, buffer, peer) for operation, buffer, peer in directions if peer is not None]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run


def _build_copy(rank: TransferRank, other: torch.device, size_bytes: int, staged: bool) -> Action:
    """Copy in the source's process from its GPU to another GPU that the process sees.

    Tensor.copy_ makes PyTorch enable peer access. A staged copy goes to pinned host memory first, and on from there
    when it is complete.
    """
    torch.cuda.empty_cache()  # CUDA needs some 0.5 GB for this process on the other GPU, outside of PyTorch's memory
    source, target = _allocate_bytes(size_bytes, rank.device), _allocate_bytes(size_bytes, other)
    if not staged:
        return partial(target.copy_, source, non_blocking=True)  # on the source's stream, for which `synchronize` waits
    host = _allocate_pinned(size_bytes)

    def run() -> None:
        host.copy_(source)
        target.copy_(host)

    return run


def _build_local_copy(rank: TransferRank, kind: str, size_bytes: int) -> Action:
    """Copy within host memory, with as many threads as this rank trains with, within the device, or between them."""
    pinned = partial(_allocate_pinned, size_bytes)
    on_host, on_device = (partial(_allocate_bytes, size_bytes, device) for device in (CPU, rank.device))
    source, target = {
        "memcpy": (on_host, on_host),
        "device_copy": (on_device, on_device),
        "host_to_device": (pinned, on_device),
        "device_to_host": (on_device, pinned),
    }[kind]
    sent = source()
    return partial(target().copy_, sent, non_blocking=True)


def _allocate_bytes(size_bytes: int, device: torch.device) -> Tensor:
    # Filled, so that it has memory of its own: all pages that were never written map to one zero page.
    return torch.empty(size_bytes, dtype=torch.uint8, device=device).fill_(1)


def _allocate_pinned(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).fill_(1)


def _do_nothing() -> None:
    """Do nothing: a rank without a part waits for the others at the beginning of the next block."""
