"""The group of processes that MultiWorkerMirroredStrategy forms, one worker each, and numbers put together over it."""

from __future__ import annotations

import tensorflow as tf

from scalebench.adapters.tensorflow import cluster
from scalebench.spec import InputError, RunSpec
from scalebench.suggest import no_such

IMPLEMENTATIONS = {"auto": "AUTO", "ring": "RING", "nccl": "NCCL"}


class Workers:
    """This process's membership. Gradients of a model made under `strategy.scope()` travel by `backend`."""

    def __init__(self, spec: RunSpec, rank: int, devices: list[str], backend: str, bytes_per_pack: int = 0) -> None:
        """Join; every process of the run has to. Comes before anything else is done with `devices`."""
        if backend not in IMPLEMENTATIONS:
            raise InputError(no_such("strategy.backend", backend, IMPLEMENTATIONS))
        everyone = cluster.addresses()
        _wait_as_long_as(spec.group_timeout_s, len(everyone))
        experimental = tf.distribute.experimental
        options = experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=experimental.CommunicationImplementation[IMPLEMENTATIONS[backend]],
        )
        resolver = cluster.resolver({"worker": everyone}, "worker", rank, devices)
        with cluster.port_of(rank):
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        self._rank, self._device = rank, devices[0]
        self._total = tf.function(self._add_up, input_signature=[tf.TensorSpec((None,), tf.float64)])

    def broadcast(self, value: float) -> float:
        """Rank 0's value on every rank."""
        return self.sum([value if self._rank == 0 else 0.0])[0]

    def sum(self, values: list[float]) -> list[float]:
        """Sums over the workers, all of which have to call this."""
        with tf.device(self._device):
            totals = self._total(tf.constant(values, tf.float64))
        return [float(total) for total in totals.numpy()]

    def _add_up(self, values: tf.Tensor) -> tf.Tensor:
        return self.strategy.run(_total, (values,))


def _total(mine: tf.Tensor) -> tf.Tensor:
    # The identity gives the tensor a device, without which the all-reduce has no destination.
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(mine))


def _wait_as_long_as(limit_s: float, workers: int) -> None:
    """Have the group's heartbeats and its meeting take so long.

    TensorFlow's own 10 s would call a worker dead that a debugger or SIGSTOP holds. One that is really dead is
    the launcher's to see. CommunicationOptions has a timeout too, which starts a thread for every collective.
    """
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.eager import context

    limit_ms = int(limit_s * 1000)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=limit_ms,
        heartbeat_timeout_in_ms=limit_ms,
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=workers)],
    )
