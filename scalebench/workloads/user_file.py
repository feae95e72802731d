"""`dataset.path`: a user's own .npz, checked and unpacked into the dataset cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from scalebench.spec import InputError
from scalebench.workloads import cache

Shape = tuple[int, ...]
_BLOCK = 4096  # samples converted and checked at a time


def ensure(cache_dir: Path, path: Path, input_shape: Shape, target_shape: Shape) -> Path:
    """Folder under `cache_dir` with the arrays of the .npz at `path`, as float32.

    The file holds `inputs` (n, *input_shape) and `targets` (n, *target_shape), of any float type,
    and finite. It is read once; a file of the same absolute path, size and time of change is taken
    from the cache. Raises InputError, in one line, for whatever is wrong with it.
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
    write = partial(_unpack, path, {"inputs": input_shape, "targets": target_shape})
    # The size on disk is not known before the file is read; creating the arrays checks the space.
    return cache.ensure(cache_dir, "user_file", identity, stat.st_size, write)


def shapes(path: Path) -> tuple[Shape, Shape]:
    """Of one sample, of its target, as the .npz says them. InputError as ensure."""
    path = path.absolute()
    if not path.is_file():
        raise InputError(f"dataset.path={path} cannot be read (no such file): give the path of an .npz file")
    needed = ["inputs", "targets"]
    found = [_read(path, name, needed).shape for name in needed]
    for name, shape in zip(needed, found, strict=True):
        if len(shape) < 2:
            raise InputError(f"dataset.path={path}: {name} has shape {shape}, expected (n, ...): reshape it")
    return found[0][1:], found[1][1:]


def _unpack(path: Path, shapes: dict[str, Shape], folder: Path) -> None:
    samples = {}
    for name, shape in shapes.items():
        array = _read(path, name, list(shapes))
        _check_layout(path, name, array, shape)
        _write_finite(path, name, array, folder / f"{name}.npy")  # the cache has the user's names
        samples[name] = len(array)
    if len(set(samples.values())) > 1:
        lengths = " and ".join(f"{count} {name}" for name, count in samples.items())
        raise InputError(f"dataset.path={path} holds {lengths}: give every sample both")


def _read(path: Path, name: str, needed: list[str]) -> NDArray[Any]:
    try:
        # Not np.load, which leaves a garbled file open, and takes a lone .npy as well.
        with path.open("rb") as stream, NpzFile(stream, allow_pickle=False) as file:
            held: list[str] = list(file.files)
            found = file[name] if name in held else None
    except Exception as error:  # of a dozen kinds for a garbled zip; none of them is ours to tell apart
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is no readable .npz ({reason}): write it with numpy.savez") from None
    if not isinstance(found, np.ndarray):
        raise InputError(
            f"dataset.path={path} holds {', '.join(held) or 'nothing'}, but no array {name}: "
            f"write it with numpy.savez(path, {', '.join(f'{key}=...' for key in needed)})"
        )
    return found


def _check_layout(path: Path, name: str, array: NDArray[Any], shape: Shape) -> None:
    if array.ndim == 0 or array.shape[1:] != shape:
        expected = ", ".join(["n", *map(str, shape)])
        raise InputError(f"dataset.path={path}: {name} has shape {array.shape}, expected ({expected}): reshape it")
    if len(array) == 0:
        raise InputError(f"dataset.path={path}: {name} holds no samples: give at least one per device")
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"dataset.path={path}: {name} is {array.dtype}, expected floats: cast it to float32")


def _write_finite(path: Path, name: str, array: NDArray[Any], file: Path) -> None:
    """`array` as float32 into `file`; InputError if a value is not finite, or not so as float32."""
    out = cache.create(file, array.shape, "float32")
    bad_values, first = 0, None
    for start in range(0, len(array), _BLOCK):
        with np.errstate(over="ignore"):
            block = array[start : start + _BLOCK].astype(np.float32)
        bad = np.argwhere(~np.isfinite(block))
        if len(bad) and first is None:
            first = (start + int(bad[0, 0]), *bad[0, 1:].tolist())
        bad_values += len(bad)
        out[start : start + _BLOCK] = block
    if bad_values:
        raise InputError(
            f"dataset.path={path}: {name} has {bad_values} NaN or infinite values as float32, the first "
            f"at {first}: mend or drop those samples"
        )
