"""numpy batches -> tensors on the devices of this process, as `dataset.feed` and `dataset.prefetch` ask for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.workloads.prefetch import prefetch
from scalebench.workloads.source import Batch, Source

Part = tuple[tf.Tensor, tf.Tensor]  # inputs, targets of one device
Arrays = tuple[NDArray[Any], ...]  # the same in host memory


class TfBatch(NamedTuple):
    """One process's part of a global batch, dealt out to its devices."""

    parts: tuple[Part, ...]
    samples: int
    global_samples: tf.Tensor  # float32 scalar; a Python number would trace the update anew


TfBatches = Generator[TfBatch, None, None]


def batches(source: Source, devices: Sequence[str], feed: str, ahead: str) -> TfBatches:
    """Batches on `devices`, in the order of `source` whatever the feed; closing it ends the threads behind it.

    `feed` and `ahead` as in adapters.torch.feeding. Each device gets a contiguous part of the process's samples;
    parts differ by at most one.
    """
    if feed == "device":
        return _resident(source, devices)
    if feed == "fixed":
        return _repeated(source, devices)
    if ahead == "none":
        return _placed(source, devices)
    # queue: made ready in host memory. device: copied in the thread as well, beside the update that is running.
    return prefetch(_placed(source, devices)) if ahead == "device" else _queued(source, devices)


def spans(samples: int, devices: int) -> list[slice]:
    """Which of a process's samples each device gets."""
    share, rest = divmod(samples, devices)
    stops = [(index + 1) * share + min(index + 1, rest) for index in range(devices)]
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def place(batch: Batch, devices: Sequence[str]) -> TfBatch:
    """Its parts as tensors, each on its device."""
    parts = []
    for device, span in zip(devices, spans(batch.samples, len(devices)), strict=True):
        parts.append(put((batch.inputs[span], batch.targets[span]), device))
    return TfBatch(tuple(parts), batch.samples, tf.constant(batch.global_samples, tf.float32))


def put(arrays: Arrays, device: str) -> Any:
    """Tensors on that device."""
    with tf.device(device):
        return tuple(tf.identity(array) for array in arrays)


def on_host(batch: TfBatch) -> list[Arrays]:
    """Its parts as arrays in host memory."""
    return [tuple(np.array(tensor) for tensor in part) for part in batch.parts]


def _placed(source: Source, devices: Sequence[str]) -> TfBatches:
    for batch in source:
        yield place(batch, devices)


def _queued(source: Source, devices: Sequence[str]) -> TfBatches:
    with closing(prefetch(source)) as ready:
        for batch in ready:
            yield place(batch, devices)


def _repeated(source: Source, devices: Sequence[str]) -> TfBatches:
    batch = place(next(iter(source)), devices)
    while True:
        yield batch


def _resident(source: Source, devices: Sequence[str]) -> TfBatches:
    """Every batch picked on the devices from the whole training set, which is copied there once.

    All of it and not one replica's part, since each epoch deals the samples anew.
    """
    whole = []
    for device in devices:
        with tf.device(device):
            whole.append(tuple(tf.identity(np.asarray(array)) for array in source.arrays()))
    epoch = 0
    while True:
        for update in range(source.steps_per_epoch):
            rows = source.batch_indices(epoch, update) - source.first
            yield _picked(rows, source.global_samples(update), devices, whole)
        epoch += 1


def _picked(rows: NDArray[Any], global_samples: int, devices: Sequence[str], whole: Sequence[Part]) -> TfBatch:
    parts = []
    for device, span, arrays in zip(devices, spans(len(rows), len(devices)), whole, strict=True):
        with tf.device(device):
            index = tf.identity(rows[span])
            parts.append(tuple(tf.gather(array, index) for array in arrays))
    return TfBatch(tuple(parts), len(rows), tf.constant(global_samples, tf.float32))
