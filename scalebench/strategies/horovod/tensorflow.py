"""Horovod with TensorFlow: a plain loop whose compiled step synchronizes each gradient as soon as it is computed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from scalebench.strategies.horovod.group import HorovodGroup
from scalebench.strategies.horovod.probes import HorovodProbes
from scalebench.strategies.horovod.timeline import SyncObserver
from scalebench.strategies.tensorflow.base import TensorFlowStrategy


class HorovodTensorFlow(HorovodProbes, TensorFlowStrategy):
    """Gradients are reduced between the tape and the optimizer.

    hvd.DistributedOptimizer is not used: Keras 3 never calls its reduction, and replicas drift apart without an error.
    hvd.DistributedGradientTape finds no gradient for Keras 3's variables; its reduction is done here instead.
    """

    library = hvd
    out_of_memory = tf.errors.ResourceExhaustedError
    _group: HorovodGroup | None = None

    def join(self) -> None:
        self._group = HorovodGroup(hvd, self.spec, self.place.rank, self.options)
        self.observer = SyncObserver(self._group, self.spec, self.place.rank, self.broadcast, self.train_more)

    def on_device(self) -> AbstractContextManager[Any]:
        return tf.device(self.devices[0])

    def to_tensor(self, array: np.ndarray) -> tf.Tensor:
        return tf.constant(array)

    def to_array(self, tensor: tf.Tensor) -> np.ndarray:
        return tensor.numpy()

    def setup(self) -> None:
        super().setup()
        # All ranks start from rank 0's weights. The optimizer has no state yet that could differ, and the state of
        # random layers differs between ranks on purpose.
        weights = [variable.value for variable in self.model.weights if tf.as_dtype(variable.dtype).is_floating]
        hvd.broadcast_variables(weights, root_rank=0)

    def replica_step(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        loss_sum, gradients = self.compute_gradients(inputs, targets, global_samples)
        # Horovod's own tape does not reduce gradients of a single process either.
        if self.syncs_gradients and self.spec.processes > 1:
            gradients = [self._reduce(gradient, f"gradient.{index}") for index, gradient in enumerate(gradients)]
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def _reduce(self, gradient: tf.Tensor, name: str) -> tf.Tensor:
        op = hvd.Adasum if self.options.op == "adasum" else hvd.Sum
        return hvd.allreduce(gradient, op=op, compression=self.compressor, name=name)

    def loss_divisor(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Return this replica's samples under Adasum, which weights the replicas' own means itself."""
        if self.options.op == "adasum":
            return tf.cast(tf.shape(tf.nest.flatten(inputs)[0])[0], tf.float32)
        return super().loss_divisor(inputs, global_samples)

    def broadcast(self, value: float) -> float:
        with tf.device("/CPU:0"):
            return float(hvd.broadcast(tf.constant(value, tf.float64), root_rank=0, name="scalebench.number"))

    def sum_over_group(self, values: list[float]) -> list[float]:
        with tf.device("/CPU:0"):
            numbers = tf.constant(values, tf.float64)
            return hvd.allreduce(numbers, op=hvd.Sum, name=f"scalebench.sum.{len(values)}").numpy().tolist()

    def set_gradient_sync(self, on: bool) -> None:
        self.syncs_gradients = on

    def close(self) -> None:
        super().close()
        if self._group is not None:
            self._group.leave()
            self._group = None
