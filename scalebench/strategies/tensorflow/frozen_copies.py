"""Frozen copies on each device, with which steps of one copy of the weights leave out parts of its synchronization.

Devices that read the weights elsewhere have no step without synchronization of their own. Copies that nothing changes
stand in for what they would exchange: weights and slices of a batch on each device, and gradients beside the weights.
Such steps compute, depend on each other and update the weights as others do, so that the difference is the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.strategies.base import NotMeasured
from scalebench.strategies.tensorflow import batches
from scalebench.strategies.tensorflow.batches import DevicePart, TfBatch

GRADIENT_SHARE = 1e-3  # of its weight: a frozen gradient lets weights decay a little, which keeps losses finite
Tensors = Sequence[tf.Tensor]


class FrozenCopies:
    """The copies of one strategy. Its methods that return tensors are called while a step is traced.

    Weights and gradients are variables, since TensorFlow would fold constants into the operations that use them.
    """

    def __init__(self, devices: Sequence[str], trained: Sequence[Any], others: Sequence[Any] = ()) -> None:
        """Copy the Keras variables `trained`, and `others` that a forward pass reads, to each device.

        Raises NotMeasured where a device lacks the memory.
        """
        self._devices = devices
        try:
            values = [tf.convert_to_tensor(variable) for variable in [*trained, *others]]
            self._weights = [[_create_variable(value, device) for value in values] for device in devices]
            self._gradients = [
                _create_variable(GRADIENT_SHARE * value, variable.value.device)
                for variable, value in zip(trained, values, strict=False)
            ]
        except tf.errors.ResourceExhaustedError:
            raise NotMeasured("a second copy of the weights does not fit into the memory that training left") from None

    def read_weights(self, number: int) -> list[tf.Tensor]:
        """Return the copies on the device of this number: of trained variables, then of the others."""
        with tf.device(self._devices[number]):
            return [tf.identity(variable) for variable in self._weights[number]]

    def replace_gradients(self, per_device: Sequence[Tensors]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return (frozen gradients beside the weights, results that the step has to return).

        `per_device` are the results of each device: the real gradients, and others that have to be computed. A frozen
        gradient is ready when the nearest device has the real one: the device of the weight if it computes gradients,
        else the first one. So updates overlap with the rest of the backward pass as if the gradient had arrived.
        TensorFlow prunes what is used only as a control dependency, and sends what a step returns to one device; so one
        element of each result is used and returned.
        """
        elements = [_first_elements(results, device) for results, device in zip(per_device, self._devices, strict=True)]
        ready, arrived = [], []
        for number, frozen in enumerate(self._gradients):
            nearest = next((i for i, device in enumerate(self._devices) if is_same_device(device, frozen.device)), None)
            with tf.device(frozen.device):
                sign = elements[nearest or 0][number]
                if nearest is None:  # a kernel of a GPU is over when its result has arrived
                    arrived.append(sign := tf.identity(sign))
                with tf.control_dependencies([sign]):
                    ready.append(tf.identity(frozen))
        return ready, [_concatenate(each) for each in [*elements, arrived] if each]


class FrozenSlices:
    """The slices of one global batch, each on its device, for graphs that slice a batch themselves."""

    def __init__(self, devices: Sequence[str], batch: TfBatch, global_batch: int) -> None:
        """Freeze a full global batch: `batch` may be smaller, and its samples are repeated."""
        ((inputs, targets),) = batches.copy_to_host(batch)
        rows, share = np.arange(global_batch) % batch.samples, global_batch // len(devices)
        parts = [*np.split(rows, [share * number for number in range(1, len(devices))])]
        self._parts: list[DevicePart] = [
            batches.copy_to_device((inputs[part], targets[part]), device)
            for device, part in zip(devices, parts, strict=True)
        ]
        self._devices = devices

    def take(self, samples: tf.Tensor, column: int) -> list[tf.Tensor]:
        """Return a slice of inputs (column 0) or targets (1) on each device, as large as those of so many samples."""
        share, count, slices = samples // len(self._devices), len(self._devices), []
        for number, (device, part) in enumerate(zip(self._devices, self._parts, strict=True)):
            with tf.device(device):
                size = share if number < count - 1 else samples - (count - 1) * share
                slices.append(part[column][:size])
        return slices


def _first_elements(tensors: Tensors, device: str) -> list[tf.Tensor]:
    with tf.device(device):
        return [tf.reshape(tensor, [-1])[:1] for tensor in tensors]


def _concatenate(tensors: Tensors) -> tf.Tensor:
    with tf.device(tensors[0].device):
        return tf.concat(tensors, 0)


def is_same_device(device: str, other: str) -> bool:
    """Compare names that may leave out the process, as '/GPU:0' does."""
    first, second = map(tf.DeviceSpec.from_string, (device, other))
    return (first.device_type, first.device_index) == (second.device_type, second.device_index)


def _create_variable(value: tf.Tensor, device: str) -> tf.Variable:
    with tf.device(device):
        return tf.Variable(tf.identity(value), trainable=False)
