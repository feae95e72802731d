"""The distribution of a batch's samples over devices and accumulated parts, and batches of numpy arrays copied to the
devices of this process, as `dataset.feed` and `dataset.prefetch` say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from scalebench.plugin_api import Batch, Source, feed_batches
from scalebench_jax.replica import DevicePart


class BatchSplit(NamedTuple):
    """Rows of a batch by (device, part, position), with equal shapes on all devices, as XLA requires."""

    rows: NDArray[np.int64]
    counts: NDArray[np.float32] | None  # 1 for a sample, 0 for padding; None: there is no padding


@functools.lru_cache(maxsize=16)
def split_batch(samples: int, devices: int, pieces: int) -> BatchSplit:
    """Give each device, and each of its parts, contiguous samples; sizes differ by at most one. Padding is the batch's
    first row with a count of 0."""
    device_rows = np.array_split(np.arange(samples), devices)  # the first devices get the remainder
    width = -(-len(device_rows[0]) // pieces)
    rows = np.zeros((devices, pieces, width), np.int64)
    counts = np.zeros(rows.shape, np.float32)
    for device, local_rows in enumerate(device_rows):
        for piece, part_rows in enumerate(np.array_split(local_rows, pieces)):
            rows[device, piece, : len(part_rows)] = part_rows
            counts[device, piece, : len(part_rows)] = 1
    return BatchSplit(rows, None if counts.all() else counts)


class JaxBatch(NamedTuple):
    """One process's samples of a step, with a first axis of devices in each array."""

    part: DevicePart
    samples: int
    global_samples: Any  # float32 scalar on the devices


class BatchFeeder:
    """Splits batches over `devices` and into `pieces` (accumulated parts) each; `split` is the sharding of arrays with
    a first axis of devices, `replicated` that of arrays that every device has in full."""

    def __init__(self, devices: int, pieces: int, split: Any, replicated: Any) -> None:
        self._devices, self._pieces, self._split, self._replicated = devices, pieces, split, replicated
        self._scalars: dict[int, Any] = {}  # by the size of a global batch, of which an epoch has two
        self._counts: dict[int, Any] = {}

    def batches(self, source: Source, feed: str, prefetch_mode: str) -> Generator[JaxBatch, None, None]:
        """Yield batches in the order of `source` for any feed; closing the generator ends its threads."""
        return feed_batches(source, feed, prefetch_mode, self.place, lambda: self._keep_resident(source))

    def place(self, batch: Batch) -> JaxBatch:
        """Copy a batch to the devices."""
        dealt = split_batch(batch.samples, self._devices, self._pieces)
        inputs, targets = (
            _arrange_rows(array, dealt.rows, dealt.counts is None) for array in (batch.inputs, batch.targets)
        )
        inputs, targets = jax.device_put((inputs, targets), self._split)
        return self._create_batch(inputs, targets, batch.samples, batch.global_samples)

    def like(self, samples: int, inputs: NDArray[Any], targets: NDArray[Any]) -> JaxBatch:
        """Return the shapes of a batch of that many samples such as these, to compile for it in advance."""
        rows = split_batch(samples, self._devices, self._pieces).rows
        input_shapes, target_shapes = (
            jax.ShapeDtypeStruct(
                rows.shape + array.shape[1:], jax.dtypes.canonicalize_dtype(array.dtype), sharding=self._split
            )
            for array in (inputs, targets)
        )
        return self._create_batch(input_shapes, target_shapes, samples, samples)

    def _create_batch(self, inputs: Any, targets: Any, samples: int, global_samples: int) -> JaxBatch:
        if samples not in self._counts:
            counts = split_batch(samples, self._devices, self._pieces).counts
            self._counts[samples] = None if counts is None else jax.device_put(counts, self._split)
        if global_samples not in self._scalars:
            self._scalars[global_samples] = jax.device_put(np.float32(global_samples), self._replicated)
        return JaxBatch(DevicePart(inputs, targets, self._counts[samples]), samples, self._scalars[global_samples])

    def _keep_resident(self, source: Source) -> Callable[[NDArray[np.int64], int], JaxBatch]:
        resident = jax.device_put(tuple(np.asarray(array) for array in source.arrays()), self._replicated)
        gather = jax.jit(lambda arrays, rows: [array[rows] for array in arrays], out_shardings=self._split)

        def pick(rows: NDArray[np.int64], global_samples: int) -> JaxBatch:
            dealt = rows[split_batch(len(rows), self._devices, self._pieces).rows].astype(np.int32)
            picked = gather(resident, jax.device_put(dealt, self._split))
            return self._create_batch(*picked, len(rows), global_samples)

        return pick


def _arrange_rows(array: NDArray[Any], rows: NDArray[np.int64], in_order: bool) -> NDArray[Any]:
    return array.reshape(rows.shape + array.shape[1:]) if in_order else array[rows]
