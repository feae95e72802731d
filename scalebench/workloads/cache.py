"""Datasets on disk, written once: one folder each, with inputs.npy, targets.npy and meta.json.

Ranks open the arrays memory-mapped, so that they share the page cache and none holds a copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import InputError

INPUTS, TARGETS, META = "inputs.npy", "targets.npy", "meta.json"
LAYOUT_VERSION = 1
_ASK_S = 0.05  # between two looks at a lock that is not waited for without end
_TEMPORARY = re.compile(r"\.(.+-[0-9a-f]{16})\.tmp-[0-9a-f]{8}")  # the folder it is to become


@dataclass(frozen=True)
class Terms:
    """What a folder of data sets goes by in messages, the setting that says where it is, and the patience of those that
    wait for another process to write there."""

    what: str = "dataset cache"
    setting: str = "dataset.cache"
    wait_s: float = math.inf


def ensure(
    cache_dir: Path,
    name: str,
    identity: Mapping[str, Any],
    size_bytes: int,
    write: Callable[[Path], None],
    terms: Terms = Terms(),
) -> Path:
    """Folder of the dataset `name` with this `identity`, written first if it is not there in good order.

    `identity` (what JSON can hold) says what makes this dataset differ from others of its name.
    `write(folder)` puts inputs.npy and targets.npy, about `size_bytes` together, into an empty
    folder, which gets its final name once it is whole. Of several processes one writes and the
    others wait. Raises InputError naming `cache_dir` when it is full or cannot be written; errors
    that `write` raises, OSError aside, pass through.
    """
    mark = fingerprint(name, identity)
    folder = cache_dir.absolute() / f"{name}-{mark}"
    if is_whole(folder, mark):  # asked before any lock, so that a read-only cache serves as well
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder, terms.wait_s) as alone:
            if not alone and not is_whole(folder, mark):
                raise InputError(
                    f"{terms.what} {folder.parent}: another process has held {folder.name}.lock for {terms.wait_s:g} s "
                    f"and not written the data set; end it, or set {terms.setting}=/another/folder"
                )
            if alone and not is_whole(folder, mark):
                _remove_leftovers(folder)
                _check_space(folder.parent, size_bytes)
                _build(folder, {"name": name, **identity}, mark, write)
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        says = "is full" if full else "cannot be written"
        raise InputError(
            f"{terms.what} {folder.parent} {says} ({reason}): set {terms.setting}=/another/folder"
        ) from None
    return folder


def open_arrays(folder: Path, mode: Literal["r", "r+"] = "r") -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and targets of a cached dataset, memory-mapped, samples along the first axis."""
    return _open(folder / INPUTS, mode), _open(folder / TARGETS, mode)


def create(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """A new .npy file, memory-mapped for writing. OSError (ENOSPC) if the disk has no room for it."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Reserved now, since a full disk met later, while writing to mapped memory, is a SIGBUS.
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def fingerprint(name: str, identity: Mapping[str, Any]) -> str:
    """16 hex digits that change with the name, the identity and the layout of the cache."""
    text = json.dumps([LAYOUT_VERSION, name, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_whole(folder: Path, mark: str) -> bool:
    """Whether the folder holds the dataset with fingerprint `mark`, and all of it."""
    try:
        meta = json.loads((folder / META).read_text())
        return bool(
            meta["fingerprint"] == mark
            and meta["arrays"] == {file: _describe(folder / file) for file in (INPUTS, TARGETS)}
        )
    except Exception:  # missing, garbled in any way, of another layout: all mean that it is to be written
        return False


def _open(path: Path, mode: Literal["r", "r+"] = "r") -> NDArray[Any]:
    return np.lib.format.open_memmap(path, mode=mode)


def _describe(path: Path) -> dict[str, Any]:
    """Shape, dtype and bytes; ValueError when the file is shorter than its header says."""
    array = _open(path)
    return {"shape": list(array.shape), "dtype": str(array.dtype), "bytes": path.stat().st_size}


def _build(folder: Path, identity: Mapping[str, Any], mark: str, write: Callable[[Path], None]) -> None:
    temporary = folder.parent / f".{folder.name}.tmp-{secrets.token_hex(4)}"
    temporary.mkdir()
    try:
        write(temporary)
        meta = {
            "layout_version": LAYOUT_VERSION,
            "fingerprint": mark,
            "identity": identity,
            "arrays": {file: _describe(temporary / file) for file in (INPUTS, TARGETS)},
        }
        (temporary / META).write_text(json.dumps(meta) + "\n")
        for file in (INPUTS, TARGETS, META):
            _sync(temporary / file)
        if folder.exists():  # whatever lies there is not whole, or we would not be here
            folder.rename(temporary / "replaced")
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(folder / "replaced", ignore_errors=True)


def _sync(path: Path) -> None:
    """To the disk before the rename: after a power cut, a file of the right size may hold zeros."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_leftovers(folder: Path) -> None:
    """Temporary folders of builders that died: theirs is a lock that nobody holds any more."""
    for temporary in folder.parent.iterdir():
        match = _TEMPORARY.fullmatch(temporary.name)
        if match is None:
            continue
        owner = folder.with_name(match[1])
        with nullcontext(True) if owner == folder else _lock(owner, 0.0) as dead:
            if dead:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _lock(folder: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock beside `folder`; the kernel frees it when we die. False if it was taken for so long."""
    with folder.with_name(f"{folder.name}.lock").open("a") as file:
        deadline_s = time.monotonic() + wait_s
        while not (held := _held(file, math.isinf(wait_s))) and time.monotonic() < deadline_s:
            time.sleep(_ASK_S)
        yield held


def _held(file: IO[str], wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _check_space(folder: Path, size_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < size_bytes:
        reason = f"{free_bytes / 1e9:.3g} GB free, {size_bytes / 1e9:.3g} GB needed"
        raise OSError(errno.ENOSPC, reason)
