"""Data parallelism with tf.distribute: replicas with a copy of the weights on each device, whose gradients are summed.
MirroredStrategy drives all devices from one process, MultiWorkerMirroredStrategy has a process for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle
from typing import Any

import tensorflow as tf

from scalebench.strategies.base import NotMeasured, create_on_all_ranks
from scalebench.strategies.tensorflow import optimizer
from scalebench.strategies.tensorflow.base import Exchange, TensorFlowStrategy, Tensors
from scalebench.strategies.tensorflow.batches import DevicePart
from scalebench.strategies.tensorflow.cluster import WorkerGroup
from scalebench.strategies.tensorflow.keras_fit import FitStrategy

FLOAT_BYTES = 4
REPLICA_COLLECTIVES = ("all_reduce", "all_gather")  # the only ones of a tf.distribute replica context
CANNOT_GATHER = (tf.distribute.NcclAllReduce, tf.distribute.HierarchicalCopyAllReduce)


class ReplicaCollective(Exchange):
    """A collective operation of all replicas of this process, on one buffer or on several at once."""

    def __init__(self, strategy: tf.distribute.Strategy, name: str, sizes_bytes: Sequence[int]) -> None:
        parts = strategy.num_replicas_in_sync if name == "all_gather" else 1
        counts = [max(1, size_bytes // FLOAT_BYTES // parts) for size_bytes in sizes_bytes]

        def run_on_replica(buffers: list[tf.Tensor]) -> list[tf.Tensor]:
            # The identity places a tensor from outside on a device, without which the sum has no destination.
            local, context = [tf.identity(buffer) for buffer in buffers], tf.distribute.get_replica_context()
            is_sum = name == "all_reduce"
            return (
                context.all_reduce(tf.distribute.ReduceOp.SUM, local) if is_sum else context.all_gather(local, axis=0)
            )

        def run(buffers: list[Any]) -> Any:
            return [strategy.experimental_local_results(each) for each in strategy.run(run_on_replica, (buffers,))]

        distribute = strategy.experimental_distribute_values_from_function
        super().__init__(run, [distribute(lambda _, count=count: tf.zeros(count)) for count in counts])


class ReductionInTurns(tf.distribute.ReductionToOneDevice):
    """Sums tensor i of a step on device i modulo their number, as CopyToDeviceAlgorithm of tf_cnn_benchmarks does."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__(devices[0])
        self._turns = [tf.distribute.ReductionToOneDevice(device) for device in devices]

    def batch_reduce_implementation(
        self, reduce_op: tf.distribute.ReduceOp, value_destination_pairs: list[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        return [
            turn.reduce(reduce_op, value, destinations, options)
            for turn, (value, destinations) in zip(cycle(self._turns), value_destination_pairs, strict=False)
        ]


def create_cross_device_ops(options: Any, devices: list[str]) -> tf.distribute.CrossDeviceOps | None:
    """Create the object that MirroredStrategy takes; None stands for its default, a collective all-reduce."""
    factories = {
        "auto": lambda: None,
        "nccl": lambda: tf.distribute.NcclAllReduce(options.num_packs),
        "hierarchical_copy": lambda: tf.distribute.HierarchicalCopyAllReduce(options.num_packs),
        "reduce_to_cpu": lambda: tf.distribute.ReductionToOneDevice("/CPU:0"),
        "reduce_to_device": lambda: tf.distribute.ReductionToOneDevice(devices[0]),
        "reduce_spread": lambda: ReductionInTurns(devices),
    }
    return factories[options.cross_device_ops]()


class Replicated(TensorFlowStrategy):
    """The base of strategies that run the replicas' steps through a tf.distribute.Strategy, `self.strategy`."""

    strategy: tf.distribute.Strategy

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def compute_step(self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor) -> tf.Tensor:
        optimizer.set_gradient_reduction(self.optimizer, self.syncs_gradients)
        sums = self.strategy.run(self.replica_step, (*self.per_replica(parts), global_samples))
        # Not an AddN over the devices, by which profiling.reduction_operations recognizes sums of gradients.
        return tf.reduce_sum(tf.stack(self.strategy.experimental_local_results(sums)))

    def compute_per_device(
        self, parts: tuple[DevicePart, ...], global_samples: tf.Tensor, backward: bool
    ) -> list[Tensors]:
        compute = partial(self.compute, backward=backward)
        results = self.strategy.run(compute, (*self.per_replica(parts), global_samples))
        return [list(each) for each in zip(*map(self.strategy.experimental_local_results, results), strict=True)]

    def per_replica(self, parts: tuple[DevicePart, ...]) -> tuple[Any, Any]:
        """Return inputs and targets as per-replica values for `strategy.run`."""

        def distribute(column: int) -> Any:
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: parts[context.replica_id_in_sync_group % len(parts)][column]
            )

        return distribute(0), distribute(1)

    def set_gradient_sync(self, on: bool) -> None:
        self.syncs_gradients = on

    def create_exchange(self, sizes: list[int]) -> Exchange:
        return ReplicaCollective(self.strategy, "all_reduce", sizes)

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        """Create the operation. Raises NotMeasured on all ranks if replicas lack it, or a GPU lacks the memory."""
        if isinstance(self.strategy, tf.distribute.experimental.CentralStorageStrategy):
            raise NotMeasured("central storage has no replicas of the weights, between which to exchange anything")
        if name not in REPLICA_COLLECTIVES:
            available = " and ".join(REPLICA_COLLECTIVES)
            raise NotMeasured(f"the replicas of a tf.distribute.Strategy have no {name}, only {available}")
        cross_device_ops = getattr(self.strategy.extended, "_cross_device_ops", None)
        if name == "all_gather" and isinstance(cross_device_ops, CANNOT_GATHER):
            raise NotMeasured(
                f"{type(cross_device_ops).__name__} of TensorFlow cannot gather, and leaves it to another"
            )
        return create_on_all_ranks(
            lambda: ReplicaCollective(self.strategy, name, [size_bytes]),
            self.sum_over_group,
            (tf.errors.ResourceExhaustedError,),
            f"buffers of {size_bytes} bytes do not fit into the memory that training left on the GPUs",
        )


class Mirrored(FitStrategy, Replicated):
    """tf.distribute.MirroredStrategy over all devices of one process."""

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads full batches and splits them over its devices

    def join(self) -> None:
        self.strategy = tf.distribute.MirroredStrategy(
            self.devices, create_cross_device_ops(self.options, self.devices)
        )


class MultiWorker(Replicated):
    """MultiWorkerMirroredStrategy; `strategy.backend` chooses what synchronizes the gradients: auto, ring or nccl."""

    def join(self) -> None:
        backend = self.spec.config.strategy.backend or "auto"
        self.workers = WorkerGroup(self.spec, self.place.rank, self.devices, backend, self.options.bytes_per_pack)
        self.strategy = self.workers.strategy

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        """Run the model on this process's replica with its own moving statistics: to read their mean is a collective,
        and workers may have different numbers of validation batches."""
        return self.strategy.run(super().forward, (inputs,))
