"""Collective operations of torch.distributed, one at a time, on buffers of a given size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.strategies.collective_check import made_by_all, refused
from scalebench.strategies.torch.group import Group

ROOT = 0
FLOAT_BYTES = 4
# As newer PyTorch calls them, which warns of the old names.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
PARTS_USED = ("all_gather", "reduce_scatter", "gather", "scatter")


class Collective:
    """Does the operation once when called; in place for all_reduce, reduce and broadcast, as training uses them.

    Its buffers are float32: `whole` of the given size, a rank's `part` of it, and an `other` of the size.
    """

    def __init__(self, name: str, size_bytes: int, device: torch.device, rank: int, ranks: int) -> None:
        """`size_bytes` is a multiple of 4 times the ranks wherever there are parts."""
        self.name, self._rank, self._ranks = name, rank, ranks
        count = size_bytes // FLOAT_BYTES
        self._whole = _buffer(count, device)
        self._part = _buffer(count // ranks if name in PARTS_USED else 0, device)
        self._other = _buffer(count if name == "all_to_all" else 0, device)
        self._do: Callable[[Collective], object] = getattr(Collective, f"_{name}")  # bound, it would outlive its use

    def __call__(self) -> None:
        self._do(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """What this rank sends, by its number; to see what comes of it."""
        sends_part = self.name in ("all_gather", "gather")
        target = self._part if sends_part else self._whole
        target.copy_(torch.from_numpy(values(self._rank)))

    def results(self) -> dict[int, np.ndarray]:
        """What this rank has after the operation, by its number; nothing where only the root has it."""
        if self.name in ("reduce", "gather") and self._rank != ROOT:
            return {}
        got = {"reduce_scatter": self._part, "scatter": self._part, "all_to_all": self._other}
        return {self._rank: got.get(self.name, self._whole).cpu().numpy().copy()}

    def _parts(self) -> list[Tensor]:
        return list(self._whole.chunk(self._ranks))

    def _all_reduce(self) -> None:
        dist.all_reduce(self._whole)

    def _reduce(self) -> None:
        dist.reduce(self._whole, dst=ROOT)

    def _broadcast(self) -> None:
        dist.broadcast(self._whole, src=ROOT)

    def _all_gather(self) -> None:
        all_gather(self._whole, self._part)

    def _reduce_scatter(self) -> None:
        reduce_scatter(self._part, self._whole)

    def _gather(self) -> None:
        dist.gather(self._part, self._parts() if self._rank == ROOT else None, dst=ROOT)

    def _scatter(self) -> None:
        dist.scatter(self._part, self._parts() if self._rank == ROOT else None, src=ROOT)

    def _all_to_all(self) -> None:
        dist.all_to_all_single(self._other, self._whole)


def _buffer(count: int, device: torch.device) -> Tensor:
    # Written to, so that it has memory of its own: pages that nobody wrote to are all the same one.
    return torch.empty(count, device=device).fill_(0.0)


def collective(group: Group, name: str, size_bytes: int) -> Collective:
    """The action, tried once. Unsupported, on all ranks alike, where the backend lacks the operation or a rank the
    memory on its GPU."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    action = made_by_all(
        lambda: Collective(name, size_bytes, group.device, rank, ranks),
        group.sum,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )
    try:
        action()
    except (RuntimeError, NotImplementedError) as error:
        raise refused(error, f"{group.backend} of PyTorch {torch.__version__}", name) from error
    return action
