"""`dataset.path`: a user's .npz file, checked and unpacked into the dataset cache."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets import cache, sample_writer
from scalebench.workloads.network import Shape

ARRAY_NAMES = ("inputs", "targets")  # in the user's file


def import_npz(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the arrays of the .npz file at `path`, as float32.

    The file has to contain `inputs` (n, *input_shape) and `targets` (n, *target_shape) of the model, of any float
    dtype, with finite values. It is read once: a file of the same absolute path, size and modification time is taken
    from the cache. Raises InputError, in one line, for anything that is wrong with the file.
    """
    folder, shapes = unpack_once(cache_dir, path)
    expected = config.model.input_shape, config.model.target_shape
    for name, actual, wanted in zip(ARRAY_NAMES, shapes, map(tuple, expected), strict=True):
        if actual != wanted:
            raise InputError(f"dataset.path={path}: {name} has samples of {actual}, expected {wanted}: reshape it")
    return folder


def unpack_once(cache_dir: Path, path: Path) -> tuple[Path, tuple[Shape, Shape]]:
    """Return the folder with the arrays of the .npz file, and the shapes of one sample and of its target. Raises
    InputError as import_npz does."""
    path = path.absolute()
    try:
        status = path.stat()
        reason = None if stat.S_ISREG(status.st_mode) else "not a regular file"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise InputError(f"dataset.path={path} cannot be read ({reason}): give the path of an .npz file")
    identity = {"path": str(path), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    folder = cache.ensure_folder(cache_dir, "user_file", identity, 0, partial(_unpack, path))
    inputs, targets = cache.open_arrays(folder)
    return folder, (inputs.shape[1:], targets.shape[1:])


def _unpack(path: Path, folder: Path) -> None:
    try:
        with path.open("rb") as stream:  # which np.load leaves open where the file is damaged
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise ValueError("one array, as numpy.save writes it")
            arrays = {name: file[name] for name in ARRAY_NAMES if name in file.files}
            names = ", ".join(file.files) or "nothing"
    except MemoryError:
        raise InputError(f"dataset.path={path} needs more memory than there is: store fewer samples") from None
    except Exception as error:  # a damaged zip file raises a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is not a readable .npz ({reason}): write it with numpy.savez") from None
    for name in ARRAY_NAMES:
        if name not in arrays:
            raise InputError(
                f"dataset.path={path} contains {names}, but no array {name}: "
                f"write it with numpy.savez(path, {', '.join(f'{key}=...' for key in ARRAY_NAMES)})"
            )
        if not np.issubdtype(arrays[name].dtype, np.floating):
            raise InputError(
                f"dataset.path={path}: {name} is {arrays[name].dtype}, expected floats: cast it to float32"
            )
    try:
        reading = sample_writer.write_samples(tuple(arrays.values()), folder, len(arrays["inputs"]))
    except sample_writer.UnusableSamples as error:
        raise InputError(f"dataset.path={path} has {error}") from None
    if reading.unusable_targets is not None:
        raise InputError(f"dataset.path={path} has {reading.unusable_targets}: correct or drop it")
