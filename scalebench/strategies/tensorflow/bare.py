"""One device, no tf.distribute: what every TensorFlow strategy is compared with.

Replicas that train beside each other and never talk: the control for everything but communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.keras_fit import WithFit
from scalebench.strategies.tensorflow.multiworker import Workers


@dataclass
class BareOptions:
    """Who owns the loop."""

    loop: str = "custom"  # custom | fit: a plain loop, or Keras'


class BareTensorFlow(WithFit):
    """The `bare` baseline. It forms no group and exchanges nothing."""

    Options = BareOptions

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""


class IndependentTensorFlow(TensorFlowStrategy):
    """N times bare, each on its own part of the samples. The group carries the deadline and the metrics; model and
    optimizer are made outside its scope, so that it knows nothing of them."""

    workers: Workers

    def join(self) -> None:
        # A ring also on GPUs: a few numbers, and none of them in a timed block.
        self.workers = Workers(self.spec, self.place.rank, self.devices, "ring")

    def loss_samples(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Each replica follows the mean over its own samples, since its gradients are added to no other's."""
        return tf.cast(tf.shape(inputs)[0], tf.float32)

    def set_gradient_sync(self, on: bool) -> None:
        """There is none to turn off."""

    def broadcast(self, value: float) -> float:
        return self.workers.broadcast(value)

    def group_sum(self, values: list[float]) -> list[float]:
        return self.workers.sum(values)
