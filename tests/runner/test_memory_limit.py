"""The memory limit of a process, and the signs that it was reached."""

import os
import resource
import subprocess
import sys

import pytest

from scalebench.core.result import RankRecord
from scalebench.runner import memory_limit
from scalebench.runner.worker import classify_error

LIMITED_PROGRAM = """
import mmap, sys, threading
from scalebench.runner.memory_limit import apply_limit
apply_limit(200_000_000)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
reserved = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE, prot=0)
held = b"1" * 100_000_000
print(len(mapped), len(reserved), len(held))
try:
    b"1" * 200_000_000
except MemoryError:
    print("MemoryError")
"""


def test_only_private_writable_memory_counts(tmp_path):
    """A mapped file of the data set does not count, nor do reserved addresses."""
    with open(tmp_path / "data", "wb") as file:
        file.truncate(2**30)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_PROGRAM, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split("\n") == [f"{2**30} {2**30} 100000000", "MemoryError", ""]


@pytest.mark.parametrize(
    ("limit", "hard", "set_to"),
    [(None, resource.RLIM_INFINITY, None), (1000, resource.RLIM_INFINITY, 1000), (1000, 300, 300)],
)
def test_a_lower_hard_limit_stays(limit, hard, set_to, monkeypatch):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: calls.append(limits))
    memory_limit.apply_limit(limit)
    assert calls == ([] if set_to is None else [(resource.RLIMIT_DATA, (set_to, set_to))])


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
def test_the_limit_is_a_share_of_memory(cgroup, hard, processes, each, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 100}[name])
    monkeypatch.setattr(memory_limit, "memory_limit_bytes", lambda: cgroup)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    assert memory_limit.limit_per_process_bytes(processes) == each


@pytest.mark.parametrize(("limit", "processes", "more"), [(100, 1, 200), (400, 2, 475), (480, 2, 475)])
def test_a_raised_limit_is_at_most_the_memory_of_the_node(limit, processes, more, monkeypatch):
    monkeypatch.setattr(memory_limit, "_node_bytes", lambda: 1000)
    assert memory_limit.raised_limit_bytes(limit, processes) == more


def test_a_limit_needs_linux_4_7(monkeypatch):
    for platform, releases in {"linux": "4.7.0 6.18.44-x 4.4.0 odd", "darwin": "23.1.0"}.items():
        for release in releases.split():
            monkeypatch.setattr("sys.platform", platform)
            monkeypatch.setattr("platform.release", lambda release=release: release)
            reason = memory_limit.limit_unsupported_reason()
            assert reason is None if release in ("4.7.0", "6.18.44-x") else release in str(reason)


OUT_OF_MEMORY_LINES = [
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
    "CUDA error: out of memory",
    "RuntimeError: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: Unable to find an engine to execute this computation",
    "NOT_FOUND: No valid cuDNN algorithm worked!  Try looking for a valid cuDNN algorithm",
    "RESOURCE_EXHAUSTED: failed to allocate memory",
]
LIMIT_ONLY = OUT_OF_MEMORY_LINES[3:5] + OUT_OF_MEMORY_LINES[6:7]  # which other things cause elsewhere
OTHER_LINES = [
    "Allocation of 153600000 exceeds 10% of free system memory.",  # TensorFlow's advice, of a run that is ok
    "RuntimeError: Connection closed by peer [127.0.0.1]:1234",
    "Status: 3, message: could not create a primitive descriptor",  # oneDNN: not implemented
    "This is memory growth of the device 0",
]
# Of PyTorch and NCCL, with a /dev/shm of 64 MB.
SHARED_MEMORY_LINES = [
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_27_1>: No space left on device (28)",
    "RuntimeError: unable to write to file </torch_27_2>: No space left on device (28)",
    "RuntimeError: DataLoader worker (pid 27) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit.",
    "Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
]


@pytest.mark.parametrize("line", [*OUT_OF_MEMORY_LINES, *OTHER_LINES])
def test_messages_of_a_process_at_its_limit_are_recognized(line):
    """Messages that frameworks have printed."""
    assert (memory_limit.AT_LIMIT.search(line) is not None) == (line in OUT_OF_MEMORY_LINES)
    assert (memory_limit.OUT_OF_MEMORY.search(line) is not None) == (
        line in OUT_OF_MEMORY_LINES and line not in LIMIT_ONLY
    )


@pytest.mark.parametrize("line", SHARED_MEMORY_LINES)
def test_full_shared_memory_is_no_lack_of_memory(line, tmp_path, monkeypatch):
    """A search for the largest batch would take a smaller one for it."""
    found = os.statvfs_result((1, 4096, (64 << 20) // 4096, *[0] * 7))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    record = RankRecord(0, "host", 1)
    classify_error(RuntimeError(line), record)
    assert record.status == "failed"
    assert str(record.reason).startswith("/dev/shm is full (64 MB): make it larger, in docker with --shm-size (")
    assert not memory_limit.lacks_memory(str(record.reason))
    (tmp_path / "rank0.log").write_text(line)
    assert memory_limit.find_out_of_memory_line(tmp_path / "rank0.log") is None


@pytest.mark.gpu
def test_tensorflow_may_go_on_with_less_memory(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller "
        "indicates that this is not a failure, but this may mean that there could be performance gains if more memory "
        "were available.\nRuntimeError: something else\n"
    )
    assert memory_limit.find_out_of_memory_line(log) is None


def test_the_last_message_in_the_end_of_a_log_is_found(tmp_path):
    log = tmp_path / "rank0.log"
    assert memory_limit.find_out_of_memory_line(log) is None
    log.write_text("x" * 300_000 + "\nMemoryError\n  what():   std::bad_alloc\nlater\n")
    assert memory_limit.find_out_of_memory_line(log) == "what(): std::bad_alloc"
    log.write_text("MemoryError of old\n" + "x" * 300_000)
    assert memory_limit.find_out_of_memory_line(log) is None
