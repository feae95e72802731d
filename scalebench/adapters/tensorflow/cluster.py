"""The processes of a run as TensorFlow's cluster: who is where."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

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
