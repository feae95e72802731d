"""The dataset cache: folders with inputs.npy, targets.npy and meta.json, each written once and then only read.

Ranks open the arrays memory-mapped, so that they share the page cache and none holds a copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.spec import DatasetSpec

Arrays = tuple[NDArray[Any], NDArray[Any]]
INPUTS, TARGETS, META = "inputs.npy", "targets.npy", "meta.json"
LAYOUT_VERSION = 1
NOTICE_AFTER_S = 2.0  # a wait that takes longer prints one line
POLL_INTERVAL_S = 0.5  # of the lock after that
COPY_CHUNK_BYTES = 2**24
MAX_WAIT_S = 4 * 3600.0  # one core decodes all of ImageNet, the largest dataset, in half of it


def ensure_folder(
    cache_dir: Path,
    name: str,
    identity: Mapping[str, Any],
    size_bytes: int,
    write: Callable[[Path], None],
    wait_s: float = MAX_WAIT_S,
    label: str = "dataset cache",
    config_key: str = "dataset.cache",
) -> Path:
    """Return the folder of the dataset `name` with this `identity`, and write it first if it is missing or damaged.

    `identity` (JSON values) is what distinguishes this dataset from others of its name. `write(folder)` puts inputs.npy
    and targets.npy, together about `size_bytes`, into an empty folder, which gets its final name when it is complete.
    Of several processes one writes while the others wait, and say so on standard error after NOTICE_AFTER_S.

    Raises InputError naming `cache_dir`, which is the `label` that `config_key` sets, when it is full or cannot be
    written, or when waiting takes longer than `wait_s`. Errors of `write` other than OSError pass through.
    """
    key = cache_key(name, identity)
    folder = cache_dir.absolute() / f"{name}-{key}"
    if is_complete(folder, key):  # checked before taking the lock, so that a read-only cache works as well
        return folder
    import filelock  # only programs that make something need it

    lock = filelock.FileLock(f"{folder}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        notice_s = min(NOTICE_AFTER_S, wait_s)
        try:
            held = lock.acquire(notice_s)  # the kernel frees it if this process dies
        except filelock.Timeout:
            line = f"waiting up to {wait_s:g} s for the process that makes {folder.name}: it holds {lock.lock_file}"
            print(f"scalebench: {line}", file=sys.stderr, flush=True)
            held = lock.acquire(wait_s - notice_s, poll_interval=POLL_INTERVAL_S)  # perhaps of a network file system
        with held:
            if not is_complete(folder, key):
                free_bytes = shutil.disk_usage(folder.parent).free
                if free_bytes < size_bytes:
                    raise OSError(errno.ENOSPC, f"{free_bytes / 1e9:.3g} GB free, {size_bytes / 1e9:.3g} GB needed")
                _build(folder, {"name": name, **identity}, key, write)
    except filelock.Timeout:
        raise InputError(
            f"{label} {folder.parent}: another process has held {folder.name}.lock for {wait_s:g} s without writing "
            f"the dataset; end it, or set {config_key}=/another/folder"
        ) from None
    except OSError as error:
        problem = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
        line = f"{label} {folder.parent} {problem} ({error.strerror or error})"
        raise InputError(f"{line}: set {config_key}=/another/folder") from None
    return folder


def open_arrays(folder: Path) -> Arrays:
    """Return inputs and targets of a cached dataset, memory-mapped, with the samples along the first axis."""
    return np.lib.format.open_memmap(folder / INPUTS, mode="r"), np.lib.format.open_memmap(folder / TARGETS, mode="r")


def create_array(path: Path, shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> NDArray[Any]:
    """Create a .npy file and return it memory-mapped for writing. Raises OSError (ENOSPC) if the disk has no room."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Reserve the space now: a disk that fills up later, during writes to mapped memory, kills us with SIGBUS.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def cache_key(name: str, identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits that change with the name, the identity and the layout of the cache."""
    text = json.dumps([LAYOUT_VERSION, name, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_complete(folder: Path, key: str) -> bool:
    """Return whether the folder holds the complete dataset with this cache key."""
    try:
        meta = json.loads((folder / META).read_text())
        return bool(
            meta["fingerprint"] == key
            and meta["arrays"] == {file: _describe(folder / file) for file in (INPUTS, TARGETS)}
        )
    except Exception:  # missing, damaged in any way, or of another layout: in each case it has to be written
        return False


def _describe(path: Path) -> dict[str, Any]:
    """Return shape, dtype and bytes of an array file. Raises ValueError if it is shorter than its header says."""
    array = np.lib.format.open_memmap(path, mode="r")
    return {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": path.stat().st_size}


def _build(folder: Path, identity: Mapping[str, Any], key: str, write: Callable[[Path], None]) -> None:
    """Write the folder, under another name until it is complete. The caller holds its lock, so that a temporary folder
    is one that a killed process has left."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        meta = {
            "layout_version": LAYOUT_VERSION,
            "fingerprint": key,
            "identity": identity,
            "arrays": {file: _describe(temporary / file) for file in (INPUTS, TARGETS)},
        }
        (temporary / META).write_text(json.dumps(meta) + "\n")
        for file in (INPUTS, TARGETS, META):  # to the disk first: after a power cut, a renamed file may hold zeros
            with (temporary / file).open("rb") as written:
                os.fsync(written.fileno())
        shutil.rmtree(folder, ignore_errors=True)  # it is damaged, since a complete one would have been returned
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def copy_to_node(folder: Path, target: str, wait_s: float, on_copied: Callable[[], None] = lambda: None) -> Path:
    """Return the copy of a complete cache folder on a disk of this node, and make it first if it is missing or damaged:
    `hardware.node_copy`. It is a cache folder like any other, kept for later runs.

    `target` may contain environment variables, such as $TMPDIR, which are expanded on this node. `on_copied` is called
    after each chunk. Raises InputError where that disk is full or cannot be written, where the dataset cannot be read,
    and where another process on this node has been copying for `wait_s`.
    """
    target_dir = Path(os.path.expandvars(target)).expanduser()
    if "$" in str(target_dir):
        raise InputError(f"hardware.node_copy={target} has a variable that is not set on this node; write it out")
    if not target_dir.is_absolute():
        raise InputError(f"hardware.node_copy={target} should be an absolute path, such as /tmp/scalebench")
    try:
        identity = json.loads((folder / META).read_text())["identity"]
        size_bytes = sum((folder / file).stat().st_size for file in (INPUTS, TARGETS))
    except OSError as error:
        raise InputError(
            f"dataset {folder} cannot be read on this node ({error.strerror}): set dataset.cache to a folder that all "
            "nodes share"
        ) from None
    name, write = identity.pop("name"), partial(_copy, folder, on_copied)
    return ensure_folder(target_dir, name, identity, size_bytes, write, wait_s, "node copy", "hardware.node_copy")


def _copy(source: Path, on_copied: Callable[[], None], folder: Path) -> None:
    for name in (INPUTS, TARGETS):
        with (source / name).open("rb") as file, (folder / name).open("wb") as copy:
            while chunk := file.read(COPY_CHUNK_BYTES):
                copy.write(chunk)
                on_copied()


@dataclass(frozen=True)
class ChunkedDataset:
    """A dataset that is made chunk by chunk; equal fields (except `make` and `chunk`) mean equal files.

    `make(start, count)` returns inputs (count, *input_shape) and targets (count, *target_shape), at most `chunk`
    samples at a time. Raise `version` when its output changes. `details` (JSON values) are all other things that the
    output depends on.
    """

    spec: DatasetSpec  # its name, size and seed
    version: int
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    chunk: int
    make: Callable[[int, int], Arrays]
    input_dtype: str = "float32"
    target_dtype: str = "float32"
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of both arrays without their headers."""
        sample_bytes = np.dtype(self.input_dtype).itemsize * math.prod(self.input_shape)
        sample_bytes += np.dtype(self.target_dtype).itemsize * math.prod(self.target_shape)
        return self.spec.size * sample_bytes

    def ensure(self, cache_dir: Path) -> Path:
        """Return the folder of this dataset under `cache_dir`, and make it first if it is missing or damaged.

        Raises InputError when the folder cannot be written.
        """
        identity = {
            "version": self.version,
            "samples": self.spec.size,
            "seed": self.spec.seed,
            "inputs": [list(self.input_shape), self.input_dtype],
            "targets": [list(self.target_shape), self.target_dtype],
            **self.details,
        }
        return ensure_folder(cache_dir, self.spec.name, identity, self.size_bytes, self._write)

    def _write(self, folder: Path) -> None:
        inputs = create_array(folder / INPUTS, (self.spec.size, *self.input_shape), self.input_dtype)
        targets = create_array(folder / TARGETS, (self.spec.size, *self.target_shape), self.target_dtype)
        for start in range(0, self.spec.size, self.chunk):
            rows = slice(start, min(start + self.chunk, self.spec.size))
            inputs[rows], targets[rows] = self.make(start, rows.stop - start)
