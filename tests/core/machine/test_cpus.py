"""Processors, cgroups and system files: the affinity of this process, and made-up files for the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalebench.core.machine import cpus
from scalebench.core.machine.cpus import NumaNode
from tests.core.machine.conftest import put


def test_usable_cpus_follow_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cpus.usable_cpus() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
    assert cpus.usable_cpus() == sorted(before)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cpus.usable_cpus() == [0, 1, 2]


def test_numa_nodes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, (cpu_list, distances) in {0: ("0-1,8", "10 21 31"), 2: ("2,3", "21 10 31"), 10: ("", "31 31 10")}.items():
        folder = f"sys/devices/system/node/node{node}"
        put(root, f"{folder}/cpulist", f"{cpu_list}\n")
        put(root, f"{folder}/distance", f"{distances}\n")
    put(root, "sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  1024 kB\nNode 2 MemFree: 1 kB\n")
    put(root, "sys/devices/system/node/possible", "0-15\n")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: sorted(glob(*args), reverse=True))
    assert cpus.numa_nodes() == [
        NumaNode(0, [0, 1, 8], None, {"0": 10, "2": 21, "10": 31}),
        NumaNode(2, [2, 3], 2**20, {"0": 21, "2": 10, "10": 31}),
        NumaNode(10, [], None, {"0": 31, "2": 31, "10": 10}),
    ]


def test_distances_that_do_not_fit_the_nodes_are_left_out(root: Path) -> None:
    put(root, "sys/devices/system/node/node0/distance", "10 21\n")
    assert cpus.numa_nodes() == [NumaNode(0, [], None, {})]


def test_governors_frequencies_sockets_and_threads(root: Path) -> None:
    for cpu, (governor, khz, package) in enumerate([("performance", 2_900_000, 0), ("powersave", 3_500_000, 1)] * 2):
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", f"{governor}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq", f"{khz}\n")
        put(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{package}\n")
    put(root, "sys/devices/system/cpu/cpufreq/boost", "1\n")
    assert cpus.cpu_governors([0, 2]) == ["performance"]
    assert cpus.cpu_governors([2, 3]) == ["performance", "powersave"]
    assert cpus.max_frequency_mhz([0, 2]) == 2900.0
    assert cpus.count_sockets() == 2
    assert cpus.has_smt() is None
    put(root, "sys/devices/system/cpu/smt/active", "0\n")
    assert cpus.has_smt() is False


def test_unknown_facts_are_none(root: Path) -> None:
    put(root, "sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1\n")  # so on some virtual machines
    assert cpus.cpu_governors([0]) is cpus.max_frequency_mhz([0]) is None
    assert cpus.count_sockets() is cpus.has_smt() is None
    assert cpus.numa_nodes() == []


def test_system_files_that_exist_and_others(root: Path) -> None:
    (root / "sys").mkdir()
    (root / "sys/text").write_bytes(b"a: 1\nb:  two \xff\n")
    put(root, "sys/number", " -12\n")
    assert cpus.find_in_system_file("^b:(.*)$", "sys", "text") == "two \ufffd"
    assert cpus.find_in_system_file("^c:(.*)$", "sys/text") is None
    assert (cpus.read_system_file("sys"), cpus.read_system_file("sys/absent")) == ("", "")
    assert cpus.read_system_number("sys/number") == -12
    assert [cpus.read_system_number(f"sys/{name}") for name in ("text", "absent")] == [None, None]


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,8\n", [0, 1, 2, 8]), ("3\n", [3]), ("\n", []), ("10-11,0", [10, 11, 0])]
)
def test_lists_of_processors(text: str, numbers: list[int]) -> None:
    assert cpus.parse_cpu_list(text) == numbers


QUOTA_FILES = ("cpu,cpuacct/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "cpu.max": "300000 100000\n"}, 2.0),
        ("0::/host/only\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("4:cpu,cpuacct:/docker/x\n", dict(zip(QUOTA_FILES, ("250000\n", "100000\n"), strict=True)), 2.5),
        ("4:cpu,cpuacct:/\n0::/\n", dict(zip(QUOTA_FILES, ("-1\n", "100000\n"), strict=True)), None),
        ("4:cpu,cpuacct:/\n", {QUOTA_FILES[0]: "1000\n"}, None),
        ("nonsense\n\n", {"cpu.max": "garbage"}, None),
        ("", {}, None),
    ],
)
def test_cpu_quota(root: Path, cgroup: str, files: dict[str, str], quota: float | None) -> None:
    put(root, "proc/self/cgroup", cgroup)
    for name, text in files.items():
        put(root, f"sys/fs/cgroup/{name}", text)
    assert cpus.cpu_quota() == quota


V1 = "memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "1073741824\n"}, 2**30),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4096\n", "memory.max": "8192\n"}, 4096),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("7:memory:/docker/x\n4:cpu:/\n", {V1: "2048\n"}, 2048),
        ("7:memory:/\n", {V1: "9223372036854771712\n"}, None),
        ("4:cpu:/\n", {V1: "2048\n", "cpu/memory.limit_in_bytes": "1\n"}, None),
        ("0::/\n", {"memory.max": "garbage"}, None),
        ("", {}, None),
    ],
)
def test_memory_limit(root: Path, cgroup: str, files: dict[str, str], limit: int | None) -> None:
    put(root, "proc/self/cgroup", cgroup)
    for name, text in files.items():
        put(root, f"sys/fs/cgroup/{name}", text)
    assert cpus.memory_limit_bytes() == limit
