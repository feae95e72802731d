"""`dataset.feed=disk`: rows of a .npy file read from the disk itself instead of the page cache."""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError

IN_MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class UncachedRows:
    """Reads samples of a memory-mapped .npy file with pread, past the page cache.

    Before each batch the complete file is dropped from the page cache, so the kernel has to read from the disk.
    Calling the object with indices of shape (n,) returns a new array of shape (n, *sample shape). Pages that any
    process has touched through a memory map stay in memory, so the map itself must not be read meanwhile.

    Raises InputError where the system cannot drop pages or where the file is on an in-memory file system, and
    ValueError for an array that is not a memory-mapped file in C order.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
            raise ValueError("reading from disk takes a memory-mapped .npy file in C order")
        self.path = Path(array.filename)
        _check_droppable(self.path)
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._row_bytes: int = array.dtype.itemsize * math.prod(self._shape)
        self._data_start: int = array.offset
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        os.fsync(self._file)  # dirty pages, which are not on the disk yet, cannot be dropped
        # Without this the kernel reads ahead, and much of what it reads is never used.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        rows = np.empty((len(indices), *self._shape), self._dtype)
        # Drop the complete file: for a range the kernel would keep the pages that are only partly inside it.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        flat = rows.reshape(len(indices), math.prod(self._shape))  # so that scalar labels are buffers, too
        for row, index in zip(flat, indices.tolist(), strict=True):
            offset = self._data_start + index * self._row_bytes
            if os.preadv(self._file, [row.data], offset) != self._row_bytes:
                raise OSError(f"{self.path} ends before sample {index}")
        return rows


def _check_droppable(path: Path) -> None:
    """Raise InputError where pages of the file cannot be dropped from memory."""
    if not hasattr(os, "posix_fadvise"):
        raise InputError("dataset.feed=disk needs posix_fadvise, which this system lacks: use dataset.feed=host")
    if (kind := _file_system(path)) in IN_MEMORY_FILE_SYSTEMS:
        raise InputError(
            f"dataset.feed=disk cannot read {path} from a disk, since it is in memory ({kind}): "
            "set dataset.cache (or hardware.node_copy, if it is used) to a folder on a disk, or dataset.feed=host"
        )


def _file_system(path: Path) -> str | None:
    """Return the type of the file system that holds `path` (man 5 proc_pid_mountinfo), or None if unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    types = (mount.partition(" - ")[2].split()[0] for mount in mounts if mount.split()[2] == number)
    return next(types, None)
