"""The most memory of a GPU that training took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
