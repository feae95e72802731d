"""Horovod's collective operations, one at a time, on buffers of a given size; with TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from scalebench.adapters.horovod.operations import check
from scalebench.agreement import Sum, made_by_all

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
