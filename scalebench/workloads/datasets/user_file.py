"""`dataset.path`: a user's .npz file, checked and unpacked into the dataset cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from scalebench.core.errors import InputError
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
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(
            f"dataset.path={path} cannot be read ({error.strerror}): give the path of an .npz file"
        ) from None
    identity = {
        "path": str(path),
        "bytes": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "inputs": list(input_shape),
        "targets": list(target_shape),
    }
    write = partial(_unpack, path, dict(zip(ARRAY_NAMES, (input_shape, target_shape), strict=True)))
    # The unpacked size is unknown before the file is read; create_array checks the space.
    return cache.ensure_folder(cache_dir, "user_file", identity, stat.st_size, write)


def read_shapes(path: Path) -> tuple[Shape, Shape]:
    """Return the shapes of one sample and of its target in the .npz file. Raises InputError as import_npz does."""
    path = path.absolute()
    if not path.is_file():
        raise InputError(f"dataset.path={path} cannot be read (no such file): give the path of an .npz file")
    shapes = [_read_array(path, name).shape for name in ARRAY_NAMES]
    for name, shape in zip(ARRAY_NAMES, shapes, strict=True):
        if len(shape) < 2:
            raise InputError(f"dataset.path={path}: {name} has shape {shape}, expected (n, ...): reshape it")
    return shapes[0][1:], shapes[1][1:]


def _unpack(path: Path, shapes: dict[str, Shape], folder: Path) -> None:
    samples = {}
    for name, shape in shapes.items():
        array = _read_array(path, name)
        _check_layout(path, name, array, shape)
        _write_float32(path, name, array, folder / f"{name}.npy")  # the cache uses the same names
        samples[name] = len(array)
    if len(set(samples.values())) > 1:
        lengths = " and ".join(f"{count} {name}" for name, count in samples.items())
        raise InputError(f"dataset.path={path} contains {lengths}: give every sample both")


def _read_array(path: Path, name: str) -> NDArray[Any]:
    try:
        # Not np.load, which leaves a damaged file open and also accepts a single .npy array.
        with path.open("rb") as stream, NpzFile(stream, allow_pickle=False) as file:
            names: list[str] = list(file.files)
            array = file[name] if name in names else None
    except Exception as error:  # a damaged zip file raises a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is no readable .npz ({reason}): write it with numpy.savez") from None
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"dataset.path={path} contains {', '.join(names) or 'nothing'}, but no array {name}: "
            f"write it with numpy.savez(path, {', '.join(f'{key}=...' for key in ARRAY_NAMES)})"
        )
    return array


def _check_layout(path: Path, name: str, array: NDArray[Any], shape: Shape) -> None:
    if array.ndim == 0 or array.shape[1:] != shape:
        expected = ", ".join(["n", *map(str, shape)])
        raise InputError(f"dataset.path={path}: {name} has shape {array.shape}, expected ({expected}): reshape it")
    if len(array) == 0:
        raise InputError(f"dataset.path={path}: {name} has no samples: give at least one per device")
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"dataset.path={path}: {name} is {array.dtype}, expected floats: cast it to float32")


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
