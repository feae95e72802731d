"""The processors that a process may use, how they are set and which memory is near them. Layer 0.

Nothing here raises because the machine lacks something: what cannot be told is None (or left out), never 0.

What the cgroups of this process allow it, versions 1 and 2. Layer 0.

The system's own files, below /proc and /sys: their text, '' where there is none or it may not be read. Layer 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")  # tests put a folder of their own here


def read(*path: str | Path) -> str:
    """A system file's text, '' where there is none or it may not be read."""
    try:
        return ROOT.joinpath(*path).read_text(errors="replace")
    except OSError:
        return ""


def find(pattern: str, *path: str | Path) -> str | None:
    """What the group of `pattern` matches in a system file, whose lines ^ and $ mean."""
    found = re.search(pattern, read(*path), re.MULTILINE)
    return found[1].strip() if found else None


def number(*path: str | Path) -> int | None:
    """A file that holds one whole number; None for any other."""
    text = read(*path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def cpu_list(text: str) -> list[int]:
    """The kernel's lists of processors: '0-2,8' -> [0, 1, 2, 8]."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    return found


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
    folders = ROOT.joinpath(NODES).glob("node[0-9]*")
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
    folders = ROOT.joinpath(CPUS).glob("cpu[0-9]*")
    packages = {number(CPUS, folder.name, "topology/physical_package_id") for folder in folders}
    return len({package for package in packages if package is not None and package >= 0}) or None


def smt() -> bool | None:
    """Whether cores run more than one thread each (hyper-threading)."""
    active = number(CPUS, "smt/active")
    return None if active is None else bool(active)


def _node(node: int, numbers: list[int]) -> NumaNode:
    folder = f"{NODES}/node{node}"
    kilobytes = find(r"MemTotal:\s+(\d+) kB", folder, "meminfo")
    distances = [int(word) for word in read(folder, "distance").split() if word.isdigit()]
    return NumaNode(
        node=node,
        cpus=cpu_list(read(folder, "cpulist")),
        memory_bytes=None if kilobytes is None else int(kilobytes) * 1024,
        # The kernel lists them in the order of the nodes that are online.
        distances=dict(zip(map(str, numbers), distances, strict=True)) if len(distances) == len(numbers) else {},
    )


NO_LIMIT_BYTES = 2**60  # version 1 writes the largest number of pages where there is no limit


def cpu_quota() -> float | None:
    """CPU seconds per second that the cgroups of this process allow (versions 1 and 2); None = no limit."""
    quotas: list[float] = []
    for folder in _cgroups("cpu"):
        version_1 = f"{read(folder, 'cpu.cfs_quota_us')} {read(folder, 'cpu.cfs_period_us')}"
        # Without a match there is no limit: "max" in version 2, -1 in version 1.
        if found := re.match(r"(\d+)\s+([1-9]\d*)", read(folder, "cpu.max") or version_1):
            quotas.append(int(found[1]) / int(found[2]))
    return min(quotas, default=None)


def memory_limit_bytes() -> int | None:
    """Memory that the cgroups of this process allow; None = no limit but the machine's own memory."""
    limits: list[int] = []
    for folder in _cgroups("memory"):
        text = read(folder, "memory.max") or read(folder, "memory.limit_in_bytes")
        if re.fullmatch(r"\d+\s*", text) and int(text) < NO_LIMIT_BYTES:  # "max" in version 2
            limits.append(int(text))
    return min(limits, default=None)


def _cgroups(controller: str) -> Iterator[Path]:
    """The cgroups of this process that may limit it in this, and all above them, which limit it as well."""
    for line in read("proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "" or controller in controllers.split(","):  # version 2 names no controllers
            # In a container the path may be the host's, and only its top mounted: missing ones are harmless.
            parts = path.strip("/").split("/")
            yield from (Path("sys/fs/cgroup", controllers, *parts[:n]) for n in range(len(parts) + 1))
