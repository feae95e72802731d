"""numpy batches -> tensors on the device, as `dataset.feed` and `dataset.prefetch` ask for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalebench.workloads.prefetch import prefetch
from scalebench.workloads.source import Batch, Source

CHUNK = 4096  # samples


class TorchBatch(NamedTuple):
    """One process's part of a global batch as tensors."""

    inputs: Tensor
    targets: Tensor
    global_samples: int
    share: float = 1.0  # of this process's samples of the update
    last: bool = True  # no other part of the update follows

    @property
    def samples(self) -> int:
        return len(self.inputs)

    def split(self, parts: int) -> list[TorchBatch]:
        """So many views of it, whose samples differ by at most one; the first ones are empty if there are too few."""
        if parts == 1:
            return [self]
        share, rest = divmod(self.samples, parts)
        sizes = [share] * (parts - rest) + [share + 1] * rest
        pairs = zip(self.inputs.split(sizes), self.targets.split(sizes), strict=True)
        return [
            TorchBatch(*pair, self.global_samples, size / self.samples, number == parts)
            for number, (pair, size) in enumerate(zip(pairs, sizes, strict=True), 1)
        ]

    def to(self, device: torch.device) -> TorchBatch:
        """On the device; from pinned memory the copy runs beside the host's work."""
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in self[:2])
        return self._replace(inputs=inputs, targets=targets)


class HostCopies:
    """Batches in pinned host memory, as the feed holds them before it copies: one of each shape, made once."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], TorchBatch] = {}

    def of(self, batch: TorchBatch) -> TorchBatch:
        """Its copy, or that of the first batch of the same shape."""
        key = tuple((tensor.shape, tensor.dtype) for tensor in (batch.inputs, batch.targets))
        if key not in self._copies:
            inputs, targets = (tensor.cpu().pin_memory() for tensor in (batch.inputs, batch.targets))
            self._copies[key] = TorchBatch(inputs, targets, batch.global_samples)
        return self._copies[key]


TorchBatches = Generator[TorchBatch, None, None]


def batches(source: Source, device: torch.device, feed: str, ahead: str) -> TorchBatches:
    """Batches on `device`, in the order of `source` whatever the feed; closing it ends the threads behind it.

    `feed`: host and disk take each batch from the source; fixed makes the first one once and gives it for
    ever; device keeps the whole data set on the device. The last two have nothing left to do in advance, so
    that `ahead` (none, queue, device) concerns the others only.
    """
    if feed == "device":
        return _resident(source, device)
    if feed == "fixed":
        return _repeated(source, device)
    ready = _host(source, device) if ahead == "none" else prefetch(_host(source, device))
    if device.type == "cpu":
        return ready  # they are where they are wanted
    return _copied_ahead(ready, device) if ahead == "device" else _placed(ready, device)


def as_tensors(batch: Batch) -> TorchBatch:
    """The batch's arrays as tensors, without a copy."""
    return TorchBatch(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), batch.global_samples)


def _host(source: Source, device: torch.device) -> TorchBatches:
    """Tensors in host memory, pinned for a GPU. Runs in the prefetching thread where there is one."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)  # is per thread; pinning would otherwise open a context on GPU 0
    for batch in source:
        made = as_tensors(batch)
        if cuda:
            made = made._replace(inputs=made.inputs.pin_memory(), targets=made.targets.pin_memory())
        yield made


def _placed(host: TorchBatches, device: torch.device) -> TorchBatches:
    with closing(host):
        for batch in host:
            yield batch.to(device)


def _repeated(source: Source, device: torch.device) -> TorchBatches:
    batch = as_tensors(next(iter(source))).to(device)
    while True:
        yield batch


def _copied_ahead(host: TorchBatches, device: torch.device) -> TorchBatches:
    """Double buffer: while the GPU works on one batch, the next is copied on a stream of its own."""
    copying = torch.cuda.Stream(device)

    def start_copy() -> TorchBatch | None:
        batch = next(host, None)
        with torch.cuda.stream(copying):
            return None if batch is None else batch.to(device)

    with closing(host):
        following = start_copy()
        while following is not None:
            batch, working = following, torch.cuda.current_stream(device)
            working.wait_stream(copying)  # for this batch only: the next copy is not issued yet
            for tensor in (batch.inputs, batch.targets):
                tensor.record_stream(working)  # or its memory could be copied over while it is still read
            following = start_copy()
            yield batch


def _resident(source: Source, device: torch.device) -> TorchBatches:
    """Every batch picked on the device from the whole training set, which is copied there once.

    All of it and not one replica's part, since each epoch deals the samples anew.
    """
    inputs, targets = (_on_device(array, device) for array in source.arrays())
    epoch = 0
    while True:
        updates = range(source.steps_per_epoch)
        rows = [source.batch_indices(epoch, update) - source.first for update in updates]
        # One copy of indices per epoch: one per update would make the GPU wait for the host.
        on_device = torch.from_numpy(np.concatenate(rows)).to(device)
        picked = on_device.split([len(part) for part in rows])
        for update, index in zip(updates, picked, strict=True):
            chosen = inputs.index_select(0, index), targets.index_select(0, index)
            yield TorchBatch(*chosen, source.global_samples(update))
        epoch += 1


def _on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The whole array on the device, through host memory chunk by chunk: a file may be larger than that."""
    tensor = torch.from_numpy(np.empty((0, *array.shape[1:]), array.dtype)).new_empty(array.shape, device=device)
    for start in range(0, len(array), CHUNK):
        tensor[start : start + CHUNK].copy_(torch.from_numpy(np.array(array[start : start + CHUNK])))
    return tensor
