"""The dataset `imagenet_tfrecord`: TFRecord files of ImageNet's layout at `dataset.path`, read without TensorFlow. Each
record is a tf.train.Example with `image/encoded` (JPEG) and `image/class/label` (from 1 on)."""

from __future__ import annotations

import itertools
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets import cache

VERSION = 2
HINT = "have a folder of TFRecord files named train-00000-of-01024, as made of ImageNet (https://image-net.org)"
PATTERN = "train-*-of-*"
KEYS = (b"image/encoded", b"image/class/label")
# A record is its length in bytes, a checksum of that, the data, and a checksum of these:
# https://www.tensorflow.org/tutorials/load_data/tfrecord
_LENGTH = struct.Struct("<Q")
HEADER_BYTES, DATA_CHECKSUM_BYTES = _LENGTH.size + 4, 4
VARINT, BYTES, FIXED_BYTES = 0, 2, {1: 8, 5: 4}  # kinds of protobuf's values, two of which have this size


def index_files(config: Config, cache_dir: Path, path: Path) -> Path:
    """Return the folder under `cache_dir` with the file name of each record, in the order of names and records, at most
    `dataset.size` of them. In the place of targets is where a record begins in its file, for the classes are in the
    records. Raises InputError, in one line, for anything that is wrong."""
    files = _list_files(path)
    stats = [file.stat() for file in files]
    identity = {
        "version": VERSION,
        "path": str(path),
        "files": [[file.name, s.st_size, s.st_mtime_ns] for file, s in zip(files, stats, strict=True)],
        "samples": config.dataset.size,
    }
    return cache.ensure_folder(cache_dir, config.dataset.name, identity, 0, partial(_write, files, config.dataset.size))


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise InputError(f"dataset.path={path} is not a folder: {HINT}")
    files = sorted(path.glob(PATTERN))
    if not files:
        raise InputError(f"dataset.path={path} has no files {PATTERN}: {HINT}")
    return files


def _write(files: list[Path], size: int, folder: Path) -> None:
    _check_keys(files[0])
    names: list[bytes] = []
    offsets: list[int] = []
    for file in files:
        offsets += itertools.islice((begin for begin, _ in _find_records(file)), size - len(offsets))
        names += [os.fsencode(file.name)] * (len(offsets) - len(names))
    array = np.array(names)
    cache.create_array(folder / cache.INPUTS, array.shape, array.dtype.str)[:] = array
    cache.create_array(folder / cache.TARGETS, array.shape, "int64")[:] = offsets


def _find_records(file: Path) -> Iterator[tuple[int, int]]:
    """Yield where each record begins, and the bytes of its data. Raises InputError for a file that is cut off."""
    try:
        size_bytes, position = file.stat().st_size, 0
        with file.open("rb") as stream:
            while position < size_bytes:
                stream.seek(position)
                header = stream.read(_LENGTH.size)
                length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else size_bytes
                begin, position = position, position + HEADER_BYTES + length + DATA_CHECKSUM_BYTES
                if position > size_bytes:
                    raise InputError(f"{file} is not a complete TFRecord file: copy or make it again")
                yield begin, length
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): {HINT}") from None


def _check_keys(file: Path) -> None:
    """Raise InputError where the first record lacks one of KEYS."""
    begin, length = next(_find_records(file), (0, 0))
    with file.open("rb") as stream:
        stream.seek(begin + HEADER_BYTES)
        record = stream.read(length)
    missing = [key.decode() for key in KEYS if key not in record]
    if missing:
        raise InputError(f"{file} has records without {' and '.join(missing)}: write tf.train.Example as for ImageNet")


def read_example(path: str, place: int, classes: int) -> tuple[bytes, int]:
    """Return the encoded picture and the class, from 0 on, of the record that begins at this place of its file. Raises
    InputError, with the file, for a damaged record and for a label that is none of so many classes."""
    try:
        with open(path, "rb") as stream:
            stream.seek(place)
            (length,) = _LENGTH.unpack(stream.read(HEADER_BYTES)[: _LENGTH.size])
            (features,) = parse_message(stream.read(length))[1]
        entries = map(parse_message, parse_message(features)[1])  # of a map: its key and its value
        values = {entry[1][0]: parse_message(entry[2][0]) for entry in entries}
        (encoded,) = parse_message(values[KEYS[0]][1][0])[1]
        (label,) = parse_message(values[KEYS[1]][3][0])[1]
        label = label if isinstance(label, int) else read_varint(label, 0)[0]  # numbers of a list may be packed
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise InputError(f"{path} has a damaged record ({error}): copy or make it again") from None
    if not 1 <= label <= classes:
        raise InputError(
            f"{path} has label {label}, and those of ImageNet's layout are 1 to dataset.classes={classes}: raise "
            "dataset.classes, or write the files with labels from 1 on"
        )
    return encoded, label - 1


def parse_message(message: bytes) -> dict[int, list[Any]]:
    """Return the values of a protobuf message by field number, integers or bytes:
    https://protobuf.dev/programming-guides/encoding"""
    fields, position = defaultdict[int, list[Any]](list), 0
    while position < len(message):
        tag, position = read_varint(message, position)
        if tag & 7 == VARINT:
            value, position = read_varint(message, position)
            fields[tag >> 3].append(value)
            continue
        size, position = read_varint(message, position) if tag & 7 == BYTES else (FIXED_BYTES[tag & 7], position)
        fields[tag >> 3].append(message[position : position + size])
        position += size
    return fields


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return an integer of 7 bits per byte, the lowest first, and the position behind it."""
    value = shift = 0
    while True:
        byte = message[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position
