"""The processors that this process may use, their settings, the memory near them, and the limits of its cgroups.

All of it is read from system files below /proc and /sys. Nothing here raises because the machine lacks something: what
cannot be determined is None (or left out), never 0.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSTEM_ROOT = Path("/")  # tests use another folder
CPU_FOLDER = "sys/devices/system/cpu"
NODE_FOLDER = "sys/devices/system/node"
NO_LIMIT_BYTES = 2**60  # cgroups of version 1 have the largest number of pages where there is no limit


def read_system_file(*path: str | Path) -> str:
    """Return the text of a system file, '' where there is none or it may not be read."""
    try:
        return SYSTEM_ROOT.joinpath(*path).read_text(errors="replace")
    except OSError:
        return ""


def find_in_system_file(pattern: str, *path: str | Path) -> str | None:
    """Return the first group of a pattern in a system file, where ^ and $ match at each line."""
    match = re.search(pattern, read_system_file(*path), re.MULTILINE)
    return match[1].strip() if match else None


def read_system_number(*path: str | Path) -> int | None:
    """Return the integer in a system file; None for any other content."""
    text = read_system_file(*path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of the CPUs that this process may use, since the machine started; all 0 where the kernel shows none."""

    at_s: float  # when that was, on the monotonic clock
    programs_s: float
    interrupts_s: float
    stolen_s: float  # by other virtual machines
    idle_s: float

    @property
    def busy_s(self) -> float:
        return self.programs_s + self.interrupts_s + self.stolen_s


