"""Training without gradient synchronization: on one device, as the baseline of every TensorFlow strategy, and as
independent replicas, as the control that isolates everything except communication."""

from __future__ import annotations

import tensorflow as tf

from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.cluster import WorkerGroup
from scalebench.strategies.tensorflow.keras_fit import FitStrategy


class BareTensorFlow(FitStrategy):
    """The `bare` baseline on one device, without tf.distribute and without a process group."""

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no synchronization to switch off."""


class IndependentTensorFlow(TensorFlowStrategy):
    """Bare replicas that train side by side, each on its own part of the samples. The worker group carries only
    broadcasts and metrics: model and optimizer are created outside its scope and are not synchronized."""

    def join(self) -> None:
        # A ring on GPUs as well: only a few numbers are sent, and never within a timed block.
        self.workers = WorkerGroup(self.spec, self.place.rank, self.devices, "ring")

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Return the samples of this replica, since its gradients are not added to those of others."""
        return tf.cast(tf.shape(tf.nest.flatten(inputs)[0])[0], tf.float32)

    def set_gradient_sync(self, on: bool) -> None:
        """Do nothing: there is no synchronization to switch off."""
