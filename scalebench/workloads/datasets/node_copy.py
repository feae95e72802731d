"""`hardware.node_copy`: a copy of the dataset on a disk of each node, made once and kept for later runs.

The copy is a cache folder like any other: complete or absent, and written by one process while others wait. Other files
in that folder are left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.workloads.datasets import cache

COPY_CHUNK_BYTES = 2**24


def copy_to_node(folder: Path, target: str, wait_s: float, on_copied: Callable[[], None] = lambda: None) -> Path:
    """Return the copy under `target` of a complete cache folder, and make it first if it is missing or damaged.

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
        identity = json.loads((folder / cache.META).read_text())["identity"]
        size_bytes = sum((folder / file).stat().st_size for file in (cache.INPUTS, cache.TARGETS))
    except OSError as error:
        raise _unreadable(folder, error) from None
    name = identity.pop("name")
    settings = cache.CacheSettings("node copy", "hardware.node_copy", wait_s)
    return cache.ensure_folder(target_dir, name, identity, size_bytes, partial(_copy, folder, on_copied), settings)


def _copy(source: Path, on_copied: Callable[[], None], folder: Path) -> None:
    for name in (cache.INPUTS, cache.TARGETS):
        with (folder / name).open("wb") as copy:
            for chunk in _read_chunks(source, name):
                copy.write(chunk)
                on_copied()


def _read_chunks(source: Path, name: str) -> Iterator[bytes]:
    """Yield the chunks of a file; an error in reading is another one than an error in writing, such as a full disk."""
    try:
        with (source / name).open("rb") as file:
            while chunk := file.read(COPY_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Path, error: OSError) -> InputError:
    return InputError(
        f"dataset {source} cannot be read on this node ({error.strerror}): set dataset.cache to a folder that all "
        "nodes share"
    )
