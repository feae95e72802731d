"""Collective operations between the replicas of a tf.distribute.Strategy, one at a time, on buffers of a given size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from scalebench.strategies.base import NotMeasured
from scalebench.strategies.collective_check import Sum, made_by_all

FLOAT_BYTES = 4
OPERATIONS = ("all_reduce", "all_gather")  # a replica context has no others
GATHER_OTHERWISE = (tf.distribute.NcclAllReduce, tf.distribute.HierarchicalCopyAllReduce)


class Collective:
    """Does the operation once when called, as a compiled function over all replicas of this process.

    The function knows its buffers as arguments only: what compiled it is freed at some time, they with this.
    """

    def __init__(self, strategy: tf.distribute.Strategy, name: str, size_bytes: int) -> None:
        self.name, self._strategy = name, strategy
        self._results: list[tf.Tensor] = []
        parts = strategy.num_replicas_in_sync if name == "all_gather" else 1
        count = size_bytes // FLOAT_BYTES // parts
        self._sent = self._dealt(lambda replica: tf.zeros(count))
        operation = {"all_reduce": _all_reduce, "all_gather": _all_gather}[name]

        # An argument and not a constant, which would be worked out once, when the function is compiled.
        @tf.function(autograph=False)
        def run(sent: Any) -> Any:
            return strategy.experimental_local_results(strategy.run(operation, (sent,)))

        self._run = run

    def __call__(self) -> None:
        self._results = self._run(self._sent)

    def put(self, values: Callable[[int], np.ndarray]) -> None:
        """What each replica sends, by its number in the whole group; to see what comes of it."""
        self._sent = self._dealt(lambda replica: tf.constant(values(replica)))

    def results(self) -> dict[int, np.ndarray]:
        """What the replicas of this process have after the operation, by their numbers in the whole group."""
        numbers: list[int] = []
        self._dealt(lambda replica: tf.constant(numbers.append(replica) or 0))
        return {number: result.numpy() for number, result in zip(numbers, self._results, strict=True)}

    def _dealt(self, values: Callable[[int], tf.Tensor]) -> Any:
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values(context.replica_id_in_sync_group)
        )


def collective(strategy: tf.distribute.Strategy, add_up: Sum, name: str, size_bytes: int) -> Collective:
    """The action. NotMeasured, on all ranks alike, where the strategy lacks the operation or a rank the memory on its
    GPU; `add_up` gives sums over the processes."""
    if isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy):
        raise NotMeasured("central storage has no replicas of the weights, between which to exchange anything")
    if name not in OPERATIONS:
        raise NotMeasured(f"the replicas of a tf.distribute.Strategy have no {name}, only {' and '.join(OPERATIONS)}")
    by = getattr(strategy.extended, "_cross_device_ops", None)
    if name == "all_gather" and isinstance(by, GATHER_OTHERWISE):
        raise NotMeasured(f"{type(by).__name__} of TensorFlow cannot gather, and leaves it to another")
    return made_by_all(
        lambda: Collective(strategy, name, size_bytes),
        add_up,
        (tf.errors.ResourceExhaustedError,),
        f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
    )


def _all_reduce(sent: tf.Tensor) -> tf.Tensor:
    # The identity gives a tensor that came from outside a device, without which the sum has no destination.
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(sent))


def _all_gather(sent: tf.Tensor) -> tf.Tensor:
    return tf.distribute.get_replica_context().all_gather(tf.identity(sent), axis=0)
