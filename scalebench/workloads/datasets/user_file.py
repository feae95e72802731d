"""`dataset.path`: a user's .npz file, checked and unpacked into the dataset cache."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import numpy as np
import psutil
from numpy.lib import format as npy
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.units import format_binary_bytes
from scalebench.workloads.datasets import cache
from scalebench.workloads.network import Shape

ARRAY_NAMES = ("inputs", "targets")  # in the user's file
BLOCK_SAMPLES = 4096  # converted and checked at a time


def import_npz(cache_dir: Path, path: Path, input_shape: Shape, target_shape: Shape) -> Path:
    """Return the folder under `cache_dir` with the arrays of the .npz file at `path`, as float32.

    The file has to contain `inputs` (n, *input_shape) and `targets` (n, *target_shape) of any float dtype, with finite
    values. It is read once: a file of the same absolute path, size and modification time is taken from the cache.
    Raises InputError, in one line, for anything that is wrong with the file.
    """
    path = path.absolute()
    status = _check_file(path)
    identity = {
        "path": str(path),
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inputs": list(input_shape),
        "targets": list(target_shape),
    }
    write = partial(_unpack, path, dict(zip(ARRAY_NAMES, (input_shape, target_shape), strict=True)))
    return cache.ensure_folder(cache_dir, "user_file", identity, 0, write)  # it checks the space by itself


def read_shapes(path: Path) -> tuple[Shape, Shape]:
    """Return the shapes of one sample and of its target in the .npz file. Raises InputError as import_npz does."""
    path = path.absolute()
    _check_file(path)
    shapes = [_read_header(path, name).shape for name in ARRAY_NAMES]
    for name, shape in zip(ARRAY_NAMES, shapes, strict=True):
        if len(shape) < 2:
            raise InputError(f"dataset.path={path}: {name} has shape {shape}, expected (n, ...): reshape it")
    return shapes[0][1:], shapes[1][1:]


class ArrayHeader(NamedTuple):
    shape: Shape
    dtype: np.dtype[Any]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


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


def _unpack(path: Path, shapes: dict[str, Shape], folder: Path) -> None:
    headers = {name: _read_header(path, name) for name in shapes}
    for name, header in headers.items():
        _check_layout(path, name, header, shapes[name])
    lengths = {name: header.shape[0] for name, header in headers.items()}
    if len(set(lengths.values())) > 1:
        counts = " and ".join(f"{count} {name}" for name, count in lengths.items())
        raise InputError(f"dataset.path={path} contains {counts}: give every sample both")
    _check_resources(path, headers, folder)
    for name in shapes:
        _write_float32(path, name, _read_array(path, name), folder / f"{name}.npy")  # the cache uses the same names


def _check_resources(path: Path, headers: dict[str, ArrayHeader], folder: Path) -> None:
    """Raise InputError or OSError (ENOSPC) where the unpacked arrays do not fit: a small file may hold large ones."""
    cache.check_space(folder, sum(header.elements for header in headers.values()) * np.dtype(np.float32).itemsize)
    free_bytes = psutil.virtual_memory().available
    for name, header in headers.items():
        size_bytes = header.elements * header.dtype.itemsize
        if size_bytes > free_bytes:
            raise InputError(
                f"dataset.path={path}: {name} takes {format_binary_bytes(size_bytes)}, "
                f"{format_binary_bytes(free_bytes)} of memory are free: store fewer samples, or as float32"
            )


@contextmanager
def _open_member(path: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open an array of the file; yields (stream, bytes). Raises InputError for no such array and for a damaged file."""
    try:
        # Not np.load, which leaves a damaged file open and also accepts a single .npy array.
        with ZipFile(path) as file:
            names = [member.removesuffix(".npy") for member in file.namelist()]
            if name in names:
                member = f"{name}.npy"
                with file.open(member) as stream:
                    yield stream, file.getinfo(member).file_size
                return
    except Exception as error:  # a damaged zip file raises a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is no readable .npz ({reason}): write it with numpy.savez") from None
    raise InputError(
        f"dataset.path={path} contains {', '.join(names) or 'nothing'}, but no array {name}: "
        f"write it with numpy.savez(path, {', '.join(f'{key}=...' for key in ARRAY_NAMES)})"
    )


def _read_header(path: Path, name: str) -> ArrayHeader:
    with _open_member(path, name) as (stream, size_bytes):
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"{name}.npy has version {version}")
        shape, _, dtype = read(stream)
        header = ArrayHeader(shape, dtype)
        if dtype.hasobject:
            raise ValueError(f"{name}.npy has Python objects")
        if min(shape, default=0) < 0 or header.elements * dtype.itemsize > size_bytes:
            raise ValueError(f"{name}.npy has {size_bytes} bytes, too few for its shape {shape}")
        return header


def _read_array(path: Path, name: str) -> NDArray[Any]:
    with _open_member(path, name) as (stream, _):
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array


def _check_layout(path: Path, name: str, header: ArrayHeader, shape: Shape) -> None:
    if not header.shape or header.shape[1:] != shape:
        expected = ", ".join(["n", *map(str, shape)])
        raise InputError(f"dataset.path={path}: {name} has shape {header.shape}, expected ({expected}): reshape it")
    if header.shape[0] == 0:
        raise InputError(f"dataset.path={path}: {name} has no samples: give at least one per device")
    if not np.issubdtype(header.dtype, np.floating):
        raise InputError(f"dataset.path={path}: {name} is {header.dtype}, expected floats: cast it to float32")


def _write_float32(path: Path, name: str, array: NDArray[Any], file: Path) -> None:
    """Write the array as float32 into `file`. Raises InputError if a value is not finite or overflows in float32."""
    out = cache.create_array(file, array.shape, "float32")
    bad_values, first = 0, None
    for start in range(0, len(array), BLOCK_SAMPLES):
        with np.errstate(over="ignore"):
            block = array[start : start + BLOCK_SAMPLES].astype(np.float32)
        bad = np.argwhere(~np.isfinite(block))
        if len(bad) and first is None:
            first = (start + int(bad[0, 0]), *bad[0, 1:].tolist())
        bad_values += len(bad)
        out[start : start + BLOCK_SAMPLES] = block
    if bad_values:
        raise InputError(
            f"dataset.path={path}: {name} has {bad_values} NaN or infinite values as float32, the first "
            f"at {first}: correct or remove those samples"
        )
