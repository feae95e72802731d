"""Ports of the ranks on hosts that are not this one. Layer 2."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from scalebench import system_files
from scalebench.launchers.surroundings import LOOPBACK, free_ports

EPHEMERAL = "proc/sys/net/ipv4/ip_local_port_range"
LOWEST, HIGHEST = 20_000, 65_535  # below are those of services, SLURM's own at 6817 among them
USUAL = (32_768, 60_999)  # Linux's, where it cannot be read
ENOUGH = 1000


def addresses(hosts: Sequence[str], seed: str) -> list[str]:
    """host:port of each rank, given its host. Ranks that share one meet over its loopback, as on a single machine."""
    if len(set(hosts)) > 1:
        return [f"{host}:{port}" for host, port in zip(hosts, of_ranks(hosts, seed), strict=True)]
    here = set(hosts) <= {socket.gethostname(), "localhost", LOOPBACK}
    found = free_ports(len(hosts)) if here else of_ranks(hosts, seed)
    return [f"{LOOPBACK}:{port}" for port in found]


def of_ranks(hosts: Sequence[str], seed: str) -> list[int]:
    """A port for each rank, different for the ranks of one host.

    They lie outside the range from which a system gives ports away by itself (of this host, the others being set up
    alike), so that no connection happens to hold one. What is certain: ranks of this run do not collide, and where a
    rank is on this host, nobody listens on its port now. What is not: that no program on another host listens there,
    such as another run of this kind, which takes its own by chance out of thousands. A rank says so then.
    """
    candidates = list(_range())
    random.Random(seed).shuffle(candidates)
    here = {socket.gethostname(), "localhost"}
    given: dict[str, int] = {}  # candidates that each host has used up
    ports = []
    for host in hosts:
        number = given.get(host, 0)
        while host in here and number < len(candidates) - 1 and not _free(candidates[number]):
            number += 1
        given[host] = number + 1
        ports.append(candidates[number % len(candidates)])
    return ports


def _range() -> range:
    words = system_files.read("", EPHEMERAL).split()
    low, high = (int(words[0]), int(words[1])) if len(words) == 2 else USUAL
    if low - LOWEST >= ENOUGH:
        return range(LOWEST, low)
    if HIGHEST - high >= ENOUGH:
        return range(high + 1, HIGHEST + 1)
    return range(LOWEST, HIGHEST + 1)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is only still closing is free
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
