"""Feeding numpy batches to the device as tensors, according to `dataset.feed` and `dataset.prefetch`."""

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

CHUNK_SAMPLES = 4096


class TorchBatch(NamedTuple):
    """One process's part of a global batch as tensors."""

    inputs: Tensor
    targets: Tensor
    global_samples: int
    share: float = 1.0  # this part's share of the process's samples in the step
    last: bool = True  # no other part of the step follows

    @property
    def samples(self) -> int:
        return len(self.inputs)

    def split(self, parts: int) -> list[TorchBatch]:
        """Split the batch into views whose sizes differ by at most one sample.

        With fewer samples than parts the first parts are empty.
        """
        if parts == 1:
            return [self]
        size, rest = divmod(self.samples, parts)
        sizes = [size] * (parts - rest) + [size + 1] * rest
        pairs = zip(self.inputs.split(sizes), self.targets.split(sizes), strict=True)
        return [
            TorchBatch(*pair, self.global_samples, size / self.samples, number == parts)
            for number, (pair, size) in enumerate(zip(pairs, sizes, strict=True), 1)
        ]

    def to(self, device: torch.device) -> TorchBatch:
        """Copy the batch to the device; from pinned memory the copy overlaps with the host's work."""
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in self[:2])
        return self._replace(inputs=inputs, targets=targets)


class PinnedCopies:
    """Copies of batches in pinned host memory, where the feed holds batches before copying: one for each shape."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], TorchBatch] = {}

    def copy_of(self, batch: TorchBatch) -> TorchBatch:
        """Return the pinned copy of the batch, or of the first batch of the same shape."""
        key = tuple((tensor.shape, tensor.dtype) for tensor in (batch.inputs, batch.targets))
        if key not in self._copies:
            inputs, targets = (tensor.cpu().pin_memory() for tensor in (batch.inputs, batch.targets))
            self._copies[key] = TorchBatch(inputs, targets, batch.global_samples)
        return self._copies[key]


TorchBatches = Generator[TorchBatch, None, None]


def feed_batches(source: Source, device: torch.device, feed: str, prefetch_mode: str) -> TorchBatches:
    """Yield batches on `device` in the order of `source` under every feed; closing the generator ends its threads.

    `feed`: host and disk take each batch from the source; fixed yields the first batch for ever; device keeps the
    whole dataset on the device. The last two have nothing to prepare, so that `prefetch_mode` (none, queue, device)
    concerns the others only.
    """
    if feed == "device":
        return _resident_batches(source, device)
    if feed == "fixed":
        return _repeat_first_batch(source, device)
    ready = _host_batches(source, device)
    if prefetch_mode != "none":
        ready = prefetch(ready)
    if device.type == "cpu":
        return ready
    return _copy_ahead(ready, device) if prefetch_mode == "device" else _copy_batches(ready, device)


def to_tensors(batch: Batch) -> TorchBatch:
    """Wrap the batch's arrays in tensors without copying."""
    return TorchBatch(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), batch.global_samples)


def _host_batches(source: Source, device: torch.device) -> TorchBatches:
    """Yield tensors in host memory, pinned for a GPU. Runs in the prefetching thread if there is one."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)  # a per-thread setting; pinning would otherwise open a context on GPU 0
    for batch in map(to_tensors, source):
        yield batch._replace(inputs=batch.inputs.pin_memory(), targets=batch.targets.pin_memory()) if cuda else batch


def _copy_batches(host: TorchBatches, device: torch.device) -> TorchBatches:
    with closing(host):
        for batch in host:
            yield batch.to(device)


def _repeat_first_batch(source: Source, device: torch.device) -> TorchBatches:
    batch = to_tensors(next(iter(source))).to(device)
    while True:
        yield batch


def _copy_ahead(host: TorchBatches, device: torch.device) -> TorchBatches:
    """Double-buffer: copy the next batch on a stream of its own while the GPU works on the current one."""
    copy_stream = torch.cuda.Stream(device)

    def start_copy() -> TorchBatch | None:
        batch = next(host, None)
        with torch.cuda.stream(copy_stream):
            return None if batch is None else batch.to(device)

    with closing(host):
        next_batch = start_copy()
        while next_batch is not None:
            batch, compute_stream = next_batch, torch.cuda.current_stream(device)
            compute_stream.wait_stream(copy_stream)  # waits for this batch only: the next copy is not issued yet
            for tensor in (batch.inputs, batch.targets):
                tensor.record_stream(compute_stream)  # or its memory could be overwritten while it is still read
            next_batch = start_copy()
            yield batch


def _resident_batches(source: Source, device: torch.device) -> TorchBatches:
    """Select every batch on the device from the whole training set, which is copied there once.

    One replica's part would not suffice, since each epoch redistributes the samples.
    """
    inputs, targets = (_copy_to_device(array, device) for array in source.arrays())
    epoch = 0
    while True:
        steps = range(source.steps_per_epoch)
        rows = [source.batch_indices(epoch, step) - source.first for step in steps]
        # The indices are copied once per epoch: a copy in each step would make the GPU wait for the host.
        row_tensor = torch.from_numpy(np.concatenate(rows)).to(device)
        row_tensors = row_tensor.split([len(part) for part in rows])
        for step, index in zip(steps, row_tensors, strict=True):
            yield TorchBatch(inputs.index_select(0, index), targets.index_select(0, index), source.global_samples(step))
        epoch += 1


def _copy_to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device chunk by chunk, since a file may be larger than host memory."""
    tensor = torch.from_numpy(np.empty((0, *array.shape[1:]), array.dtype)).new_empty(array.shape, device=device)
    for start in range(0, len(array), CHUNK_SAMPLES):
        tensor[start : start + CHUNK_SAMPLES].copy_(torch.from_numpy(np.array(array[start : start + CHUNK_SAMPLES])))
    return tensor
