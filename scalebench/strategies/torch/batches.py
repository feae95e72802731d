"""Feeding numpy batches to the device as tensors, according to `dataset.feed` and `dataset.prefetch`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scalebench.strategies.script import batches as user_batches
from scalebench.workloads import records
from scalebench.workloads.source import Batch, Source, prefetch

CHUNK_SAMPLES = 4096


# A tensor with the samples along its first axis, or several; None: the samples have no targets apart from their inputs.
Tensors = Tensor | dict[str, Tensor] | tuple[Tensor, ...] | None


class TorchBatch(NamedTuple):
    """One process's part of a global batch as tensors."""

    inputs: Any  # Tensors; one tensor unless the samples are a user's. Those of a loader may be nested
    targets: Any
    global_samples: int
    share: float = 1.0  # this part's share of the process's samples in the step
    last: bool = True  # no other part of the step follows
    size: int = 0  # samples of a batch of graphs, or of others without an axis of samples; 0: that of its first tensor

    @property
    def samples(self) -> int:
        if self.size:
            return self.size
        first = next(iter(self.inputs.values()), None) if isinstance(self.inputs, dict) else self.inputs
        if not isinstance(first, Tensor):
            first = next(user_batches.list_tensors(self[:2]), None)
        return user_batches.count_samples(self.inputs) if first is None else len(first)

    def tensors(self) -> list[Tensor]:
        """Return all tensors, those of the inputs first."""
        return list(user_batches.list_tensors(self[:2]))

    def map(self, function: Callable[[Tensor], Tensor]) -> TorchBatch:
        """Return the batch with `function` applied to each tensor."""
        inputs, targets = user_batches.map_leaves(
            lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, self[:2]
        )
        return self._replace(inputs=inputs, targets=targets)

    def split(self, parts: int) -> list[TorchBatch]:
        """Split the batch into views whose sizes differ by at most one sample.

        With fewer samples than parts the first parts are empty.
        """
        if parts == 1:
            return [self]
        size, rest = divmod(self.samples, parts)
        sizes = [size] * (parts - rest) + [size + 1] * rest
        ends = list(accumulate(sizes))
        return [
            self.map(lambda tensor, first=end - size, last=end: tensor[first:last])._replace(  # type: ignore[misc]
                share=size / self.samples, last=number == parts
            )
            for number, (size, end) in enumerate(zip(sizes, ends, strict=True), 1)
        ]

    def to(self, device: torch.device) -> TorchBatch:
        """Copy the batch to the device; from pinned memory the copy overlaps with the host's work."""

        def copy(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.to(device, non_blocking=True)
            return leaf.to(device) if hasattr(leaf, "to") else leaf  # a graph of the user's, say

        inputs, targets = user_batches.map_leaves(copy, self[:2])
        return self._replace(inputs=inputs, targets=targets)


TorchBatches = Generator[TorchBatch, None, None]


def feed_batches(
    source: Source | Iterable[TorchBatch], device: torch.device, feed: str, prefetch_mode: str
) -> TorchBatches:
    """Yield batches on `device` in the order of `source` under every feed; closing the generator ends its threads.

    A source that gives tensors is a loader of the user's, which pins them or not.

    `feed`: host takes each batch from the source; fixed yields the first batch each time; device keeps the whole
    dataset on the device. The last two have nothing to prepare, so that `prefetch_mode` (none, queue, device)
    concerns the others only.
    """
    if feed == "device" and isinstance(source, Source):
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
    """Wrap the batch's arrays in tensors, without copying unless they are records."""
    inputs, targets = (records.split_fields(array, torch.from_numpy) for array in (batch.inputs, batch.targets))
    return TorchBatch(inputs, targets, batch.global_samples)


def _host_batches(source: Source | Iterable[TorchBatch], device: torch.device) -> TorchBatches:
    """Yield tensors in host memory, pinned for a GPU. Runs in the prefetching thread if there is one."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)  # a per-thread setting; pinning would otherwise open a context on GPU 0
    for batch in source:
        if isinstance(batch, TorchBatch):
            yield batch
        else:
            yield to_tensors(batch).map(Tensor.pin_memory) if cuda else to_tensors(batch)


def _copy_batches(host: TorchBatches, device: torch.device) -> TorchBatches:
    with closing(host):
        for batch in host:
            yield batch.to(device)


def _repeat_first_batch(source: Source | Iterable[TorchBatch], device: torch.device) -> TorchBatches:
    batch = next(_host_batches(source, device)).to(device)
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
            for tensor in batch.tensors():
                tensor.record_stream(compute_stream)  # or its memory could be overwritten while it is still read
            next_batch = start_copy()
            yield batch


def _resident_batches(source: Source, device: torch.device) -> TorchBatches:
    """Select every batch on the device from the whole training set, which is copied there once.

    One replica's part would not suffice, since each epoch redistributes the samples.
    """
    inputs, targets = (_copy_to_device(array, device) for array in source.arrays())
    resident = TorchBatch(inputs, targets, 0)
    epoch = 0
    while True:
        steps = range(source.steps_per_epoch)
        rows = [source.batch_indices(epoch, step) - source.first for step in steps]
        # The indices are copied once per epoch: a copy in each step would make the GPU wait for the host.
        row_tensor = torch.from_numpy(np.concatenate(rows)).to(device)
        row_tensors = row_tensor.split([len(part) for part in rows])
        for step, index in zip(steps, row_tensors, strict=True):
            batch = resident.map(partial(torch.index_select, dim=0, index=index))
            yield batch._replace(global_samples=source.global_samples(step))
        epoch += 1


def _copy_to_device(array: NDArray[Any], device: torch.device) -> Tensors:
    """Copy an array, or each field of records, to the device chunk by chunk, since a file may be larger than host
    memory."""
    tensors = records.split_fields(
        np.array(array[:0]), lambda part: torch.from_numpy(part).new_empty((len(array), *part.shape[1:]), device=device)
    )
    for start in range(0, len(array), CHUNK_SAMPLES):
        rows = slice(start, start + CHUNK_SAMPLES)
        chunk = records.split_fields(np.array(array[rows]), torch.from_numpy)
        for tensor, part in zip(records.list_fields(tensors), records.list_fields(chunk), strict=True):
            tensor[rows].copy_(part)
    return tensors
