"""What cgroups of both versions allow, with made-up system files."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.machine import cpus
from tests.builders.system_files import put
from tests.builders.system_files import root as root  # a fixture

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
