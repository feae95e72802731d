"""Memory of a device: the most that training took of a GPU, and what it keeps there from update to update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


class Peak:
    """Of one device, as torch's allocator counts it; what happens within `paused` is not in it."""

    def __init__(self) -> None:
        self._before = 0

    def of(self, device: torch.device) -> int | None:
        """Bytes; None on a CPU, where torch does not count them."""
        return max(self._before, torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None

    @contextmanager
    def paused(self, device: torch.device) -> Iterator[None]:
        """Evaluation may look at more samples at once than an update does."""
        self._before = self.of(device) or 0
        try:
            yield
        finally:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)


def kept_bytes(model: nn.Module, optimizer_state: Mapping[Any, Mapping[str, Any]], device: torch.device) -> int:
    """Bytes of a model's parameters, their gradients and its buffers, and of the tensors in an optimizer's state, as
    far as they are on that device. Of a DTensor its local shard alone counts, and what several share once.

    Buffers of an exchange, as the buckets of DistributedDataParallel, are no part of it, nor is what an update makes
    and frees: activations, weights that FSDP gathers. After an update, whose gradients are there until the next one.
    """
    weights = list(model.parameters())
    gradients = [one.grad for one in weights if one.grad is not None]
    states = [value for state in optimizer_state.values() for value in state.values() if isinstance(value, Tensor)]
    found = {id(one): one for one in chain(weights, gradients, model.buffers(), states)}.values()
    return sum(one.numel() * one.element_size() for one in map(_local, found) if one.device == device)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def peaks(devices: Iterable[torch.device]) -> list[int | None]:
    """Of each device since the beginning; None on a CPU."""
    return [Peak().of(device) for device in devices]
