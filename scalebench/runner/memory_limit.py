"""The memory that a process of a run on the CPU is held to, and how one that wants more ends. Layer 0.

The limit is RLIMIT_DATA, which counts what a process alone may write to: its heap, anonymous mappings, stacks of
threads. RLIMIT_AS, the limit of the whole address space, would count what takes no memory: frameworks map hundreds of
megabytes of libraries, every thread's heap reserves 64 MB or more that it may never use, and a data set is mapped from
files which all ranks share. With `import tensorflow` and one product of matrices the address space is 1,610 MB, what
RLIMIT_DATA counts 399 MB, and resident of that are 261 MB; with torch 713, 240 and 151 MB. It is what setrlimit(2) says
since Linux 4.7; before, it was about brk alone, which no large array comes from. Shared memory is not in it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from scalebench.core.machine.cpus import memory_limit_bytes

SHARE = 0.8  # of the memory that the processes of a node are given together; the rest is the system's and the parent's
MAX_SHARE = 0.95  # of it, for a single try with more than that
LOG_TAIL_BYTES = 200_000
# What a process at its limit prints: allocators, threads that get no stack, and oneDNN, whose status 1 it is.
OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|MemoryError|OOM when allocating|RESOURCE_EXHAUSTED|[Cc]an(?:no|')t allocate memory|"
    r"[Uu]nable to (?:map|allocate|alloc)|not enough memory|ALLOC_FAILED|[Mm]emory allocation (?:of \S+ )?failed|"
    r"[Ff]ailed to (?:map|allocate) |can't start new thread|[Tt]hread (?:creation failed|constructor failed)|"
    r"Resource temporarily unavailable|Status: 1, message: could not "
)


def unsupported_reason() -> str | None:
    """Return why a process cannot be held to a limit here; None where it can."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if sys.platform.startswith("linux") and release and (int(release[1]), int(release[2])) >= (4, 7):
        return None
    return (
        f"{platform.system()} {platform.release()} does not hold a process to a limit of its memory, as Linux 4.7 and "
        f"newer do (RLIMIT_DATA)"
    )


def share_bytes(processes: int) -> int:
    """Return what each of so many processes on this machine may take of its memory, or of what a cgroup allows."""
    return int(_whole_bytes() * SHARE / processes)


def more_bytes(limit_bytes: int, processes: int) -> int:
    """Return twice the limit, or as much as there is, for one of so many processes, which may have died of it."""
    return int(min(2 * limit_bytes, _whole_bytes() * MAX_SHARE / processes))


def hold(limit_bytes: int | None) -> None:
    """Keep this process, and those that it starts, below `limit_bytes` from now on; what it has is counted."""
    if limit_bytes is not None:
        import resource

        wanted = min(limit_bytes, _hard() or limit_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def _whole_bytes() -> int:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(whole, memory_limit_bytes() or whole, _hard() or whole)


def _hard() -> int | None:
    """Return the limit of this process itself; None: none."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def out_of_memory_line(log: Path) -> str | None:
    """Return the last line of a log by which memory could not be allocated; None without one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [line for line in text.splitlines() if OUT_OF_MEMORY.search(line)]
    return " ".join(lines[-1].split()) if lines else None
