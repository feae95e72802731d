"""`hardware.stage`: a copy of the data set on a disk of each node, made once and kept for the next run. Layer 1.

The copy is a folder of the cache as any other: whole or not there, and written by one process while others wait. What
else lies in the stage is left alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scalebench.spec import InputError
from scalebench.workloads import cache

CHUNK_BYTES = 2**24
TERMS = cache.Terms("stage", "hardware.stage")


def staged(folder: Path, stage: str, wait_s: float, on_copied: Callable[[], None] = lambda: None) -> Path:
    """The copy under `stage` of a `folder` of the cache, which is whole; made first if it is not there in good order.

    `stage` may name variables, which hold what they do on this node: $TMPDIR. `on_copied` is called after each piece.
    InputError in one line where the stage is full or cannot be written, where the data set cannot be read, and where
    another process on this node has been at it for `wait_s`.
    """
    where = _place(stage)
    try:
        identity = json.loads((folder / cache.META).read_text())["identity"]
        size_bytes = sum((folder / file).stat().st_size for file in (cache.INPUTS, cache.TARGETS))
    except OSError as error:
        raise _unreadable(folder, error) from None
    name = identity.pop("name")
    terms = cache.Terms(TERMS.what, TERMS.setting, wait_s)
    return cache.ensure(where, name, identity, size_bytes, partial(_copy, folder, on_copied), terms)


def _place(stage: str) -> Path:
    where = Path(os.path.expandvars(stage)).expanduser()
    if "$" in str(where):
        raise InputError(f"hardware.stage={stage} names a variable that is not set on this node; write the folder out")
    if not where.is_absolute():
        raise InputError(f"hardware.stage={stage} should be a folder from the root on, such as /tmp/scalebench")
    return where


def _copy(source: Path, on_copied: Callable[[], None], folder: Path) -> None:
    for file in (cache.INPUTS, cache.TARGETS):
        try:
            reading = (source / file).open("rb")
        except OSError as error:
            raise _unreadable(source, error) from None
        with reading, (folder / file).open("wb") as writing:
            while piece := _read(reading.read, source):
                writing.write(piece)
                on_copied()


def _read(read: Callable[[int], bytes], source: Path) -> bytes:
    try:
        return read(CHUNK_BYTES)
    except OSError as error:
        raise _unreadable(source, error) from None


def _unreadable(source: Path, error: OSError) -> InputError:
    return InputError(
        f"data set {source} cannot be read on this node ({error.strerror}): set dataset.cache to a folder that all "
        "nodes see"
    )
