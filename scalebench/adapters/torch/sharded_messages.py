"""What FSDP really sends: it is given its own collectives again, which also keep account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalebench.adapters.torch import collectives

Message = tuple[str, int]  # kind of the collective, bytes of its whole


class Account:
    """Messages of one update, in the order in which they were sent."""

    def __init__(self) -> None:
        self.of_update: list[Message] = []  # of the last one that ended
        self._so_far: list[Message] | None = None  # None: none is under way

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around an update: what is sent between two of them is not counted."""
        self._so_far = []
        try:
            yield
        finally:
            self.of_update, self._so_far = self._so_far, None

    def note(self, kind: str, whole: Tensor) -> None:
        if self._so_far is not None:
            self._so_far.append((kind, whole.numel() * whole.element_size()))

    def watch(self, unit: Any) -> None:
        """A module that fully_shard was applied to."""
        unit.set_custom_all_gather(_AllGather(self))
        unit.set_custom_reduce_scatter(_ReduceScatter(self))


class _Noted:
    def __init__(self, account: Account) -> None:
        self.account = account

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Noted):
    """torch's DefaultAllGather."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        self.account.note("all_gather", output_tensor)
        return collectives.all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _ReduceScatter(_Noted):
    """torch's DefaultReduceScatter."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        self.account.note("reduce_scatter", input_tensor)
        return collectives.reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
