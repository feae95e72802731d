"""Rows of a .npy file read from the disk itself, and not from the page cache."""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import InputError

_IN_MEMORY = ("tmpfs", "ramfs")


class DiskRows:
    """Reads samples of a memory-mapped .npy file by pread.

    Before each batch the whole file is dropped from the page cache, which then cannot serve it.
    Calling it with indices (n,) gives a fresh array (n, *sample shape). Pages that any process has
    touched through a memory map stay in memory, so do not read the map itself meanwhile. Raises
    InputError where the system cannot drop pages, or where the file system is one in memory.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
            raise ValueError("reading from disk takes a memory-mapped .npy file in C order")
        self.path = Path(array.filename)
        _refuse_what_cannot_be_dropped(self.path)
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._row_bytes: int = array.dtype.itemsize * math.prod(self._shape)
        self._data_start: int = array.offset
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        os.fsync(self._file)  # pages that are not on the disk yet cannot be dropped
        # Without this the kernel reads ahead, and much of what it reads is never asked for.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        rows = np.empty((len(indices), *self._shape), self._dtype)
        # The whole file: a range would spare the pages that it covers in part only.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        flat = rows.reshape(len(indices), math.prod(self._shape))  # so that a lone label is a buffer too
        for row, index in zip(flat, indices.tolist(), strict=True):
            offset = self._data_start + index * self._row_bytes
            if os.preadv(self._file, [row.data], offset) != self._row_bytes:
                raise OSError(f"{self.path} ends before sample {index}")
        return rows


def _refuse_what_cannot_be_dropped(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        raise InputError("dataset.feed=disk needs posix_fadvise, which this system lacks: use dataset.feed=host")
    if (kind := _file_system(path)) in _IN_MEMORY:
        raise InputError(
            f"dataset.feed=disk finds {path} in memory ({kind}): "
            "set dataset.cache (hardware.stage, where there is one) to a folder on a disk, or dataset.feed=host"
        )


def _file_system(path: Path) -> str | None:
    """Type of the file system that holds `path` (man 5 proc_pid_mountinfo); None where unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    found = (mount.partition(" - ")[2].split()[0] for mount in mounts if mount.split()[2] == number)
    return next(found, None)
