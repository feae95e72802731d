"""Batches of numpy arrays: copied to the devices of this process for training, as `dataset.feed` and
`dataset.prefetch` say, and evaluated for validation metrics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from scalebench.strategies.base import GroupSum
from scalebench.strategies.tensorflow.picture_reader import read_with_tensorflow
from scalebench.workloads.prefetch import prefetch
from scalebench.workloads.source import Batch, Source

DevicePart = tuple[tf.Tensor, tf.Tensor]  # inputs and targets of one device
HostArrays = tuple[NDArray[Any], ...]  # the same in host memory


class TfBatch(NamedTuple):
    """One process's part of a global batch, split over its devices."""

    parts: tuple[DevicePart, ...]
    samples: int
    global_samples: tf.Tensor  # float32 scalar; a Python number would retrace the step


TfBatches = Generator[TfBatch, None, None]


def feed_batches(source: Source, devices: Sequence[str], feed: str, prefetch_mode: str) -> TfBatches:
    """Yield batches on `devices`, in the order of `source` for any feed; closing the generator ends its threads.

    `feed` is `dataset.feed`, `prefetch_mode` is `dataset.prefetch`. Each device gets a contiguous part of the process's
    samples; the sizes of parts differ by at most one.
    """
    source = read_with_tensorflow(source)
    if feed == "device":
        return _pick_resident(source, devices)
    if feed == "fixed":
        return _repeat_first(source, devices)
    if prefetch_mode == "none":
        return _place_each(source, devices)
    # queue: prepared in host memory. device: the thread also copies them, while the current step is running.
    return prefetch(_place_each(source, devices)) if prefetch_mode == "device" else _place_prefetched(source, devices)


def split_evenly(samples: int, devices: int) -> list[slice]:
    """Split the samples of a process into one slice per device."""
    share, rest = divmod(samples, devices)
    stops = [(index + 1) * share + min(index + 1, rest) for index in range(devices)]
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def place_batch(batch: Batch, devices: Sequence[str]) -> TfBatch:
    """Copy the parts of a batch to their devices."""
    parts = []
    for device, span in zip(devices, split_evenly(batch.samples, len(devices)), strict=True):
        parts.append(copy_to_device((batch.inputs[span], batch.targets[span]), device))
    return TfBatch(tuple(parts), batch.samples, tf.constant(batch.global_samples, tf.float32))


def copy_to_device(arrays: HostArrays, device: str) -> Any:
    """Return the arrays as tensors on the device."""
    with tf.device(device):
        return tuple(tf.identity(array) for array in arrays)


def copy_to_host(batch: TfBatch) -> list[HostArrays]:
    """Return the parts of a batch as arrays in host memory."""
    return [tuple(np.array(tensor) for tensor in part) for part in batch.parts]


def _place_each(source: Source, devices: Sequence[str]) -> TfBatches:
    for batch in source:
        yield place_batch(batch, devices)


def _place_prefetched(source: Source, devices: Sequence[str]) -> TfBatches:
    with closing(prefetch(source)) as ready:
        for batch in ready:
            yield place_batch(batch, devices)


def _repeat_first(source: Source, devices: Sequence[str]) -> TfBatches:
    batch = place_batch(next(iter(source)), devices)
    while True:
        yield batch


def _pick_resident(source: Source, devices: Sequence[str]) -> TfBatches:
    """Yield batches that are gathered on the devices from the full training set, which is copied there once.

    Every device needs the full set and not only one replica's part, since each epoch redistributes the samples.
    """
    resident = []
    for device in devices:
        with tf.device(device):
            resident.append(tuple(tf.identity(np.asarray(array)) for array in source.arrays()))
    epoch = 0
    while True:
        for update in range(source.steps_per_epoch):
            rows = source.batch_indices(epoch, update) - source.first
            yield _pick_rows(rows, source.global_samples(update), devices, resident)
        epoch += 1


def _pick_rows(
    rows: NDArray[Any], global_samples: int, devices: Sequence[str], resident: Sequence[DevicePart]
) -> TfBatch:
    parts = []
    for device, span, arrays in zip(devices, split_evenly(len(rows), len(devices)), resident, strict=True):
        with tf.device(device):
            index = tf.identity(rows[span])
            parts.append(tuple(tf.gather(array, index) for array in arrays))
    return TfBatch(tuple(parts), len(rows), tf.constant(global_samples, tf.float32))


Forward = Callable[[Any], tf.Tensor]


def regression_metrics(
    forward: Forward, source: Source, targets: Sequence[str], sum_over_group: GroupSum
) -> dict[str, float]:
    """Return 'mse' over all outputs, and 'mse_<target>' per output if targets are named, over all processes' samples.

    `forward` maps numpy inputs to the model's outputs. `sum_over_group` sums numbers over the processes; all of them
    must call this function.
    """
    sums, samples = np.zeros(1), 0
    for batch in read_with_tensorflow(source).in_order():
        errors = (forward(batch.inputs).numpy() - batch.targets).reshape(batch.samples, -1)
        sums = sums + np.square(errors, dtype=np.float64).sum(0)
        samples += batch.samples
    *totals, count = sum_over_group([*sums.tolist(), float(samples)])
    per_target = {f"mse_{name}": total / count for name, total in zip(targets, totals, strict=True)} if targets else {}
    return {"mse": sum(totals) / count / len(totals), **per_target}


def apply_in_slices(forward: Forward, samples: int, inputs: Any) -> tf.Tensor:
    """Apply `forward` to at most `samples` samples at a time."""
    return tf.concat([forward(inputs[first : first + samples]) for first in range(0, len(inputs), samples)], 0)


def classification_metrics(forward: Forward, source: Source, sum_over_group: GroupSum) -> dict[str, float]:
    """Return the mean cross entropy and the share of samples whose largest output is at the label ('accuracy').

    A sample with several labels counts with its mean over them. Parameters as in `regression_metrics`.
    """
    sums, samples = np.zeros(2), 0
    for batch in read_with_tensorflow(source).in_order():
        outputs = forward(batch.inputs)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.targets, outputs).numpy()
        correct = outputs.numpy().argmax(-1) == batch.targets
        means = [values.reshape(batch.samples, -1).mean(1, dtype=np.float64) for values in (losses, correct)]
        sums += [mean.sum() for mean in means]
        samples += batch.samples
    entropy, correct_count, count = sum_over_group([*sums.tolist(), float(samples)])
    return {"cross_entropy": entropy / count, "accuracy": correct_count / count}
