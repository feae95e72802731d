"""TensorFlow's cluster of processes: their addresses, and the group of workers of MultiWorkerMirroredStrategy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.process import RANK_ADDRESSES
from scalebench.core.spec import RunSpec
from scalebench.strategies.base import check_group

IMPLEMENTATIONS = {"auto": "AUTO", "ring": "RING", "nccl": "NCCL"}


def rank_addresses() -> list[str]:
    """Return host:port of every rank; raise RuntimeError in a process that no launcher started."""
    addresses = os.environ.get(RANK_ADDRESSES)
    if not addresses:
        raise RuntimeError(
            f"{RANK_ADDRESSES} is not set: a launcher of scalebench has to start the processes of a cluster"
        )
    return addresses.split(",")


def addresses_by_job(spec: RunSpec) -> dict[str, list[str]]:
    """Return the addresses of the processes of each role."""
    roles: dict[str, list[str]] = {}
    for place, address in zip(spec.places, rank_addresses(), strict=True):
        roles.setdefault(place.role, []).append(address)
    return roles


@contextmanager
def explain_port_conflict(rank: int) -> Iterator[None]:
    """Name the port if this rank's server cannot start in the block; TensorFlow's error does not name it."""
    try:
        yield
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in str(error):
            raise
        raise RuntimeError(f"{rank_addresses()[rank]} was taken by another program; run it again") from None


def cluster_resolver(
    jobs: dict[str, list[str]], job: str, index: int, devices: Sequence[str]
) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    """Return what TF_CONFIG would contain: the addresses of each job, and job, task and GPU count of this process."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=job,
        task_id=index,
        rpc_layer="grpc",
        num_accelerators={"GPU": sum("GPU" in device for device in devices)},
    )


class WorkerGroup:
    """This process's membership in the group of workers that MultiWorkerMirroredStrategy forms. `backend` synchronizes
    the gradients of a model that is created under `strategy.scope()`."""

    def __init__(self, spec: RunSpec, rank: int, devices: list[str], backend: str, bytes_per_pack: int = 0) -> None:
        """Join the group, as every process of the run must, before any other use of `devices`."""
        from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
        from tensorflow.python.eager import context

        if backend not in IMPLEMENTATIONS:
            raise InputError(unknown_name_message("strategy.backend", backend, IMPLEMENTATIONS))
        addresses = rank_addresses()
        # TensorFlow's default of 10 s would declare a worker dead that a debugger or SIGSTOP has stopped; the launcher
        # detects those that are really dead. CommunicationOptions has a timeout too, but that starts a thread for every
        # collective.
        limit_ms = int(spec.group_timeout_s * 1000)
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            cluster_register_timeout_in_ms=limit_ms,
            heartbeat_timeout_in_ms=limit_ms,
            coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=len(addresses))],
        )
        experimental = tf.distribute.experimental
        options = experimental.CommunicationOptions(
            bytes_per_pack=bytes_per_pack,
            implementation=experimental.CommunicationImplementation[IMPLEMENTATIONS[backend]],
        )
        resolver = cluster_resolver({"worker": addresses}, "worker", rank, devices)
        with explain_port_conflict(rank):
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        check_group(spec, rank, "TensorFlow", (resolver.task_id, self.strategy.num_replicas_in_sync))
        self._device = devices[0]

        def sum_on_replica(values: tf.Tensor) -> tf.Tensor:
            # The identity places the tensor on a device, without which the all-reduce has no destination.
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(values))

        signature = [tf.TensorSpec((None,), tf.float64)]
        self._sum = tf.function(lambda values: self.strategy.run(sum_on_replica, (values,)), input_signature=signature)

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums over the workers, all of which must call this."""
        with tf.device(self._device):
            totals = self._sum(tf.constant(values, tf.float64))
        return [float(total) for total in totals.numpy()]
