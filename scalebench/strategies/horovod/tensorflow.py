"""Horovod with TensorFlow: a plain loop whose compiled step synchronizes each gradient as soon as it is computed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from scalebench.strategies.horovod.group import HorovodGroup
from scalebench.strategies.horovod.probes import HorovodProbes
from scalebench.strategies.tensorflow.base import TensorFlowStrategy


class HorovodTensorFlow(HorovodProbes, TensorFlowStrategy):
    """Gradients are reduced between the tape and the optimizer.

    hvd.DistributedOptimizer is not used: Keras 3 never calls its reduction, and replicas drift apart without an error.
    hvd.DistributedGradientTape finds no gradient for Keras 3's variables; its reduction is done here instead.
    """

    library = hvd
    out_of_memory = tf.errors.ResourceExhaustedError

    def join(self) -> None:
        tensor, on_cpu = partial(tf.constant, dtype=tf.float64), partial(tf.device, "/CPU:0")
        self.group = HorovodGroup(hvd, self.spec, self.place.rank, self.options, tensor, on_cpu)

    def on_device(self) -> AbstractContextManager[Any]:
        return tf.device(self.devices[0])

    def to_tensor(self, array: np.ndarray) -> tf.Tensor:
        return tf.constant(array)

    def setup(self) -> None:
        super().setup()
        # All ranks start from rank 0's weights. The optimizer has no state yet that could differ, and the state of
        # random layers differs between ranks on purpose.
        weights = [variable.value for variable in self.model.weights if tf.as_dtype(variable.dtype).is_floating]
        hvd.broadcast_variables(weights, root_rank=0)

    def replica_step(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        loss_sum, *gradients = self.compute(inputs, targets, global_samples, backward=True)
        # Horovod's own tape does not reduce gradients of a single process either.
        if self.syncs_gradients and self.spec.processes > 1:
            op = hvd.Adasum if self.options.op == "adasum" else hvd.Sum
            gradients = [
                hvd.allreduce(gradient, op=op, compression=self.compressor, name=f"gradient.{index}")
                for index, gradient in enumerate(gradients)
            ]
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Return this replica's samples under Adasum, which weights the replicas' own means itself."""
        if self.options.op == "adasum":
            return tf.cast(tf.shape(tf.nest.flatten(inputs)[0])[0], tf.float32)
        return super().loss_divisor(inputs, global_samples)

    def set_gradient_sync(self, on: bool) -> None:
        self.syncs_gradients = on

    def close(self) -> None:
        super().close()
        if hasattr(self, "group"):
            self.group.leave()
