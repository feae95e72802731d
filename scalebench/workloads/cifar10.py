"""The data set `cifar10`: the archive of 60,000 images at `dataset.path`, checked and unpacked into the cache.

Files and layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Nothing is downloaded, and of an archive only the
members with the six names are read, in memory: no name in it ever becomes a path.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config, InputError
from scalebench.workloads import cache, cifar10_pickle, images

VERSION = 1  # goes up when an archive gives other arrays than before
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
HINT = f"get cifar-10-python.tar.gz or cifar-10-binary.tar.gz from {HOME}"
SIDE, CHANNELS, CLASSES = 32, 3, 10
PIXELS = CHANNELS * SIDE * SIDE
RECORDS = 10_000  # images of each file
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")  # the last one validates
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
MOST_BYTES = 2 * RECORDS * (PIXELS + 1)  # of a file: the Python ones hold file names too
Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # (RECORDS, 3072), channel by channel, and (RECORDS,)


def ensure(config: Config, cache_dir: Path, path: Path) -> Path:
    """Folder under `cache_dir` with the images of the archive or folder at `path`, test images last.

    Images have the size that the model takes, resized bilinearly; labels are 0 .. 9. It is read once; files of
    the same path, size and time of change are taken from the cache. Raises InputError, in one line, for whatever
    is wrong.
    """
    dataset, samples = config.dataset, len(BATCHES) * RECORDS
    images.check_pictures(config)
    if dataset.size != samples:
        raise InputError(f"dataset.size={dataset.size}: dataset=cifar10 is read whole, leave its size at {samples}")
    if (dataset.classes or 0) < CLASSES:
        raise InputError(f"dataset.classes={dataset.classes}: dataset=cifar10 has {CLASSES} classes")
    side = config.model.input_shape[0]
    if side != SIDE:
        images.pillow("cifar10")
    try:
        stats = [file.stat() for file in _files(path)]
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
    return cache.ensure(cache_dir, "cifar10", identity, size_bytes, partial(_unpack, path, side, dataset.dtype))


def _files(path: Path) -> list[Path]:
    """The archive, or the six files of a folder. InputError where they are not there."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"dataset.path={path} is not there: {HINT}")
    for folder in (path, *(path / name for name in FOLDERS)):
        for suffix in ("", ".bin"):
            files = [folder / f"{name}{suffix}" for name in BATCHES]
            if all(file.is_file() for file in files):
                return files
    raise InputError(f"dataset.path={path} holds no folder {' or '.join(FOLDERS)} with all six files: {HINT}")


def _unpack(path: Path, side: int, dtype: str, folder: Path) -> None:
    samples = len(BATCHES) * RECORDS
    inputs = cache.create(folder / cache.INPUTS, (samples, side, side, CHANNELS), dtype)
    targets = cache.create(folder / cache.TARGETS, (samples,), images.LABEL_DTYPE)
    missing = set(BATCHES)
    for name, (pixels, labels) in _batches(path):
        start = BATCHES.index(name) * RECORDS
        targets[start : start + RECORDS] = labels
        pictures = pixels.reshape(RECORDS, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
        for block in range(0, RECORDS, 1000):
            rows = slice(start + block, min(start + block + 1000, start + RECORDS))
            inputs[rows] = images.in_dtype(_sized(pictures[block : block + 1000], side), dtype)
        missing.discard(name)
    if missing:
        raise InputError(f"dataset.path={path} lacks {', '.join(sorted(missing))}: {HINT}")


def _sized(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if side == SIDE:
        return pictures
    pillow = images.pillow("cifar10")
    return np.stack([images.resized(pillow.fromarray(np.ascontiguousarray(picture)), side) for picture in pictures])


def _batches(path: Path) -> Iterator[tuple[str, Labelled]]:
    """Each of the six files, in whatever order they come. InputError for one that is not as it should be."""
    try:
        for name, content in _contents(path):
            parsed = _parse_binary(content) if name.endswith(".bin") else cifar10_pickle.parse(content, RECORDS, PIXELS)
            if parsed[1].max() >= CLASSES:
                raise ValueError(f"{name} has labels above {CLASSES - 1}")
            yield name.removesuffix(".bin"), parsed
    except Exception as error:  # of a dozen kinds for a garbled archive; none of them is ours to tell apart
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is no whole CIFAR-10 archive ({reason}): {HINT}") from None


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in _files(path):
            _check_size(file.name, file.stat().st_size)
            yield file.name, file.read_bytes()
        return
    with tarfile.open(path, "r|*") as archive:  # a stream, read once: seeking in it would unpack it again and again
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name.removesuffix(".bin") in BATCHES and (stream := archive.extractfile(member)) is not None:
                _check_size(name, member.size)
                yield name, stream.read()


def _check_size(name: str, size_bytes: int) -> None:
    """ValueError for a file that is not to be read into memory."""
    if size_bytes > MOST_BYTES:
        raise ValueError(f"{name} has {size_bytes} bytes")


def _parse_binary(content: bytes) -> Labelled:
    """Records of a label and 3,072 bytes. ValueError for another number of them."""
    if len(content) != RECORDS * (PIXELS + 1):
        raise ValueError(f"a file of {len(content)} bytes, expected {RECORDS * (PIXELS + 1)}")
    records: NDArray[Any] = np.frombuffer(content, np.uint8).reshape(RECORDS, PIXELS + 1)
    return records[:, 1:], records[:, 0]
