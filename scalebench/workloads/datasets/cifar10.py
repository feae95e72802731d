"""The dataset `cifar10`: the archive of 60,000 images at `dataset.path`, checked and unpacked into the cache.

Files, layouts and checksums: https://www.cs.toronto.edu/~kriz/cifar.html. Nothing is downloaded. An archive is opened
only if it is one of the two published ones by its checksum. The files of the Python version are pickles, programs that
may call anything: each is read only if it is a published one, and then may name nothing but numpy's arrays.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets import cache, images

VERSION = 1  # raise it when the same archive gives other arrays than before
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
HINT = f"get cifar-10-python.tar.gz or cifar-10-binary.tar.gz from {HOME}"
SIDE, CHANNELS, CLASSES = 32, 3, 10
IMAGE_BYTES = CHANNELS * SIDE * SIDE
IMAGES_PER_FILE = 10_000
ARCHIVES = ("c58f30108f718f92721af3b95e74349a", "c32a1d4ab5d03f1284b67883e8d87530")  # MD5 of Python and binary, at HOME
FILES = {  # and the MD5 of each in the Python version; the last one is for validation
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
# What a pickled array names, as numpy 1 has called it.
PICKLED = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
LabeledImages = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # (n, 3072), channel by channel, and (n,)


def import_archive(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the images of the archive or folder at `path`, the test images last.

    Images have the size of the model's input (resized bilinearly if that is not 32); labels are 0 .. 9. The files are
    read once: those of the same path, size and modification time are taken from the cache. Raises InputError, in one
    line, for anything that is wrong.
    """
    dataset, samples = config.dataset, len(FILES) * IMAGES_PER_FILE
    if dataset.size != samples:
        raise InputError(f"dataset.size={dataset.size}: dataset=cifar10 is used complete, leave its size at {samples}")
    if (dataset.classes or 0) < CLASSES:
        raise InputError(f"dataset.classes={dataset.classes}: dataset=cifar10 has {CLASSES} classes")
    side = config.model.input_shape[0]
    if side != SIDE:
        images.load_pillow("cifar10")
    try:
        stats = [file.stat() for file in _find_files(path)]
    except OSError as error:
        raise InputError(f"dataset.path={path} cannot be read ({error.strerror}): {HINT}") from None
    identity = {
        "version": VERSION,
        "path": str(path),
        "files": [[stat.st_size, stat.st_mtime_ns] for stat in stats],
        "side": side,
        "dtype": dataset.dtype,
    }
    size_bytes = samples * CHANNELS * side * side * np.dtype(dataset.dtype).itemsize
    return cache.ensure_folder(cache_dir, "cifar10", identity, size_bytes, partial(_unpack, path, side, dataset.dtype))


def _find_files(path: Path) -> list[Path]:
    """Return the archive, or the six files of a folder. Raises InputError where they do not exist."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"dataset.path={path} does not exist: {HINT}")
    for folder in (path, *(path / name for name in FOLDERS)):
        for suffix in ("", ".bin"):
            files = [folder / f"{name}{suffix}" for name in FILES]
            if all(file.is_file() for file in files):
                return files
    raise InputError(f"dataset.path={path} has no folder {' or '.join(FOLDERS)} with all six files: {HINT}")


def _unpack(path: Path, side: int, dtype: str, folder: Path) -> None:
    samples = len(FILES) * IMAGES_PER_FILE
    inputs = cache.create_array(folder / cache.INPUTS, (samples, side, side, CHANNELS), dtype)
    targets = cache.create_array(folder / cache.TARGETS, (samples,), images.LABEL_DTYPE)
    names = list(FILES)
    try:
        for name, content in _read_files(path):
            pixels, labels = _parse(name, content)
            if labels.max() >= CLASSES:
                raise ValueError(f"{name} has labels above {CLASSES - 1}")
            start = names.index(name.removesuffix(".bin")) * IMAGES_PER_FILE
            targets[start : start + IMAGES_PER_FILE] = labels
            pictures = pixels.reshape(IMAGES_PER_FILE, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
            for block in range(0, IMAGES_PER_FILE, 1000):
                rows = slice(start + block, min(start + block + 1000, start + IMAGES_PER_FILE))
                part = pictures[block : block + 1000]
                if side != SIDE:
                    pillow = images.load_pillow("cifar10")
                    sources = (pillow.fromarray(np.ascontiguousarray(picture)) for picture in part)
                    part = np.stack([images.resize(picture, side) for picture in sources])
                inputs[rows] = images.to_dtype(part, dtype)
    except InputError:
        raise
    except (ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"dataset.path={path} is not a complete CIFAR-10 archive ({error}): {HINT}") from None


def _read_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each of the six files, in memory, so that no name in an archive ever becomes a path."""
    if path.is_dir():
        yield from ((file.name, file.read_bytes()) for file in _find_files(path))
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "md5").hexdigest() not in ARCHIVES:
            raise ValueError("its MD5 is that of neither published archive; a folder with the six files is read, too")
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            for member in archive:
                name = Path(member.name).name
                if member.isreg() and name.removesuffix(".bin") in FILES:
                    yield name, archive.extractfile(member).read()  # type: ignore[union-attr]  # of a regular file


def _parse(name: str, content: bytes) -> LabeledImages:
    """Parse a file: records of one label and 3,072 bytes, or a pickle. Raises ValueError for another one."""
    if name.endswith(".bin"):
        if len(content) != IMAGES_PER_FILE * (IMAGE_BYTES + 1):
            raise ValueError(f"a file of {len(content)} bytes, expected {IMAGES_PER_FILE * (IMAGE_BYTES + 1)}")
        records: NDArray[Any] = np.frombuffer(content, np.uint8).reshape(IMAGES_PER_FILE, IMAGE_BYTES + 1)
        return records[:, 1:], records[:, 0]
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != FILES[name]:
        raise ValueError(f"{name} is not the published one by its MD5")
    batch = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    return batch[b"data"], np.array(batch[b"labels"], np.uint8)


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and refuses all else that a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PICKLED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return PICKLED[module, name]
