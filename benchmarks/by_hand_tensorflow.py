"""The TensorFlow loop that its tutorials teach, for materials_cnn: Keras layers, tf.data, a step in a tf.function."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import Strategy
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache


def materials_cnn() -> keras.Model:
    """The network of the benchmark, written out."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((200, 3)),
            layers.Conv1D(16, 7, padding="same", activation="relu"),
            layers.MaxPooling1D(2),
            layers.Conv1D(24, 7, padding="same", activation="relu"),
            layers.MaxPooling1D(2),
            layers.Flatten(),
            layers.Dense(125, activation="relu"),
            layers.Dense(2),
        ]
    )


class ByHand:
    """A hand-written loop, under the same tf.distribute strategy as the measured one, where there is one."""

    def __init__(self, spec: RunSpec, rank: int, strategy: Strategy) -> None:
        self.distribute = getattr(strategy, "strategy", None) or tf.distribute.get_strategy()
        arrays = tuple(np.array(array) for array in cache.open_arrays(datasets.prepare(spec.config)))
        horovod = "horovod" in spec.config.strategy.requires  # each process reads a part of its own
        data = tf.data.Dataset.from_tensor_slices(arrays).shuffle(10_000).repeat()
        data = data.batch(spec.batch_per_device if horovod else spec.global_batch, drop_remainder=True).prefetch(2)
        self.batches = iter(self.distribute.experimental_distribute_dataset(data))
        self.global_batch = spec.global_batch
        with self.distribute.scope():
            self.model = materials_cnn()
            self.optimizer = keras.optimizers.Adam(spec.config.train.learning_rate)
            self.optimizer.build(self.model.trainable_variables)
        self.horovod = None
        if horovod:
            import horovod.tensorflow as hvd

            self.horovod = hvd
            hvd.broadcast_variables([variable.value for variable in self.model.variables], root_rank=0)
        self.step = tf.function(lambda batch: self.distribute.run(self._replica, batch))

    def _replica(self, inputs: tf.Tensor, targets: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(self.model(inputs, training=True), targets)
            loss = tf.reduce_sum(tf.reduce_mean(errors, -1)) / self.global_batch
        if self.horovod is not None:
            tape = self.horovod.DistributedGradientTape(tape, op=self.horovod.Sum)
        gradients = tape.gradient(loss, [variable.value for variable in self.model.trainable_variables])
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step(next(self.batches))
