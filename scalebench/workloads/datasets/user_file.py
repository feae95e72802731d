"""`dataset.path`: a user's .npz file, checked and unpacked into the dataset cache."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets import cache, sample_writer
from scalebench.workloads.network import Shape

ARRAY_NAMES = ("inputs", "targets")  # in the user's file
T = TypeVar("T")


def import_npz(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the arrays of the .npz file at `path`, as float32.

    The file has to contain `inputs` (n, *input_shape) and `targets` (n, *target_shape) of the model, of any float
    dtype, with finite values. It is read once: a file of the same absolute path, size and modification time is taken
    from the cache. Raises InputError, in one line, for anything that is wrong with the file.
    """
    path, shapes = path.absolute(), (config.model.input_shape, config.model.target_shape)
    status = _check_file(path)
    identity = {"path": str(path), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    identity |= {name: list(shape) for name, shape in zip(ARRAY_NAMES, shapes, strict=True)}
    return cache.ensure_folder(cache_dir, "user_file", identity, 0, partial(_unpack, path, shapes))


def read_shapes(path: Path) -> tuple[Shape, Shape]:
    """Return the shapes of one sample and of its target in the .npz file. Raises InputError as import_npz does."""
    path = path.absolute()
    _check_file(path)
    inputs, targets = (_read(path, name, _read_shape) for name in ARRAY_NAMES)
    for name, shape in zip(ARRAY_NAMES, (inputs, targets), strict=True):
        if len(shape) < 2:
            raise InputError(f"dataset.path={path}: {name} has shape {shape}, expected (n, ...): reshape it")
    return inputs[1:], targets[1:]


def _check_file(path: Path) -> os.stat_result:
    """Return the status of a file that can be read to its end."""
    try:
        status = path.stat()
        reason = None if stat.S_ISREG(status.st_mode) else "not a regular file"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise InputError(f"dataset.path={path} cannot be read ({reason}): give the path of an .npz file")
    return status


def _unpack(path: Path, shapes: tuple[list[int], list[int]], folder: Path) -> None:
    arrays = []
    for name, shape in zip(ARRAY_NAMES, shapes, strict=True):
        array: NDArray[Any] = _read(path, name, lambda file, name: file[name])
        if array.shape[1:] != tuple(shape) or not array.shape:
            expected = ", ".join(["n", *map(str, shape)])
            raise InputError(f"dataset.path={path}: {name} has shape {array.shape}, expected ({expected}): reshape it")
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(f"dataset.path={path}: {name} is {array.dtype}, expected floats: cast it to float32")
        arrays.append(array)
    try:
        unusable = sample_writer.write_samples(tuple(arrays), folder, len(arrays[0])).unusable_targets
    except sample_writer.UnusableSamples as error:
        raise InputError(f"dataset.path={path} has {error}") from None
    if unusable is not None:
        raise InputError(f"dataset.path={path} has {unusable}: correct or drop it")


def _read(path: Path, name: str, read: Callable[[NpzFile, str], T]) -> T:
    """Read an array of the file. Raises InputError for no such array and for a damaged file."""
    try:
        # By its handle, which np.load leaves open where the file is damaged.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise ValueError("one array, as numpy.save writes it")
            if name in file.files:
                return read(file, name)
            names = file.files
    except MemoryError:
        raise InputError(f"dataset.path={path}: {name} needs more memory than there is: store fewer samples") from None
    except Exception as error:  # a damaged zip file raises a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is not a readable .npz ({reason}): write it with numpy.savez") from None
    raise InputError(
        f"dataset.path={path} contains {', '.join(names) or 'nothing'}, but no array {name}: "
        f"write it with numpy.savez(path, {', '.join(f'{key}=...' for key in ARRAY_NAMES)})"
    )


def _read_shape(file: NpzFile, name: str) -> Shape:
    """Read the header alone."""
    assert file.zip is not None
    with file.zip.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return tuple(read(stream)[0])
