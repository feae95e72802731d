"""Transfers between the devices of a group, and between them and host memory, one at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import NotMeasured
from scalebench.strategies.collective_check import Sum, made_by_all
from scalebench.strategies.torch.group import Group

Action = Callable[[], None]
CPU = torch.device("cpu")


class Here:
    """This rank among the others."""

    def __init__(self, spec: RunSpec, rank: int, device: torch.device, group: object) -> None:
        """`group` is what the strategy talks over: Group, or Horovod's, or None."""
        self.spec, self.rank, self.device, self.group = spec, rank, device, group
        self.add_up: Sum = (lambda values: values) if group is None else group.sum  # type: ignore[attr-defined]

    def device_of(self, rank: int) -> torch.device:
        return torch.device(self.device.type, self.spec.places[rank].devices[0])

    def node_of(self, rank: int) -> int:
        return self.spec.places[rank].node


def transfer(here: Here, kind: str, source: int | None, target: int | None, size_bytes: int) -> Action:
    """This rank's part, or nothing. NotMeasured, on all ranks alike, where there is no such way or no room on a GPU."""
    alone = kind.removesuffix("_all")
    _refuse(here, alone, source, target)
    return made_by_all(
        lambda: _made(here, alone, source, target, size_bytes),
        here.add_up,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


def _made(here: Here, kind: str, source: int | None, target: int | None, size_bytes: int) -> Action:
    way, _, pattern = kind.partition("_")
    if way in ("send", "peer", "staged"):
        to, of = _peers(here, pattern, source, target)
        if way == "send":
            return _send(here, to, of, size_bytes)
        return _copy(here, to, size_bytes, staged=way == "staged")
    if source not in (None, here.rank):
        return _nothing
    return {
        "memcpy": _memcpy,
        "host_to_device": _host_to_device,
        "device_to_host": _device_to_host,
        "host_both_ways": _host_both_ways,
    }[kind](here, size_bytes)


def _peers(here: Here, pattern: str, source: int | None, target: int | None) -> tuple[int | None, int | None]:
    """(whom this rank sends to, whom it receives from); None: nobody."""
    ranks = here.spec.processes
    if pattern == "ring":
        return (here.rank + 1) % ranks, (here.rank - 1) % ranks
    assert source is not None and target is not None
    ways = {source: target} if pattern == "one_way" else {source: target, target: source}
    return ways.get(here.rank), {to: of for of, to in ways.items()}.get(here.rank)


def _refuse(here: Here, kind: str, source: int | None, target: int | None) -> None:
    """NotMeasured where there is no such way; every rank comes to the same, or is told."""
    way, _, pattern = kind.partition("_")
    if way == "send":
        _refuse_send(here)
    if way not in ("peer", "staged"):
        return
    ranks = range(here.spec.processes)
    pairs = [(r, (r + 1) % len(ranks)) for r in ranks] if pattern == "ring" else [(source, target), (target, source)]
    pairs = pairs[:1] if pattern == "one_way" else pairs
    for one, other in pairs:
        if here.node_of(one) != here.node_of(other):
            raise NotMeasured("a process copies between GPUs of its own node only")
        asked, of = here.rank == one, here.device_of(other)
        blind = asked and of.index >= torch.cuda.device_count()
        apart = asked and not blind and not torch.cuda.can_device_access_peer(here.device, of)
        blind, apart = map(bool, here.add_up([float(blind), float(apart)]))
        if blind:
            raise NotMeasured(f"the process of rank {one} does not see the GPU of rank {other}")
        if apart and way == "peer":
            raise NotMeasured(f"CUDA gives the GPU of rank {one} no peer access to that of rank {other}")


def _refuse_send(here: Here) -> None:
    if not isinstance(here.group, Group):
        name = here.spec.config.strategy.name
        raise NotMeasured(f"{name} has no group of torch.distributed, which would send from rank to rank")
    if here.device.type == "cuda" and here.group.backend != "nccl":
        raise NotMeasured(f"{here.group.backend} sends no buffers of a GPU from rank to rank")


def _send(here: Here, to: int | None, of: int | None, size_bytes: int) -> Action:
    """Send and receive by the group's backend, both under way at once."""
    if to is None and of is None:
        return _nothing
    sent, received = (_buffer(size_bytes, here.device) for _ in range(2))

    def run() -> None:
        ways = [(dist.isend, sent, to), (dist.irecv, received, of)]
        operations = [dist.P2POp(way, buffer, peer) for way, buffer, peer in ways if peer is not None]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return run


def _copy(here: Here, to: int | None, size_bytes: int, staged: bool) -> Action:
    """The source's process copies from its GPU to another one, which both of them see: Tensor.copy_, for which PyTorch
    turns on peer access; or first to pinned host memory, and when it is there, on from it."""
    if to is None:
        return _nothing
    sent, received = _buffer(size_bytes, here.device), _buffer(size_bytes, here.device_of(to))
    if not staged:
        return lambda: _do(received.copy_(sent, non_blocking=True))  # on the source's stream, which is waited for
    between = _pinned(size_bytes)

    def run() -> None:
        between.copy_(sent)
        received.copy_(between)

    return run


def _memcpy(here: Here, size_bytes: int) -> Action:
    """Within host memory, by as many threads as this rank trains with."""
    sent, received = (_buffer(size_bytes, CPU) for _ in range(2))
    return lambda: _do(received.copy_(sent))


def _host_to_device(here: Here, size_bytes: int) -> Action:
    host, on_device = _pinned(size_bytes), _buffer(size_bytes, here.device)
    return lambda: _do(on_device.copy_(host, non_blocking=True))


def _device_to_host(here: Here, size_bytes: int) -> Action:
    host, on_device = _pinned(size_bytes), _buffer(size_bytes, here.device)
    return lambda: _do(host.copy_(on_device, non_blocking=True))


def _host_both_ways(here: Here, size_bytes: int) -> Action:
    """Each way on a stream of its own: on one they would follow each other."""
    ways = [way(here, size_bytes) for way in (_host_to_device, _device_to_host)]
    streams = [torch.cuda.Stream(here.device) for _ in ways]
    torch.cuda.synchronize(here.device)  # the buffers were filled on another stream

    def run() -> None:
        for way, stream in zip(ways, streams, strict=True):
            with torch.cuda.stream(stream):
                way()

    return run


def _buffer(size_bytes: int, device: torch.device) -> Tensor:
    # Written to, so that it has memory of its own: pages that nobody wrote to are all the same one.
    return torch.empty(size_bytes, dtype=torch.uint8, device=device).fill_(1)


def _pinned(size_bytes: int) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True).fill_(1)


def _nothing() -> None:
    """A rank that has no part in it waits for the others where the next block begins."""


def _do(done: object) -> None:
    """An action returns nothing."""
