"""tf.distribute.MirroredStrategy: one process, a copy of the weights on each of its devices, gradients added up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from scalebench.strategies.tensorflow import collectives, observed, optimizer
from scalebench.strategies.tensorflow.base import TensorFlowStrategy
from scalebench.strategies.tensorflow.batches import Part
from scalebench.strategies.tensorflow.keras_fit import WithFit
from scalebench.strategies.tensorflow.probes import Share


@dataclass
class MirroredOptions:
    """Which of TensorFlow's cross_device_ops adds the gradients up, and who owns the loop."""

    cross_device_ops: str = "auto"  # auto | nccl | hierarchical_copy | reduce_to_cpu | reduce_to_device
    num_packs: int = 1  # of nccl and hierarchical_copy: messages that one update's gradients are packed into
    loop: str = "custom"  # custom | fit: a plain loop, or Keras'


def cross_device_ops(options: MirroredOptions, devices: list[str]) -> tf.distribute.CrossDeviceOps | None:
    """The object that MirroredStrategy takes; None: its own choice, which is a collective all-reduce."""
    known = {
        "auto": lambda: None,
        "nccl": lambda: tf.distribute.NcclAllReduce(options.num_packs),
        "hierarchical_copy": lambda: tf.distribute.HierarchicalCopyAllReduce(options.num_packs),
        "reduce_to_cpu": lambda: tf.distribute.ReductionToOneDevice("/CPU:0"),
        "reduce_to_device": lambda: tf.distribute.ReductionToOneDevice(devices[0]),
    }
    return known[options.cross_device_ops]()


class Replicated(TensorFlowStrategy):
    """Runs the replica's update through a tf.distribute.Strategy, `self.strategy`."""

    strategy: tf.distribute.Strategy
    _exchange: tuple[list[int], observed.AllReduce] | None = None

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def update(self, parts: tuple[Part, ...], global_samples: tf.Tensor) -> tf.Tensor:
        optimizer.set_exchange(self.optimizer, self.exchanging)
        sums = self.strategy.run(self.update_replica, (*self.dealt_out(parts), global_samples))
        # Not an AddN over the devices, which is how evidence knows the sums of gradients.
        return tf.reduce_sum(tf.stack(self.strategy.experimental_local_results(sums)))

    def each_device(self, parts: tuple[Part, ...], global_samples: tf.Tensor, back: bool) -> list[Share]:
        own = self.dealt_out(parts)
        if not back:
            sums = self.strategy.run(self.training_loss, own)
            return [Share(loss_sum, []) for loss_sum in self.strategy.experimental_local_results(sums)]
        sums, gradients = self.strategy.run(self.gradients, (*own, global_samples))
        of_devices = zip(*map(self.strategy.experimental_local_results, gradients), strict=True)
        loss_sums = self.strategy.experimental_local_results(sums)
        return [Share(one, list(of_device)) for one, of_device in zip(loss_sums, of_devices, strict=True)]

    def dealt_out(self, parts: tuple[Part, ...]) -> tuple[Any, Any]:
        """Inputs and targets as `strategy.run` takes them: each replica gets its own."""

        def of_replica(column: int) -> Any:
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: parts[context.replica_id_in_sync_group % len(parts)][column]
            )

        return of_replica(0), of_replica(1)

    def set_gradient_sync(self, on: bool) -> None:
        self.exchanging = on

    def message_sizes(self) -> list[int]:
        return observed.message_bytes(self.update_function().get_concrete_function())

    def run_isolated_sync(self, sizes: list[int]) -> None:
        if self.strategy.num_replicas_in_sync == 1:  # nobody to exchange with, and nothing is exchanged
            return
        if self._exchange is None or self._exchange[0] != sizes:
            self._exchange = sizes, observed.AllReduce(self.strategy, sizes)
        self._exchange[1]()

    def collective(self, name: str, size_bytes: int) -> Callable[[], None]:
        return collectives.collective(self.strategy, self.group_sum, name, size_bytes)

    def backend_used(self) -> str | None:
        return observed.observed_backend(self.train, self.update_function(), self.last_batch)


class Mirrored(WithFit, Replicated):
    """All devices of one process."""

    Options = MirroredOptions

    def shard(self) -> tuple[int, int]:
        return 0, 1  # this process reads whole batches, and deals them out to its devices

    def join(self) -> None:
        self.strategy = tf.distribute.MirroredStrategy(self.devices, cross_device_ops(self.options, self.devices))
