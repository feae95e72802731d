"""The dataset `cifar10`: the archive of 60,000 images at `dataset.path`, checked and unpacked into the cache.

Files, layouts and checksums: https://www.cs.toronto.edu/~kriz/cifar.html. Nothing is downloaded. Only the two published
layouts are read, each by a parser that knows nothing else, and an archive is not trusted: of its members only those
with the six known names are read, in memory, so no name in it ever becomes a path, and it is read up to
MAX_ARCHIVE_BYTES.
The files of the Python archive are pickles, programs that may call anything and take any time or memory. They are not
run: their operations have to be, one by one, those that Python 2 wrote for such a file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

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
MAX_ARCHIVE_BYTES = 8 * MAX_FILE_BYTES  # unpacked; the published ones have 186 MB
PUBLISHED_MD5 = ("c58f30108f718f92721af3b95e74349a", "c32a1d4ab5d03f1284b67883e8d87530")  # Python and binary, at HOME
TAR_BLOCK_BYTES = 512
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
    if path.is_file():
        _compare_checksum(path)


def _compare_checksum(path: Path) -> None:
    """Print a line for an archive with the layout of the published ones that is none of them."""
    with path.open("rb") as archive:
        if hashlib.file_digest(archive, "md5").hexdigest() not in PUBLISHED_MD5:
            line = f"dataset.path={path} is none of the two archives of {HOME} by its MD5: its images may be others"
            print(f"scalebench: {line}", file=sys.stderr, flush=True)


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
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield from _read_tar(gzip.GzipFile(fileobj=raw) if packed else raw)


def _read_tar(stream: IO[bytes] | gzip.GzipFile) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each known member. Raises ValueError for what is no tar file, or too large.

    tarfile is not used: it reads extended headers of any size into memory, and searches them in quadratic time.
    """
    left = MAX_ARCHIVE_BYTES

    def read(size: int) -> bytes:
        nonlocal left
        block = stream.read(size)
        left -= len(block)
        if left < 0:
            raise ValueError(f"it unpacks to more than {MAX_ARCHIVE_BYTES} bytes")
        return block

    while any(header := read(TAR_BLOCK_BYTES)):  # up to the first of the blocks of zeros at the end
        checksum = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
        if len(header) < TAR_BLOCK_BYTES or _read_octal(header[148:156]) != checksum:
            raise ValueError("no tar file, or a damaged one")
        name = header[:100].partition(b"\0")[0].decode("latin-1").rpartition("/")[2]
        size = _read_octal(header[124:136])
        padded = size + -size % TAR_BLOCK_BYTES
        if header[156:157] in (b"0", b"\0") and name.removesuffix(".bin") in FILES:  # regular files, no links
            _check_size(name, size)
            yield name, read(padded)[:size]
        else:
            while padded > 0 and (skipped := read(min(padded, MAX_FILE_BYTES))):
                padded -= len(skipped)
    while read(MAX_FILE_BYTES):  # gzip compares its checksum at the end
        pass


def _read_octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits.isdigit():
        raise ValueError("no tar file, or a damaged one")
    return int(digits, 8)


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


Operation = tuple[str, Any]  # of a pickle: its name and argument
# The opcodes that occur in a published file, by their code. Strings and numbers of any length count as one kind.
NO_ARGUMENT = {
    b"}": "EMPTY_DICT", b"]": "EMPTY_LIST", b"(": "MARK", b"u": "SETITEMS", b"e": "APPENDS", b".": "STOP",
    b"\x85": "TUPLE1", b"\x86": "TUPLE2", b"\x87": "TUPLE3", b"t": "TUPLE", b"R": "REDUCE", b"b": "BUILD",
    b"N": "NONE", b"\x88": "NEWTRUE", b"\x89": "NEWFALSE",
}  # fmt: skip
NUMBER_BYTES = {
    b"\x80": ("PROTO", 1), b"K": ("INT", 1), b"M": ("INT", 2), b"J": ("INT", 4), b"U": ("STRING", 1),
    b"T": ("STRING", 4), b"q": ("PUT", 1), b"r": ("PUT", 4), b"h": ("GET", 1), b"j": ("GET", 4),
}  # fmt: skip
END: Operation = ("its end", None)
MAX_NAME_BYTES = 50  # of a module, or of what it contains
MAX_OPERATIONS_PER_IMAGE = 4  # its label, its name, and what stores the name: 3
# The operations of a pickled numpy array: those before its shape, and those of its dtype, which stand between the shape
# and the order of the elements. The version, size and alignment of the dtype may be any numbers.
ARRAY: list[Operation] = [
    ("GLOBAL", b"numpy.core.multiarray _reconstruct"),
    ("GLOBAL", b"numpy ndarray"),
    *(("INT", 0), ("TUPLE1", None), ("STRING", b"b"), ("TUPLE3", None), ("REDUCE", None), ("MARK", None), ("INT", 1)),
]
BYTES_DTYPE: list[Operation] = [
    *(("GLOBAL", b"numpy dtype"), ("STRING", b"u1"), ("INT", ...), ("INT", ...), ("TUPLE3", None), ("REDUCE", None)),
    *(("MARK", None), ("INT", ...), ("STRING", b"|"), ("NONE", None), ("NONE", None), ("NONE", None)),
    *(("INT", ...), ("INT", ...), ("INT", ...), ("TUPLE", None), ("BUILD", None)),
]


