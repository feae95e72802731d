"""What really carried the gradients, read off the profiler and not off the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from scalebench.strategy import Loop, LossPart

UPDATES = 2  # the first may still set something up
# Names of events -> backend. NCCL's kernels show where the profiler sees the GPU, its call also where it does not.
SIGNS = {
    "gloo:all_reduce": "gloo",
    "nccl:all_reduce": "nccl",
    "ncclDevKernel": "nccl",
    "ncclKernel": "nccl",
}


class Replay:
    """A Loop that hands out one batch so many times, and keeps what the updates gave."""

    def __init__(self, batch: Any, updates: int) -> None:
        self.parts: list[LossPart | None] = []
        self._batch, self._updates = batch, updates

    def __iter__(self) -> Iterator[Any]:
        while len(self.parts) < self._updates:
            yield self._batch

    def done(self, part: LossPart | None) -> bool:
        self.parts.append(part)
        return len(self.parts) >= self._updates


class ProfiledReplay(Replay):
    """Profiles from its first batch to its last update, and nothing that a trainer does before or after."""

    def __init__(self, batch: Any, updates: int) -> None:
        super().__init__(batch, updates)
        self._cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        seen = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._cuda else [])
        self._profiler = profile(activities=seen)

    def __iter__(self) -> Iterator[Any]:
        self._profiler.start()
        yield from super().__iter__()

    def done(self, part: LossPart | None) -> bool:
        over = super().done(part)
        if over:
            if self._cuda:
                torch.cuda.synchronize()
            self._profiler.stop()
        return over

    def names(self) -> set[str]:
        """Of all events seen."""
        return {event.name for event in self._profiler.events()}


def backend_of(names: Iterable[str]) -> str | None:
    """The backend whose all-reduce is among these names of events."""
    found = {backend for name in names for sign, backend in SIGNS.items() if name.startswith(sign)}
    return "+".join(sorted(found)) or None


def observed_backend(train: Callable[[Loop], None], batch: Any) -> str | None:
    """Train on a batch for two updates under the profiler. Spoils the weights."""
    replay = ProfiledReplay(batch, UPDATES)
    train(replay)
    return backend_of(replay.names())
