"""An optimizer for the weights of each device, made and run there; together they are used as one.

A single one of Keras would put all gradients through one operation, to add them up over replicas, and its steps, which
name no device, on the first one: the gradients and weights of the others would go there and back in every update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import keras
import tensorflow as tf

from scalebench.adapters.tensorflow import training


class StageOptimizers:
    """What the strategies use of an optimizer, but for a scale of the loss."""

    def __init__(self, make: Callable[[], training.Decaying]) -> None:
        self._make = make
        self.of_device: dict[str, training.Decaying] = {}

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for one in self.of_device.values() for variable in one.variables]

    def build(self, variables: Iterable[keras.Variable]) -> None:
        of_device: dict[str, list[keras.Variable]] = {}
        for variable in variables:
            of_device.setdefault(variable.value.device, []).append(variable)
        for device, own in of_device.items():
            with tf.device(device):
                self.of_device[device] = self._make()
                self.of_device[device].build(own)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[keras.Variable]) -> None:
        pairs = list(zip(gradients, variables, strict=True))
        for device, optimizer in self.of_device.items():
            own = [(gradient, variable) for gradient, variable in pairs if variable.value.device == device]
            with tf.device(device):
                optimizer.apply(*zip(*own, strict=True))

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self.of_device.values():
            training.set_learning_rate(optimizer, rate)
