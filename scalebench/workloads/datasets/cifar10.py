"""The dataset `cifar10`: the archive of 60,000 images at `dataset.path`, checked and unpacked into the cache.

Its six files (https://www.cs.toronto.edu/~kriz/cifar.html) are pickles, programs that may call anything: each is read
only if it is the published one by its checksum. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from functools import partial
from pathlib import Path

import numpy as np

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets import cache, images

VERSION = 1  # raise it when the same archive gives other arrays than before
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
HINT = f"get cifar-10-python.tar.gz from {HOME}"
SIDE, CHANNELS, CLASSES = 32, 3, 10
IMAGES_PER_FILE = 10_000
FOLDER = "cifar-10-batches-py"
FILES = {  # and the MD5 of each; the last one is for validation
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


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
    for folder in (path, path / FOLDER):
        files = [folder / name for name in FILES]
        if all(file.is_file() for file in files):
            return files
    raise InputError(f"dataset.path={path} has no folder {FOLDER} with all six files: {HINT}")


def _unpack(path: Path, side: int, dtype: str, folder: Path) -> None:
    samples = len(FILES) * IMAGES_PER_FILE
    inputs = cache.create_array(folder / cache.INPUTS, (samples, side, side, CHANNELS), dtype)
    targets = cache.create_array(folder / cache.TARGETS, (samples,), images.LABEL_DTYPE)
    contents = _read_files(path)
    for number, (name, checksum) in enumerate(FILES.items()):
        content = contents.get(name, b"")
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != checksum:
            raise InputError(f"dataset.path={path}: its {name} is not the published one by its MD5: {HINT}")
        batch = pickle.loads(content, encoding="bytes")
        start = number * IMAGES_PER_FILE
        targets[start : start + IMAGES_PER_FILE] = batch[b"labels"]
        pictures = batch[b"data"].reshape(IMAGES_PER_FILE, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
        for block in range(0, IMAGES_PER_FILE, 1000):
            part = pictures[block : block + 1000]
            if side != SIDE:
                pillow = images.load_pillow("cifar10")
                sources = (pillow.fromarray(np.ascontiguousarray(picture)) for picture in part)
                part = np.stack([images.resize(picture, side) for picture in sources])
            inputs[start + block : start + block + len(part)] = images.to_dtype(part, dtype)


def _read_files(path: Path) -> dict[str, bytes]:
    """Return the content of the files by name, in memory, so that no name in an archive ever becomes a path."""
    if path.is_dir():
        return {file.name: file.read_bytes() for file in _find_files(path)}
    contents = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isreg() and (name := Path(member.name).name) in FILES:
                    contents[name] = archive.extractfile(member).read()  # type: ignore[union-attr]  # of a regular file
    except Exception as error:  # a damaged archive raises several kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is not a complete archive ({reason}): {HINT}") from None
    return contents
