"""What a rank finds when it starts: its variables, the addresses of the others, and its log. Layer 2."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from scalebench.launchers import interface
from scalebench.spec import RunSpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ADDRESSES, RUN_ID = "SCALEBENCH_ADDRESSES", "SCALEBENCH_RUN_ID"
LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """So many different ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    return free_ports(1)[0]


def environment(spec: RunSpec, run_id: str, rank: int, addresses: Sequence[str]) -> dict[str, str]:
    """This process's environment and a rank's own variables, under the names that torchrun uses.

    `addresses` are host:port of every rank: the first is where a group meets, and a cluster needs them all.
    """
    place = spec.places[rank]
    host, _, port = addresses[0].rpartition(":")
    local = sum(p.node == place.node for p in spec.places)
    variables = dict(os.environ)
    variables.update({name: str(place.threads) for name in THREAD_VARIABLES})
    variables.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(spec.processes),
            "LOCAL_RANK": str(place.local_rank),
            "LOCAL_WORLD_SIZE": str(local),
            "NODE_RANK": str(place.node),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts, and so hardware.device_ids and the record
            ADDRESSES: ",".join(addresses),
            RUN_ID: run_id,
            "SCALEBENCH_PARENT_PID": str(os.getpid()),
        }
    )
    hosts = [address.rpartition(":")[0] for address in addresses]
    if set(hosts) == {LOOPBACK}:
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    elif len(hosts) == spec.processes:
        variables.update(interface.variables(spec.config.hardware, hosts, rank))
    variables.update(spec.config.hardware.environment)
    return variables
