"""Memory of a device: its peak by PyTorch's allocator, and the bytes that a strategy keeps from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


class PeakMemory:
    """The peak memory of a device by torch's allocator, without setup and the time within `paused`."""

    def __init__(self) -> None:
        self._before_pause = 0

    def read_bytes(self, device: torch.device) -> int | None:
        """Return the peak in bytes; None on a CPU, where torch does not count them."""
        return max(self._before_pause, torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None

    @contextmanager
    def paused(self, device: torch.device) -> Iterator[None]:
        """Leave evaluation out of the peak: it may process more samples at once than a step does."""
        self._before_pause = self.read_bytes(device) or 0
        try:
            yield
        finally:
            reset_peak(device)


def reset_peak(device: torch.device) -> None:
    """Let a device's peak begin anew at the memory that is now in use; on a CPU there is none."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def count_state_bytes(model: nn.Module, optimizer_state: Mapping[Any, Mapping[str, Any]], device: torch.device) -> int:
    """Count the bytes of parameters, gradients, buffers and the optimizer's tensors that are on a device.

    Only the local shard of a DTensor counts, and a shared tensor counts once. Communication buffers such as the buckets
    of DistributedDataParallel are left out, and so is everything that a step allocates and frees: activations, and
    weights that FSDP gathers. Gradients are included after a step, since they stay until the next one.
    """
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [value for state in optimizer_state.values() for value in state.values() if isinstance(value, Tensor)]
    tensors = {id(tensor): tensor for tensor in chain(parameters, gradients, model.buffers(), states)}.values()
    return sum(
        tensor.numel() * tensor.element_size() for tensor in map(_local_tensor, tensors) if tensor.device == device
    )


def _local_tensor(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
