"""The dataset `cifar10`: the archive of 60,000 images at `dataset.path`, checked and unpacked into the cache.

Files and layouts: https://www.cs.toronto.edu/~kriz/cifar.html. Nothing is downloaded. Of an archive only the members
with the six known names are read, in memory, so no name in it ever becomes a path. The files of the Python archive are
pickles, and a pickle is a program that may call anything it names: the reader below knows the three names that the
files contain, replaces them by inert stand-ins, and fails on any other name.
"""

from __future__ import annotations

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
FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")  # the last one is for validation
FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
MAX_FILE_BYTES = 2 * IMAGES_PER_FILE * (IMAGE_BYTES + 1)  # the Python files also contain the images' file names
LabeledImages = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # (n, 3072), channel by channel, and (n,)


def import_archive(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the images of the archive or folder at `path`, the test images last.

    Images have the size of the model's input (resized bilinearly if that is not 32); labels are 0 .. 9. The files are
    read once: those of the same path, size and modification time are taken from the cache. Raises InputError, in one
    line, for anything that is wrong.
    """
    dataset, samples = config.dataset, len(FILES) * IMAGES_PER_FILE
    images.check_model_takes_square_rgb(config)
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
    missing = set(FILES)
    for name, (pixels, labels) in _parse_files(path):
        start = FILES.index(name) * IMAGES_PER_FILE
        targets[start : start + IMAGES_PER_FILE] = labels
        pictures = pixels.reshape(IMAGES_PER_FILE, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
        for block in range(0, IMAGES_PER_FILE, 1000):
            rows = slice(start + block, min(start + block + 1000, start + IMAGES_PER_FILE))
            inputs[rows] = images.to_dtype(_resize_all(pictures[block : block + 1000], side), dtype)
        missing.discard(name)
    if missing:
        raise InputError(f"dataset.path={path} lacks {', '.join(sorted(missing))}: {HINT}")


def _resize_all(pictures: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    if side == SIDE:
        return pictures
    pillow = images.load_pillow("cifar10")
    return np.stack([images.resize(pillow.fromarray(np.ascontiguousarray(picture)), side) for picture in pictures])


def _parse_files(path: Path) -> Iterator[tuple[str, LabeledImages]]:
    """Yield (name, content) of each of the six files, in the order of the archive. Raises InputError for a bad one."""
    try:
        for name, content in _read_files(path):
            parsed = _parse_binary(content) if name.endswith(".bin") else parse_pickle(content)
            if parsed[1].max() >= CLASSES:
                raise ValueError(f"{name} has labels above {CLASSES - 1}")
            yield name.removesuffix(".bin"), parsed
    except Exception as error:  # a damaged archive raises a dozen kinds of errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"dataset.path={path} is not a complete CIFAR-10 archive ({reason}): {HINT}") from None


def _read_files(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in _find_files(path):
            _check_size(file.name, file.stat().st_size)
            yield file.name, file.read_bytes()
        return
    with tarfile.open(path, "r|*") as archive:  # a stream, read once: every seek would decompress it again
        for member in archive:
            name = member.name.rpartition("/")[2]
            if name.removesuffix(".bin") in FILES and (stream := archive.extractfile(member)) is not None:
                _check_size(name, member.size)
                yield name, stream.read()


def _check_size(name: str, size_bytes: int) -> None:
    """Raise ValueError for a file that is too large to be read into memory."""
    if size_bytes > MAX_FILE_BYTES:
        raise ValueError(f"{name} has {size_bytes} bytes")


def _parse_binary(content: bytes) -> LabeledImages:
    """Parse records of one label and 3,072 bytes. Raises ValueError for a wrong number of them."""
    if len(content) != IMAGES_PER_FILE * (IMAGE_BYTES + 1):
        raise ValueError(f"a file of {len(content)} bytes, expected {IMAGES_PER_FILE * (IMAGE_BYTES + 1)}")
    records: NDArray[Any] = np.frombuffer(content, np.uint8).reshape(IMAGES_PER_FILE, IMAGE_BYTES + 1)
    return records[:, 1:], records[:, 0]


class _DTypeStandIn:
    """Replaces numpy.dtype: it keeps the arguments and ignores the state."""

    def __init__(self, *arguments: object) -> None:
        self.code = arguments[0] if arguments else None

    def __setstate__(self, state: object) -> None:
        pass


class _ArrayStandIn:
    """Replaces a numpy array: it keeps the pickled state."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _ArrayStandIn,
    ("numpy", "ndarray"): _ArrayStandIn,
    ("numpy", "dtype"): _DTypeStandIn,
}


class _Unpickler(pickle._Unpickler):  # the Python one: that in C allocates as much memory as a damaged index says
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise ValueError(f"it would call {module}.{name}")
        return STAND_INS[module, name]


def parse_pickle(content: bytes, count: int | None = None, image_bytes: int = IMAGE_BYTES) -> LabeledImages:
    """Return images (count, image_bytes) and labels (count,), both uint8, of one file of the Python archive.

    `count` is IMAGES_PER_FILE by default. Raises ValueError for content of another layout, and whatever pickle raises
    for content that is no pickle.
    """
    count = IMAGES_PER_FILE if count is None else count
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise ValueError("a batch without data and labels")
    return _pixels(batch[b"data"], (count, image_bytes)), _labels(batch[b"labels"], count)


def _pixels(array: object, expected: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the bytes of a pickled array, whose state is (version, shape, dtype, Fortran order, bytes)."""
    state = array.state if isinstance(array, _ArrayStandIn) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise ValueError("data that are no array")
    _, shape, dtype, fortran, values = state
    if shape != expected or not isinstance(dtype, _DTypeStandIn) or dtype.code not in (b"u1", "u1"):
        raise ValueError(f"data of shape {shape}, expected bytes of {expected}")
    if not isinstance(values, bytes) or len(values) != expected[0] * expected[1]:
        raise ValueError("data that are cut short")
    return np.frombuffer(values, np.uint8).reshape(expected, order="F" if fortran else "C")


def _labels(labels: object, count: int) -> NDArray[np.uint8]:
    if not isinstance(labels, list) or len(labels) != count:
        raise ValueError(f"labels that are no list of {count}")
    if not all(type(label) is int and 0 <= label <= 255 for label in labels):
        raise ValueError("labels that are no class numbers")
    return np.array(labels, np.uint8)
