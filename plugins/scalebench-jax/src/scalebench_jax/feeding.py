"""numpy batches -> arrays on the devices of this process, as `dataset.feed` and `dataset.prefetch` ask for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from scalebench.plugin_api import Batch, Source, prefetch
from scalebench_jax.dealing import deal
from scalebench_jax.replica import Part


class JaxBatch(NamedTuple):
    """One process's samples of an update, dealt out to its devices along a first axis of each array."""

    part: Part
    samples: int
    global_samples: Any  # float32 scalar on the devices


class Feeder:
    """Deals batches out to `devices` in `pieces` each; `split` is how arrays lie on them that have a first axis of
    devices, and `whole` of those that every device has all of."""

    def __init__(self, devices: int, pieces: int, split: Any, whole: Any) -> None:
        self._devices, self._pieces, self._split, self._whole = devices, pieces, split, whole
        self._scalars: dict[int, Any] = {}  # by the size of a global batch: an epoch has two of them
        self._counts: dict[int, Any] = {}

    def batches(self, source: Source, feed: str, ahead: str) -> Generator[JaxBatch, None, None]:
        """In the order of `source` whatever the feed; closing it ends the threads behind it."""
        if feed == "device":
            return self._resident(source)
        if feed == "fixed":
            return self._repeated(source)
        if ahead == "none":
            return self._placed(source)
        # queue: made ready in host memory. device: copied in the thread as well, beside the update that is running.
        return prefetch(self._placed(source)) if ahead == "device" else self._queued(source)

    def place(self, batch: Batch) -> JaxBatch:
        """Copied to the devices."""
        dealt = deal(batch.samples, self._devices, self._pieces)
        inputs, targets = (_dealt(array, dealt.rows, dealt.counts is None) for array in (batch.inputs, batch.targets))
        inputs, targets = jax.device_put((inputs, targets), self._split)
        return self._made(inputs, targets, batch.samples, batch.global_samples)

    def like(self, samples: int, inputs: NDArray[Any], targets: NDArray[Any]) -> JaxBatch:
        """Shapes only, of a batch of so many samples such as these: to compile for it before it comes."""
        rows = deal(samples, self._devices, self._pieces).rows
        one, other = (
            jax.ShapeDtypeStruct(
                rows.shape + array.shape[1:], jax.dtypes.canonicalize_dtype(array.dtype), sharding=self._split
            )
            for array in (inputs, targets)
        )
        return self._made(one, other, samples, samples)

    def _made(self, inputs: Any, targets: Any, samples: int, global_samples: int) -> JaxBatch:
        if samples not in self._counts:
            counts = deal(samples, self._devices, self._pieces).counts
            self._counts[samples] = None if counts is None else jax.device_put(counts, self._split)
        if global_samples not in self._scalars:
            self._scalars[global_samples] = jax.device_put(np.float32(global_samples), self._whole)
        return JaxBatch(Part(inputs, targets, self._counts[samples]), samples, self._scalars[global_samples])

    def _placed(self, source: Source) -> Generator[JaxBatch, None, None]:
        for batch in source:
            yield self.place(batch)

    def _queued(self, source: Source) -> Generator[JaxBatch, None, None]:
        with closing(prefetch(source)) as ready:
            for batch in ready:
                yield self.place(batch)

    def _repeated(self, source: Source) -> Generator[JaxBatch, None, None]:
        batch = self.place(next(iter(source)))
        while True:
            yield batch

    def _resident(self, source: Source) -> Generator[JaxBatch, None, None]:
        """Every batch picked on the devices from the whole training set, which each has a copy of.

        All of it and not one replica's part, since each epoch deals the samples anew.
        """
        whole = jax.device_put(tuple(np.asarray(array) for array in source.arrays()), self._whole)
        pick = jax.jit(lambda arrays, rows: [array[rows] for array in arrays], out_shardings=self._split)
        epoch = 0
        while True:
            for update in range(source.steps_per_epoch):
                rows = source.batch_indices(epoch, update) - source.first
                dealt = rows[deal(len(rows), self._devices, self._pieces).rows].astype(np.int32)
                picked = pick(whole, jax.device_put(dealt, self._split))
                yield self._made(*picked, len(rows), source.global_samples(update))
            epoch += 1


def _dealt(array: NDArray[Any], rows: NDArray[np.int64], in_order: bool) -> NDArray[Any]:
    return array.reshape(rows.shape + array.shape[1:]) if in_order else array[rows]
