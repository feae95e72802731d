"""tf.distribute.MultiWorkerMirroredStrategy: a process with its copy of the weights for each device, gradients
added up.

The processes of a run as TensorFlow's cluster: who is where.

The group of processes that MultiWorkerMirroredStrategy forms, one worker each, and numbers put together over it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf

from scalebench.core.errors import InputError, no_such
from scalebench.core.spec import RunSpec
from scalebench.strategies.tensorflow.mirrored import Replicated

ADDRESSES = "SCALEBENCH_ADDRESSES"  # of all ranks in order, host:port each, from the launcher


def addresses() -> list[str]:
    """host:port of every rank. RuntimeError outside a launched process."""
    found = os.environ.get(ADDRESSES)
    if not found:
        raise RuntimeError(f"{ADDRESSES} is not set: a launcher of scalebench has to start the processes of a cluster")
    return found.split(",")


@contextmanager
def port_of(rank: int) -> Iterator[None]:
    """Around what starts this rank's server, which says only that it could not."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        raise RuntimeError(f"{addresses()[rank]} was taken by another program; run it again") from None


def resolver(
    jobs: dict[str, list[str]], job: str, index: int, devices: Sequence[str]
) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """What TF_CONFIG would say: the addresses of each job, which task of which job this is, and what it has."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=job,
        task_id=index,
        rpc_layer="grpc",
        num_accelerators={"GPU": sum("GPU" in device for device in devices)},
    )


IMPLEMENTATIONS = {"auto": "AUTO", "ring": "RING", "nccl": "NCCL"}


class Workers:
    """This process's membership. Gradients of a model made under `strategy.scope()` travel by `backend`."""

    def __init__(self, spec: RunSpec, rank: int, devices: list[str], backend: str, bytes_per_pack: int = 0) -> None:
        """Join; every process of the run has to. Comes before anything else is done with `devices`."""
        if backend not in IMPLEMENTATIONS:
            raise InputError(no_such("strategy.backend", backend, IMPLEMENTATIONS))
        everyone = addresses()
        _wait_as_long_as(spec.group_timeout_s, len(everyone))
        experimental = tf.distribute.experimental
        options = experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=experimental.CommunicationImplementation[IMPLEMENTATIONS[backend]],
        )
        resolver_ = resolver({"worker": everyone}, "worker", rank, devices)
        with port_of(rank):
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver_, options)
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


@dataclass
class MultiWorkerOptions:
    """Of tf.distribute.experimental.CommunicationOptions."""

    bytes_per_pack: int = 0  # gradients are packed into messages of so many bytes; 0: all in one


class MultiWorker(Replicated):
    """One process per device; `strategy.backend` says what carries the gradients: auto, ring or nccl."""

    Options = MultiWorkerOptions
    workers: Workers

    def join(self) -> None:
        backend = self.spec.config.strategy.backend or "auto"
        self.workers = Workers(self.spec, self.place.rank, self.devices, backend, self.options.bytes_per_pack)
        self.strategy = self.workers.strategy

    def forward(self, inputs: tf.Tensor) -> tf.Tensor:
        """By this process's replica, with its own moving statistics: to read their mean is a collective, and the
        workers need not have equally many batches to validate."""
        return self.strategy.run(super().forward, (inputs,))

    def broadcast(self, value: float) -> float:
        return self.workers.broadcast(value)

    def group_sum(self, values: list[float]) -> list[float]:
        return self.workers.sum(values)
