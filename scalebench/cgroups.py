"""What the cgroups of this process allow it, versions 1 and 2. Layer 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from scalebench.system_files import read

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
