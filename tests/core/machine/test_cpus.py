"""The processors of a machine: this one's affinity, and made-up system files for the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalebench.core.machine import cpus as processors
from scalebench.core.machine.cpus import NumaNode
from tests.builders.system_files import put
from tests.builders.system_files import root as root  # a fixture


def test_usable_cpus_follow_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert processors.usable_cpus() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
    assert processors.usable_cpus() == sorted(before)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert processors.usable_cpus() == [0, 1, 2]


def test_numa_nodes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, (cpus, distances) in {0: ("0-1,8", "10 21 31"), 2: ("2,3", "21 10 31"), 10: ("", "31 31 10")}.items():
        folder = f"sys/devices/system/node/node{node}"
        put(root, f"{folder}/cpulist", f"{cpus}\n")
        put(root, f"{folder}/distance", f"{distances}\n")
    put(root, "sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  1024 kB\nNode 2 MemFree: 1 kB\n")
    put(root, "sys/devices/system/node/possible", "0-15\n")
    as_they_come = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *words: sorted(as_they_come(*words), reverse=True))
    assert processors.numa_nodes() == [
        NumaNode(0, [0, 1, 8], None, {"0": 10, "2": 21, "10": 31}),
        NumaNode(2, [2, 3], 2**20, {"0": 21, "2": 10, "10": 31}),
        NumaNode(10, [], None, {"0": 31, "2": 31, "10": 10}),
    ]


def test_distances_that_do_not_fit_the_nodes_are_left_out(root: Path) -> None:
    put(root, "sys/devices/system/node/node0/distance", "10 21\n")
    assert processors.numa_nodes() == [NumaNode(0, [], None, {})]


def test_governors_frequencies_sockets_and_threads(root: Path) -> None:
    for cpu, (governor, khz, package) in enumerate([("performance", 2_900_000, 0), ("powersave", 3_500_000, 1)] * 2):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", f"{governor}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", f"{khz}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{package}\n")
    put(root, "sys/devices/system/cpu/cpufreq/boost", "1\n")
    assert processors.cpu_governors([0, 2]) == ["performance"]
    assert processors.cpu_governors([2, 3]) == ["performance", "powersave"]
    assert processors.max_frequency_mhz([0, 2]) == 2900.0
    assert processors.count_sockets() == 2
    assert processors.has_smt() is None
    put(root, "sys/devices/system/cpu/smt/active", "0\n")
    assert processors.has_smt() is False


def test_what_the_kernel_does_not_tell_is_none(root: Path) -> None:
    put(root, "sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1\n")  # so say some virtual machines
    found = (
        processors.cpu_governors([0]),
        processors.max_frequency_mhz([0]),
        processors.count_sockets(),
        processors.has_smt(),
    )
    assert found == (None, None, None, None)
    assert processors.numa_nodes() == []
