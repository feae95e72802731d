"""Reading from the disk: the same rows, and really from the disk where that can be told."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.workloads import uncached_rows
from scalebench.workloads.uncached_rows import UncachedRows

SAMPLES = 400


@pytest.fixture
def array(tmp_path):
    rows = np.arange(SAMPLES * 600, dtype=np.float32).reshape(SAMPLES, 200, 3)
    return saved(tmp_path / "inputs.npy", rows)


def saved(path: Path, rows: np.ndarray) -> np.memmap:
    np.save(path, rows)
    return np.load(path, mmap_mode="r")


def disk_rows(array: np.memmap) -> UncachedRows:
    try:
        return UncachedRows(array)
    except InputError as error:
        pytest.skip(str(error))  # the temporary folder lies in memory


def test_rows_equal_those_of_the_map(array):
    indices = np.array([399, 0, 7, 7, 200])
    rows = disk_rows(array)(indices)
    assert type(rows) is np.ndarray and rows.flags.writeable
    assert np.array_equal(rows, array[indices])


def test_scalar_labels(tmp_path):
    labels = saved(tmp_path / "labels.npy", np.arange(50))
    assert disk_rows(labels)(np.array([3, 49, 0])).tolist() == [3, 49, 0]


def read_bytes() -> int:
    """Bytes that this process made the disk deliver (man 5 proc)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="needs Linux")
def test_every_batch_comes_from_the_disk_again(array):
    rows = disk_rows(array)
    indices = np.arange(0, SAMPLES, 4)
    for _ in range(2):
        before_bytes = read_bytes()
        rows(indices)
        assert read_bytes() - before_bytes >= len(indices) * 2400


@pytest.mark.skipif(not os.access("/dev/shm", os.R_OK), reason="needs a file system in memory")
def test_file_systems_in_memory_are_recognized():
    assert uncached_rows._file_system(Path("/dev/shm")) == "tmpfs"
    assert uncached_rows._file_system(Path("/proc/self/status")) == "proc"


def test_a_file_in_memory_is_an_input_error(array, monkeypatch):
    monkeypatch.setattr(uncached_rows, "_file_system", lambda path: "tmpfs")
    with pytest.raises(
        InputError, match=r"inputs\.npy from a disk, since it is in memory.*dataset\.cache.*dataset\.feed=host"
    ):
        UncachedRows(array)


def test_a_system_without_posix_fadvise(array, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise")
    with pytest.raises(InputError, match=r"dataset\.feed=disk needs posix_fadvise.*dataset\.feed=host"):
        UncachedRows(array)


def test_an_array_in_memory_is_a_callers_mistake():
    with pytest.raises(ValueError, match="memory-mapped"):
        UncachedRows(np.ones((3, 2)))


def test_a_file_that_got_shorter(array):
    rows = disk_rows(array)
    os.truncate(array.filename, 2400 * 100)
    with pytest.raises(OSError, match="ends before sample 399"):
        rows(np.array([0, 399]))


def test_the_file_is_closed_with_the_reader(array):
    rows = disk_rows(array)
    number = rows._file
    os.fstat(number)
    del rows
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(number)
