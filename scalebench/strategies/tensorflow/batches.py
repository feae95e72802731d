"""Batches of numpy arrays: copied to the devices of this process for training, as `dataset.feed` and
`dataset.prefetch` say, and in slices for validation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.core.spec import Config
from scalebench.workloads import datasets, records
from scalebench.workloads.datasets import cache
from scalebench.workloads.source import Batch, Source, slice_of_replica
from scalebench.workloads.source import feed_batches as source_feed

# Inputs and targets of one device; the inputs may be several tensors, where the user's samples are records.
DevicePart = tuple[Any, tf.Tensor]
HostArrays = tuple[Any, ...]  # the same in host memory


class TfBatch(NamedTuple):
    """One process's part of a global batch, split over its devices."""

    parts: tuple[DevicePart, ...]
    samples: int
    global_samples: tf.Tensor  # float32 scalar; a Python number would retrace the step


TfBatches = Generator[TfBatch, None, None]


def feed_batches(source: Source, devices: Sequence[str], feed: str, prefetch_mode: str) -> TfBatches:
    """Yield batches on `devices`, as workloads.source.feed_batches does. Each device gets a contiguous part of the
    process's samples; the sizes of parts differ by at most one."""

    def keep_resident() -> Callable[[NDArray[np.int64], int], TfBatch]:
        resident = [copy_to_device(map(np.asarray, source.arrays()), device) for device in devices]

        def pick(rows: NDArray[np.int64], global_samples: int) -> TfBatch:
            parts = []
            for device, span, arrays in zip(devices, split_evenly(len(rows), len(devices)), resident, strict=True):
                with tf.device(device):
                    gather = partial(tf.gather, indices=tf.identity(rows[span]))
                    parts.append(tuple(records.map_fields(gather, array) for array in arrays))
            return TfBatch(tuple(parts), len(rows), tf.constant(global_samples, tf.float32))

        return pick

    return source_feed(source, feed, prefetch_mode, lambda batch: place_batch(batch, devices), keep_resident)


def split_evenly(samples: int, devices: int) -> list[slice]:
    """Split the samples of a process into one slice per device."""
    return [slice_of_replica(0, samples, device, devices) for device in range(devices)]


def place_batch(batch: Batch, devices: Sequence[str]) -> TfBatch:
    """Copy the parts of a batch to their devices."""
    parts = []
    for device, span in zip(devices, split_evenly(batch.samples, len(devices)), strict=True):
        parts.append(copy_to_device((batch.inputs[span], batch.targets[span]), device))
    return TfBatch(tuple(parts), batch.samples, tf.constant(batch.global_samples, tf.float32))


def copy_to_device(arrays: Iterable[Any], device: str) -> Any:
    """Return the arrays as tensors on the device."""
    with tf.device(device):
        return tuple(to_tensors(array) for array in arrays)


def to_tensors(array: Any) -> Any:
    """Return an array, records or the fields of such as tensors on the current device."""
    is_array = isinstance(array, np.ndarray)
    return records.split_fields(array, tf.identity) if is_array else records.map_fields(tf.identity, array)


def input_specs(config: Config, samples: int | None) -> Any:
    """Return the specs of the inputs of a user's model for a number of samples; bytes have become floats."""
    if config.dataset.dtype != records.RECORD:
        return tf.TensorSpec((samples, *config.model.input_shape), tf.float32)
    kept = cache.open_arrays(datasets.prepare(config))[0].dtype
    return records.split_fields(
        np.empty(0, kept), lambda field: tf.TensorSpec((samples, *field.shape[1:]), tf.as_dtype(field.dtype))
    )


def copy_to_host(batch: TfBatch) -> list[HostArrays]:
    """Return the parts of a batch as arrays in host memory."""
    return [tuple(records.map_fields(np.array, tensors) for tensors in part) for part in batch.parts]


def apply_in_slices(forward: Callable[[Any], tf.Tensor], samples: int, inputs: Any) -> tf.Tensor:
    """Apply `forward` to at most `samples` samples at a time."""
    return tf.concat([forward(inputs[first : first + samples]) for first in range(0, len(inputs), samples)], 0)