def parse_pickle(content: bytes, count: int | None = None, image_bytes: int = IMAGE_BYTES) -> LabeledImages:
    """Return images (count, image_bytes) and labels (count,), both uint8, of one file of the Python archive.

    The file is a dictionary of `labels`, `data` and two more that are skipped, pickled with protocol 2. `count` is
    IMAGES_PER_FILE by default. Raises ValueError for content of another layout.
    """
    shape = (IMAGES_PER_FILE if count is None else count, image_bytes)
    operations = _list_operations(content, MAX_OPERATIONS_PER_IMAGE * shape[0] + 200)
    readers: dict[bytes, Callable[[], Any]] = {
        b"batch_label": lambda: _expect(operations, [("STRING", ...)]),
        b"labels": lambda: _read_list(operations, "INT", shape[0]),
        b"data": lambda: _read_pixels(operations, shape),
        b"filenames": lambda: _read_list(operations, "STRING", shape[0]),
    }
    _expect(operations, [("PROTO", 2), ("EMPTY_DICT", None), ("MARK", None)])
    values = {}
    while (operation := next(operations))[0] != "SETITEMS":
        if operation[0] != "STRING" or operation[1] not in readers:
            raise ValueError(f"{_describe(operation)} as a key")
        values[operation[1]] = readers.pop(operation[1])()
    _expect(operations, [("STOP", None), END])
    if not {b"data", b"labels"} <= values.keys():
        raise ValueError("a batch without data and labels")
    labels = values[b"labels"]
    if not all(0 <= label <= 255 for label in labels):
        raise ValueError("labels that are no class numbers")
    return values[b"data"], np.array(labels, np.uint8)


def _list_operations(content: bytes, limit: int) -> Iterator[Operation]:
    """Yield up to `limit` operations of a pickle without running any, and END. PUT stores the value before it: it is
    left out, and GET becomes the string that was stored."""
    stored: dict[int, Operation] = {}
    last, stream = END, io.BytesIO(content)
    for _ in range(limit):
        operation = _read_operation(stream)
        if operation[0] == "PUT":
            stored[operation[1]] = last
            continue
        last = stored.get(operation[1], END) if operation[0] == "GET" else operation
        if operation[0] == "GET" and last[0] != "STRING":
            raise ValueError("a repeated object")
        yield last
        if last[0] == "STOP":
            break
    else:
        raise ValueError(f"more than {limit} operations")
    if more := len(stream.read()):
        raise ValueError(f"{more} bytes after its end")
    yield END


def _read_operation(stream: io.BytesIO) -> Operation:
    code = stream.read(1)
    if code in NO_ARGUMENT:
        return NO_ARGUMENT[code], None
    if code == b"c":
        return "GLOBAL", b" ".join(stream.readline(MAX_NAME_BYTES).rstrip(b"\n") for _ in range(2))
    name, size = NUMBER_BYTES.get(code, ("", 0))
    if not name:
        raise ValueError(f"code {code!r}" if code else "a pickle that is cut short")
    number = int.from_bytes(stream.read(size), "little", signed=code == b"J")
    return name, stream.read(number) if name == "STRING" else number


def _expect(operations: Iterator[Operation], expected: list[Operation]) -> Any:
    """Check that the next operations are the expected ones, where `...` stands for any argument, and return the
    argument of the last one."""
    argument = None
    for name, value in expected:
        operation = next(operations)
        argument = operation[1]
        if operation[0] != name or (value is not ... and argument != value):
            raise ValueError(f"{_describe(operation)} in place of {_describe((name, value))}")
    return argument


def _describe(operation: Operation) -> str:
    name, argument = operation
    if argument in (None, ...):
        return name
    return f"{name} {argument[:60]!r}" if isinstance(argument, bytes) else f"{name} {argument}"


def _read_pixels(operations: Iterator[Operation], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the bytes of an array, which are in C order, or in Fortran order."""
    _expect(operations, [*ARRAY, ("INT", shape[0]), ("INT", shape[1]), ("TUPLE2", None), *BYTES_DTYPE])
    fortran = next(operations)[0]
    if fortran not in ("NEWFALSE", "NEWTRUE"):
        raise ValueError("data without an order")
    values = _expect(operations, [("STRING", ...)])
    _expect(operations, [("TUPLE", None), ("BUILD", None)])
    if len(values) != shape[0] * shape[1]:
        raise ValueError("data that are cut short")
    return np.frombuffer(values, np.uint8).reshape(shape, order="F" if fortran == "NEWTRUE" else "C")


def _read_list(operations: Iterator[Operation], kind: str, count: int) -> list[Any]:
    """Return the `count` elements of a list, which Python writes in parts of up to 1,000."""
    _expect(operations, [("EMPTY_LIST", None)])
    values: list[Any] = []
    while len(values) < count:
        _expect(operations, [("MARK", None)])
        while (operation := next(operations))[0] == kind:
            values.append(operation[1])
        if operation[0] != "APPENDS":
            raise ValueError(f"{_describe(operation)} in a list")
    if len(values) != count:
        raise ValueError(f"a list of {len(values)}, expected {count}")
    return values
