"""Horovod with TensorFlow: a plain loop whose compiled step synchronizes each gradient as soon as it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import horovod
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from scalebench.core.spec import RunSpec
from scalebench.strategies.base import BatchReplay, GroupSum, create_on_all_ranks
from scalebench.strategies.horovod.group import HorovodGroup, check_operation
from scalebench.strategies.horovod.timeline import SyncObserver
from scalebench.strategies.tensorflow.base import TensorFlowStrategy

ROOT = 0
FLOAT_BYTES = 4
COMPRESSORS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodTensorFlowCollective:
    """One collective operation, done once per call outside of a compiled function, with a new result in each call."""

    def __init__(self, name: str, size_bytes: int, device: str) -> None:
        self.name, self._device, self._key = name, device, f"scalebench.{name}.{size_bytes}"
        self._result: tf.Tensor | None = None
        parts = hvd.size() if name == "all_gather" else 1
        with tf.device(device):
            self._sent = tf.zeros(size_bytes // FLOAT_BYTES // parts)
        # Unbound: a bound method would be a reference cycle, which frees the buffers late.
        self._run: Callable[[HorovodTensorFlowCollective], tf.Tensor] = getattr(HorovodTensorFlowCollective, f"_{name}")

    def __call__(self) -> None:
        with tf.device(self._device):
            self._result = self._run(self)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """Fill what this rank sends with `values` of its rank, for a check of the results."""
        with tf.device(self._device):
            self._sent = tf.constant(values(hvd.rank()))

    def results(self) -> dict[int, np.ndarray]:
        """Return the operation's result by this rank."""
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


def build_collective(sum_over_group: GroupSum, device: str, name: str, size_bytes: int) -> HorovodTensorFlowCollective:
    """Build a collective operation.

    Raises NotMeasured on all ranks if Horovod lacks the operation or any rank lacks memory on its GPU.
    """
    check_operation(hvd, name)
    return create_on_all_ranks(
        lambda: HorovodTensorFlowCollective(name, size_bytes, device),
        sum_over_group,
        (tf.errors.ResourceExhaustedError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


class HorovodTensorFlow(TensorFlowStrategy):
    """Gradients are reduced between the tape and the optimizer.

    hvd.DistributedOptimizer is not used: Keras 3 never calls its reduction, and replicas drift apart without an error.
    hvd.DistributedGradientTape finds no gradient for Keras 3's variables; its reduction is done here instead.
    """

    _group: HorovodGroup | None = None

    def __init__(self, spec: RunSpec, rank: int) -> None:
        super().__init__(spec, rank)
        self._buffers: dict[int, tf.Tensor] = {}  # by size in bytes

    def join(self) -> None:
        self._group = HorovodGroup(hvd, self.spec, self.place.rank, self.options)
        self._observer = SyncObserver(self._group, self.spec, self.place.rank, self.broadcast)

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
        return hvd.allreduce(gradient, op=op, compression=COMPRESSORS[self.options.compression], name=name)

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

    def message_sizes(self) -> list[int]:
        """Observe the messages of a few more steps under the timeline, which spoil the weights."""
        return self._observer.observe(self._train_more).message_bytes

    def run_isolated_sync(self, sizes: list[int]) -> None:
        """All-reduce one buffer after the other: together they would be fused again."""
        with tf.device(self.devices[0]):
            for size in sizes:
                if size not in self._buffers:
                    self._buffers[size] = tf.zeros(max(1, size // FLOAT_BYTES))
                hvd.allreduce(self._buffers[size], op=hvd.Sum, name=f"scalebench.buffer.{size}")

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return build_collective(self.sum_over_group, self.devices[0], name, size_bytes)

    def backend_used(self) -> str | None:
        return self._observer.observe(self._train_more).backend

    def sync_phases(self) -> tuple[int, dict[str, float]]:
        return self._observer.sync_phases(self._train_more)

    def record_timeline(self, path: Path, steps: int) -> dict[str, float]:
        return self._observer.record_timeline(self._train_more, steps, path)

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "horovod": horovod.__version__}

    def close(self) -> None:
        self._buffers.clear()
        if self._group is not None:
            self._group.leave()
            self._group = None

    def _train_more(self, steps: int) -> None:
        """Train more steps on the last batch."""
        if self.last_batch is None:
            raise RuntimeError("synchronization is observed on the training's last batch, and there was no training")
        self.train(BatchReplay(self.last_batch, steps))
