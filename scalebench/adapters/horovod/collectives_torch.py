"""Horovod's collective operations, one at a time, on buffers of a given size; with PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch
from torch import Tensor

from scalebench.adapters.horovod.operations import check
from scalebench.agreement import Sum, made_by_all

ROOT = 0
FLOAT_BYTES = 4


class Collective:
    """Does the operation once when called. All-reduce and broadcast work in place; for the others Horovod makes a new
    result in each call, which is part of what they take."""

    def __init__(self, name: str, size_bytes: int, device: torch.device) -> None:
        self.name, self._key = name, f"scalebench.{name}.{size_bytes}"
        self._result: Tensor | None = None
        parts = hvd.size() if name == "all_gather" else 1
        # Written to, so that it has memory of its own: pages that nobody wrote to are all the same one.
        self._sent = torch.empty(size_bytes // FLOAT_BYTES // parts, device=device).fill_(0.0)
        self._do: Callable[[Collective], Tensor] = getattr(Collective, f"_{name}")  # bound, it would outlive its use

    def __call__(self) -> None:
        self._result = self._do(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """What this rank sends, by its number; to see what comes of it."""
        self._sent.copy_(torch.from_numpy(values(hvd.rank())))

    def results(self) -> dict[int, np.ndarray]:
        """What this rank has after the operation, by its number."""
        return {} if self._result is None else {hvd.rank(): self._result.cpu().numpy().copy()}

    def _all_reduce(self) -> Tensor:
        return hvd.allreduce_(self._sent, op=hvd.Sum, name=self._key)

    def _broadcast(self) -> Tensor:
        return hvd.broadcast_(self._sent, ROOT, name=self._key)

    def _all_gather(self) -> Tensor:
        return hvd.allgather(self._sent, name=self._key)

    def _reduce_scatter(self) -> Tensor:
        return hvd.reducescatter(self._sent, op=hvd.Sum, name=self._key)

    def _all_to_all(self) -> Tensor:
        return hvd.alltoall(self._sent, name=self._key)


def collective(add_up: Sum, device: torch.device, name: str, size_bytes: int) -> Collective:
    """The action. Unsupported, on all ranks alike, where Horovod lacks the operation or a rank the memory on its GPU;
    `add_up` gives sums over the ranks."""
    check(hvd, name)
    return made_by_all(
        lambda: Collective(name, size_bytes, device),
        add_up,
        (torch.cuda.OutOfMemoryError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )
