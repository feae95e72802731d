"""What a process is held to, and how one that wants more is known."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from scalebench.runner import memory_limit
from scalebench.runner.memory_limit import (
    OUT_OF_MEMORY,
    apply_limit,
    find_out_of_memory_line,
    limit_per_process_bytes,
    limit_unsupported_reason,
    raised_limit_bytes,
)

HELD = """
import mmap, sys, threading
from scalebench.runner.memory_limit import apply_limit
apply_limit(200_000_000)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
reserved = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE, prot=0)
kept = b"1" * 100_000_000
print(len(mapped), len(reserved), len(kept))
try:
    b"1" * 200_000_000
except MemoryError:
    print("MemoryError")
"""


def test_only_what_a_process_alone_may_write_to_counts(tmp_path: Path) -> None:
    """Neither a file of the data set that is mapped, nor addresses that are only reserved."""
    with open(tmp_path / "data", "wb") as file:
        file.truncate(2**30)
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(tmp_path / "data")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n") == [f"{2**30} {2**30} 100000000", "MemoryError", ""]


def test_without_a_limit_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("it was set"))
    apply_limit(None)


@pytest.mark.parametrize(("hard", "set_to"), [(resource.RLIM_INFINITY, 1000), (300, 300)])
def test_a_harder_limit_of_the_process_stays(hard: int, set_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *words: said.append(words))
    apply_limit(1000)
    assert said == [(resource.RLIMIT_DATA, (set_to, set_to))]


@pytest.mark.parametrize(
    ("cgroup", "hard", "processes", "each"),
    [
        (None, resource.RLIM_INFINITY, 1, 800),
        (None, resource.RLIM_INFINITY, 4, 200),
        (500, resource.RLIM_INFINITY, 2, 200),
        (5000, resource.RLIM_INFINITY, 2, 400),
        (None, 100, 1, 80),
    ],
)
def test_the_share_of_a_process(
    cgroup: int | None, hard: int, processes: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}[name])
    monkeypatch.setattr(memory_limit, "memory_limit_bytes", lambda: cgroup)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    assert limit_per_process_bytes(processes) == each


@pytest.mark.parametrize(("limit", "processes", "more"), [(100, 1, 200), (400, 2, 475), (480, 2, 475)])
def test_more_than_the_limit_is_at_most_what_there_is(
    limit: int, processes: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "_node_bytes", lambda: 1000)
    assert raised_limit_bytes(limit, processes) == more


@pytest.mark.parametrize(
    ("platform", "release", "held"),
    [("linux", "4.7.0", True), ("linux", "6.18.44-x", True), ("linux", "4.4.0", False), ("darwin", "23.1.0", False),
     ("linux", "odd", False)],
)  # fmt: skip
def test_where_a_process_can_be_held(platform: str, release: str, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr("platform.release", lambda: release)
    reason = limit_unsupported_reason()
    assert (reason is None) == held
    assert held or release in str(reason)


@pytest.mark.parametrize(
    "line",
    [
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
        "  what():  std::bad_alloc",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "  what():  Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 18.3 MiB for an array with shape (8000, 200, 3)",
        "Status: 1, message: could not create a primitive, in file tensorflow/core/kernels/mkl/mkl_maxpooling_op.cc",
        "OOM when allocating tensor with shape[8000,200,16] and type float",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_words_of_a_process_at_its_limit(line: str) -> None:
    """Each as a framework has written it."""
    assert OUT_OF_MEMORY.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "Allocation of 153600000 exceeds 10% of free system memory.",  # TensorFlow's advice, when all goes well
        "RuntimeError: Connection closed by peer [127.0.0.1]:1234",
        "Status: 3, message: could not create a primitive descriptor",  # oneDNN: not implemented
        "This is memory growth of the device 0",
    ],
)
def test_words_of_others(line: str) -> None:
    assert not OUT_OF_MEMORY.search(line)


def test_the_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    assert find_out_of_memory_line(log) is None
    log.write_text("x" * 300_000 + "\nMemoryError\n  what():   std::bad_alloc\nlater\n")
    assert find_out_of_memory_line(log) == "what(): std::bad_alloc"
    log.write_text("MemoryError of old\n" + "x" * 300_000)
    assert find_out_of_memory_line(log) is None
