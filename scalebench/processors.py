"""The processors that a process may use, how they are set and which memory is near them. Layer 0.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from scalebench import system_files
from scalebench.system_files import cpu_list, number, read

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class NumaNode:
    """Processors and the memory beside them."""

    node: int
    cpus: list[int]  # all of the machine's, also those that this process may not use
    memory_bytes: int | None
    distances: dict[str, int]  # to each node, this one too, by its number; 10 is itself


def usable_cpus() -> list[int]:
    """Numbers of the logical CPUs that this process may run on, sorted."""
    linux = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if linux else list(range(os.cpu_count() or 1))


def numa_nodes() -> list[NumaNode]:
    """The NUMA nodes by number, also those without processors; empty where the kernel tells of none."""
    folders = system_files.ROOT.joinpath(NODES).glob("node[0-9]*")
    numbers = sorted(int(name) for name in (folder.name.removeprefix("node") for folder in folders) if name.isdigit())
    return [_node(node, numbers) for node in numbers]


def governors(cpus: Iterable[int]) -> list[str] | None:
    """Who chooses the frequency of these CPUs: performance, powersave ..., each word once; None if untold."""
    words = {read(CPUS, f"cpu{cpu}", "cpufreq/scaling_governor").strip() for cpu in cpus} - {""}
    return sorted(words) or None


def frequency_max_mhz(cpus: Iterable[int]) -> float | None:
    """The highest frequency of these CPUs, with turbo, as the kernel has it from the hardware."""
    khz = [number(CPUS, f"cpu{cpu}", "cpufreq/cpuinfo_max_freq") for cpu in cpus]
    return max((value / 1000 for value in khz if value), default=None)


def sockets() -> int | None:
    """Processor packages of the whole machine."""
    folders = system_files.ROOT.joinpath(CPUS).glob("cpu[0-9]*")
    packages = {number(CPUS, folder.name, "topology/physical_package_id") for folder in folders}
    return len({package for package in packages if package is not None and package >= 0}) or None


def smt() -> bool | None:
    """Whether cores run more than one thread each (hyper-threading)."""
    active = number(CPUS, "smt/active")
    return None if active is None else bool(active)


def _node(node: int, numbers: list[int]) -> NumaNode:
    folder = f"{NODES}/node{node}"
    kilobytes = system_files.find(r"MemTotal:\s+(\d+) kB", folder, "meminfo")
    distances = [int(word) for word in read(folder, "distance").split() if word.isdigit()]
    return NumaNode(
        node=node,
        cpus=cpu_list(read(folder, "cpulist")),
        memory_bytes=None if kilobytes is None else int(kilobytes) * 1024,
        # The kernel lists them in the order of the nodes that are online.
        distances=dict(zip(map(str, numbers), distances, strict=True)) if len(distances) == len(numbers) else {},
    )
