"""The processes of a run as TensorFlow's cluster: who is where."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from scalebench.spec import RunSpec

ADDRESSES = "SCALEBENCH_ADDRESSES"  # of all ranks in order, host:port each, from the launcher
DEBUG_TIMEOUT_S = 86400.0


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


def timeout_s(spec: RunSpec) -> float:
    """How long a rank waits for the others before it fails by itself.

    Longer than the launcher waits for progress, so that a hang is called a hang and not a broken connection.
    Someone with a debugger is not hurried.
    """
    return DEBUG_TIMEOUT_S if spec.config.debug else 2 * spec.config.measure.hang_s


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
