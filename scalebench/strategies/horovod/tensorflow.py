"""Horovod with TensorFlow: a plain loop whose compiled update exchanges each gradient as soon as there is one.

Horovod's collective operations, one at a time, on buffers of a given size; with TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from scalebench.strategies.collective_check import Sum, made_by_all
from scalebench.strategies.horovod.group import HorovodOptions, Membership, check
from scalebench.strategies.horovod.timeline import Exchange, Observer
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.observed import Replay

ROOT = 0
FLOAT_BYTES = 4


class Collective:
    """Does the operation once when called, outside of a compiled function; the result is made anew in each call."""

    def __init__(self, name: str, size_bytes: int, device: str) -> None:
        self.name, self._device, self._key = name, device, f"scalebench.{name}.{size_bytes}"
        self._result: tf.Tensor | None = None
        parts = hvd.size() if name == "all_gather" else 1
        with tf.device(device):
            self._sent = tf.zeros(size_bytes // FLOAT_BYTES // parts)
        self._do: Callable[[Collective], tf.Tensor] = getattr(Collective, f"_{name}")  # bound, it would outlive its use

    def __call__(self) -> None:
        with tf.device(self._device):
            self._result = self._do(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """What this rank sends, by its number; to see what comes of it."""
        with tf.device(self._device):
            self._sent = tf.constant(values(hvd.rank()))

    def results(self) -> dict[int, np.ndarray]:
        """What this rank has after the operation, by its number."""
        return {} if self._result is None else {hvd.rank(): self._result.numpy()}

    def _all_reduce(self) -> tf.Tensor:
        return hvd.allreduce(self._sent, op=hvd.Sum, name=self._key)

    def _broadcast(self) -> tf.Tensor:
        return hvd.broadcast(self._sent, root_rank=ROOT, name=self._key)

    def _all_gather(self) -> tf.Tensor:
        return hvd.allgather(self._sent, name=self._key)

    def _reduce_scatter(self) -> tf.Tensor:
        return hvd.reducescatter(self._sent, op=hvd.Sum, name=self._key)

    def _all_to_all(self) -> tf.Tensor:
        return hvd.alltoall(self._sent, name=self._key)


def collective(add_up: Sum, device: str, name: str, size_bytes: int) -> Collective:
    """The action. Unsupported, on all ranks alike, where Horovod lacks the operation or a rank the memory on its GPU;
    `add_up` gives sums over the ranks."""
    check(hvd, name)
    return made_by_all(
        lambda: Collective(name, size_bytes, device),
        add_up,
        (tf.errors.ResourceExhaustedError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


COMPRESSORS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodTensorFlow(TensorFlowStrategy):
    """Gradients are reduced between tape and optimizer.

    Not hvd.DistributedOptimizer: Keras 3 never asks it, and replicas drift apart without an error.
    hvd.DistributedGradientTape finds no gradient for Keras 3's variables; what it does with others is done here.
    """

    Options = HorovodOptions
    _membership: Membership | None = None

    def join(self) -> None:
        self._membership = Membership(hvd, self.spec, self.place.rank, self.options)
        self._observer = Observer(self._membership, self.place.rank, self.broadcast, self.options)

    def setup(self) -> None:
        super().setup()
        # Rank 0's weights for all. The optimizer has no state yet that could differ.
        # States of random layers are each rank's own.
        weights = [variable.value for variable in self.model.weights if tf.as_dtype(variable.dtype).is_floating]
        hvd.broadcast_variables(weights, root_rank=0)

    def update_replica(self, inputs: tf.Tensor, targets: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        loss_sum, gradients = self.gradients(inputs, targets, global_samples)
        if self.exchanging and self.spec.processes > 1:  # alone, Horovod's own tape hands gradients through as well
            gradients = [self._reduced(one, f"gradient.{index}") for index, one in enumerate(gradients)]
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss_sum

    def _reduced(self, gradient: tf.Tensor, name: str) -> tf.Tensor:
        op = hvd.Adasum if self.options.op == "adasum" else hvd.Sum
        return hvd.allreduce(gradient, op=op, compression=COMPRESSORS[self.options.compression], name=name)

    def loss_samples(self, inputs: tf.Tensor, global_samples: tf.Tensor) -> tf.Tensor:
        """Adasum is given each replica's own mean, and finds weights of its own."""
        if self.options.op == "adasum":
            return tf.cast(tf.shape(inputs)[0], tf.float32)
        return super().loss_samples(inputs, global_samples)

    def broadcast(self, value: float) -> float:
        with tf.device("/CPU:0"):
            return float(hvd.broadcast(tf.constant(value, tf.float64), root_rank=0, name="scalebench.number"))

    def group_sum(self, values: list[float]) -> list[float]:
        with tf.device("/CPU:0"):
            numbers = tf.constant(values, tf.float64)
            return hvd.allreduce(numbers, op=hvd.Sum, name=f"scalebench.sum.{len(values)}").numpy().tolist()

    def set_gradient_sync(self, on: bool) -> None:
        self.exchanging = on

    def message_sizes(self) -> list[int]:
        """From a few more updates under the timeline, which spoil the weights."""
        return self._observed().message_bytes

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """One buffer after the other: together they would be fused anew."""
        with tf.device(self.devices[0]):
            for size in sizes:
                hvd.allreduce(tf.zeros(max(1, size // 4)), op=hvd.Sum, name=f"scalebench.buffer.{size}")

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return collective(self.group_sum, self.devices[0], name, size_bytes)

    def backend_used(self) -> str | None:
        return self._observed().backend

    def record_timeline(self, path: Path, updates: int) -> dict[str, float]:
        return self._observer.keep(self._again, updates, path)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "horovod": horovod.__version__}

    def close(self) -> None:
        if self._membership is not None:
            self._membership.leave()
            self._membership = None

    def _observed(self) -> Exchange:
        return self._observer.seen(self._again)

    def _again(self, updates: int) -> None:
        """Train on the last batch so many times more."""
        if self.last_batch is None:
            raise RuntimeError("the exchange is observed on the last batch of the training, and there was no training")
        self.train(Replay(self.last_batch, updates))