def read_cpu_times() -> CpuTimes:
    """Return the sums over the CPUs that this process may use."""
    usable, ticks = {f"cpu{number}" for number in usable_cpus()}, [0] * 8
    for line in read_system_file("proc/stat").splitlines():
        name, *counts = line.split()[:9]  # what follows, the time of guests, is also that of programs
        if name in usable:
            ticks = [total + int(count) for total, count in zip(ticks, counts, strict=True)]
    user, nice, system, idle, iowait, irq, softirq, stolen = (count / os.sysconf("SC_CLK_TCK") for count in ticks)
    return CpuTimes(time.monotonic(), user + nice + system, irq + softirq, stolen, idle + iowait)


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers in the kernel's list of processors: [0, 1, 2, 8] for '0-2,8'."""
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers += range(int(first), int(last or first) + 1)
    return numbers


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node: processors and the memory near them."""

    node: int
    cpus: list[int]  # also those that this process may not use
    memory_bytes: int | None
    distances: dict[str, int]  # by number of each node; 10 to itself


def usable_cpus() -> list[int]:
    """Return the sorted numbers of the logical CPUs that this process may run on."""
    linux = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if linux else list(range(os.cpu_count() or 1))


def order_by_core(cpus: Iterable[int]) -> list[int]:
    """Return logical CPUs with the threads of each core beside each other.

    Linux numbers the first threads of all cores before the second ones, so that slices in the order of the numbers
    would give two processes a thread each of the same cores.
    """
    return sorted(cpus, key=lambda cpu: (_first_sibling(cpu), cpu))


def first_threads(cpus: Iterable[int]) -> list[int]:
    """Return the lowest of these logical CPUs on each core, in the order of the cores."""
    by_core = {_first_sibling(cpu): cpu for cpu in sorted(cpus, reverse=True)}
    return [by_core[core] for core in sorted(by_core)]


def _first_sibling(cpu: int) -> int:
    """Return the lowest logical CPU on the same core, which this process need not be allowed to use."""
    siblings = parse_cpu_list(read_system_file(CPU_FOLDER, f"cpu{cpu}", "topology/thread_siblings_list"))
    return min(siblings, default=cpu)


def numa_nodes() -> list[NumaNode]:
    """Return the NUMA nodes by number, also those without processors; empty where the kernel reports none."""
    names = (folder.name.removeprefix("node") for folder in SYSTEM_ROOT.joinpath(NODE_FOLDER).glob("node[0-9]*"))
    numbers, nodes = sorted(int(name) for name in names if name.isdigit()), []
    for number in numbers:
        folder = f"{NODE_FOLDER}/node{number}"
        kilobytes = find_in_system_file(r"MemTotal:\s+(\d+) kB", folder, "meminfo")
        cpus = parse_cpu_list(read_system_file(folder, "cpulist"))
        # The kernel lists them in the order of the nodes that are online.
        distances = [int(text) for text in read_system_file(folder, "distance").split() if text.isdigit()]
        by_node = dict(zip(map(str, numbers), distances, strict=True)) if len(distances) == len(numbers) else {}
        nodes.append(NumaNode(number, cpus, None if kilobytes is None else int(kilobytes) * 1024, by_node))
    return nodes


def describe_cpus(cpus: Iterable[int]) -> dict[str, Any]:
    """Return what the kernel reports of these CPUs, by the fields of a Machine: their frequency governors, each once
    (performance, powersave ...), their highest frequency, including turbo, as the hardware has it; and of the machine
    how many processor packages it has, and whether its cores run several threads each."""
    settings = [Path(CPU_FOLDER, f"cpu{cpu}", "cpufreq") for cpu in cpus]
    governors = {read_system_file(folder, "scaling_governor").strip() for folder in settings} - {""}
    khz = [read_system_number(folder, "cpuinfo_max_freq") for folder in settings]
    folders = SYSTEM_ROOT.joinpath(CPU_FOLDER).glob("cpu[0-9]*")
    packages = {read_system_number(CPU_FOLDER, folder.name, "topology/physical_package_id") for folder in folders}
    smt = read_system_number(CPU_FOLDER, "smt/active")
    return {
        "cpu_governors": sorted(governors) or None,
        "cpu_max_mhz": max((value / 1000 for value in khz if value), default=None),
        "cpu_sockets": len({package for package in packages if package is not None and package >= 0}) or None,
        "smt": None if smt is None else bool(smt),
    }


def cpu_quota() -> float | None:
    """Return the CPU seconds per second that the cgroups of this process allow (versions 1 and 2); None = no limit."""
    return min((quota for quota, _ in _cpu_quotas()), default=None)


def read_throttling() -> tuple[int, int] | None:
    """Return how many periods the lowest CPU quota of this process has had, and in how many of them it was used up,
    which stops all threads until the next period; None without a quota, or where the kernel shows no counts."""
    quotas = sorted(_cpu_quotas())
    text = read_system_file(quotas[0][1], "cpu.stat") if quotas else ""
    counts = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", text, re.MULTILINE))
    return (int(counts["nr_periods"]), int(counts["nr_throttled"])) if len(counts) == 2 else None


def _cpu_quotas() -> Iterator[tuple[float, Path]]:
    """Yield the CPU seconds per second that each cgroup of this process with a limit allows, and its folder."""
    for folder in _cgroups("cpu"):
        version_1 = f"{read_system_file(folder, 'cpu.cfs_quota_us')} {read_system_file(folder, 'cpu.cfs_period_us')}"
        # Without a match there is no limit: "max" in version 2, -1 in version 1.
        if match := re.match(r"(\d+)\s+([1-9]\d*)", read_system_file(folder, "cpu.max") or version_1):
            yield int(match[1]) / int(match[2]), folder


def memory_limit_bytes() -> int | None:
    """Return the memory that the cgroups of this process allow; None = no limit but the machine's own memory."""
    limits: list[int] = []
    for folder in _cgroups("memory"):
        text = read_system_file(folder, "memory.max") or read_system_file(folder, "memory.limit_in_bytes")
        if re.fullmatch(r"\d+\s*", text) and int(text) < NO_LIMIT_BYTES:  # "max" in version 2
            limits.append(int(text))
    return min(limits, default=None)


def _cgroups(controller: str) -> Iterator[Path]:
    """Yield the cgroups of this process for a controller, and all their ancestors, which limit it as well."""
    for line in read_system_file("proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "" or controller in controllers.split(","):  # version 2 names no controllers
            # In a container the path may be the host's, with only its top mounted: missing folders are harmless.
            parts = path.strip("/").split("/")
            yield from (Path("sys/fs/cgroup", controllers, *parts[:n]) for n in range(len(parts) + 1))
