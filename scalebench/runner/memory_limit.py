"""The memory limit of the processes of a run on the CPU, and the signs that a process reached it.

The limit is RLIMIT_DATA, which counts private writable memory: heap, anonymous mappings, stacks of threads, and no
shared memory (setrlimit(2), since Linux 4.7). RLIMIT_AS, the address space, would also count what takes no memory: with
`import tensorflow` and one matrix product it is 1,610 MB, RLIMIT_DATA counts 399 MB, and 261 MB of these are resident.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from scalebench.core.json_files import read_tail
from scalebench.core.machine.cpus import memory_limit_bytes

NODE_SHARE = 0.8  # of a node's memory, for all its processes together; the rest is for the system and the parent
MAX_NODE_SHARE = 0.95  # likewise, for a single try with a raised limit
LOG_TAIL_BYTES = 200_000
# Messages that mean nothing else: of allocators, and of cuDNN where no algorithm fits into the memory that is left.
OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|MemoryError|oom when allocating|RESOURCE_EXHAUSTED|can(?:no|')t allocate memory|"
    r"unable to (?:map|allocate|alloc)|not enough memory|ALLOC_FAILED|memory allocation (?:of \S+ )?failed|"
    r"failed to allocate |unable to find an engine|valid cuDNN algorithm",
    re.IGNORECASE,
)
# Of a process that is known to be at its limit, also: threads that get no stack, and oneDNN, whose status 1 it is.
AT_LIMIT = re.compile(
    rf"{OUT_OF_MEMORY.pattern}|failed to map |can't start new thread|thread (?:creation failed|constructor failed)|"
    r"Resource temporarily unavailable|Status: 1, message: could not ",
    re.IGNORECASE,
)
# PyTorch and NCCL say this where /dev/shm is full, which does not mean that the batch is too large.
SHARED_MEMORY = re.compile(
    r"shared memory ?\(shm\)|out of shared memory|shared memory segment|unable to write to file </|/dev/shm is full",
    re.IGNORECASE,
)
SHARED_MEMORY_FOLDER = Path("/dev/shm")
SMALL_SHARED_MEMORY_BYTES = 1 << 30  # docker's default is 64 MB, that of a machine half of its memory
HARMLESS = "The caller indicates that this is not a failure"  # of TensorFlow, which then allocates less


def limit_unsupported_reason() -> str | None:
    """Return why a process cannot be held to a limit here; None where it can."""
    system = platform.system()
    return None if system == "Linux" else f"{system} does not hold a process to a limit of its memory, as Linux does"


def limit_per_process_bytes(processes: int) -> int:
    """Return the limit of each of `processes` processes, of this machine's memory or of what a cgroup allows."""
    return int(_node_bytes() * NODE_SHARE / processes)


def raised_limit_bytes(limit_bytes: int, processes: int) -> int:
    """Return twice the limit, or as much as there is, for each of `processes` processes on this machine."""
    return int(min(2 * limit_bytes, _node_bytes() * MAX_NODE_SHARE / processes))


def apply_limit(limit_bytes: int | None) -> None:
    """Limit this process, and those that it starts, to `limit_bytes` from now on; memory that it has already counts."""
    if limit_bytes is not None:
        import resource

        limit_bytes = min(limit_bytes, _hard_limit_bytes() or limit_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _node_bytes() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, memory_limit_bytes() or total, _hard_limit_bytes() or total)


def _hard_limit_bytes() -> int | None:
    """Return the hard limit of this process; None where it has none."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def find_out_of_memory_line(log: Path) -> str | None:
    """Return the last line of a log that reports a failed allocation of memory; None where there is none."""
    try:
        text = read_tail(log, LOG_TAIL_BYTES)
    except OSError:
        return None
    lines = [line for line in text.splitlines() if lacks_memory(line) and HARMLESS not in line]
    return " ".join(lines[-1].split()) if lines else None


def lacks_memory(text: str) -> bool:
    """Return whether a message of a process that is known to be at its limit reports a failed allocation of memory,
    and not of shared memory."""
    return AT_LIMIT.search(text) is not None and not SHARED_MEMORY.search(text)


def full_shared_memory_reason(text: str) -> str | None:
    """Return that /dev/shm is full, and the way out, where that is what a message means; else None."""
    if not SHARED_MEMORY.search(text):
        return None
    size_bytes = _shared_memory_bytes()
    size = "" if size_bytes is None else f" ({size_bytes >> 20} MB)"
    return f"/dev/shm is full{size}: make it larger, in docker with --shm-size"


def small_shared_memory_reason() -> str | None:
    """Return the size of /dev/shm where it is small, as it may be in a container; else None."""
    size_bytes = _shared_memory_bytes()
    if size_bytes is None or size_bytes >= SMALL_SHARED_MEMORY_BYTES:
        return None
    return f"/dev/shm has {size_bytes >> 20} MB, which may be full: make it larger, in docker with --shm-size"


def _shared_memory_bytes() -> int | None:
    """Return the size of the file system that shared memory is in; None where there is none."""
    try:
        room = os.statvfs(SHARED_MEMORY_FOLDER)
    except OSError:
        return None
    return room.f_frsize * room.f_blocks
