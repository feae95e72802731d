"""CIFAR-10's six files as they are distributed, with ten images each instead of 10,000."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

RECORDS = 10
NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"


def images() -> tuple[np.ndarray, np.ndarray]:
    """All 60 images (height, width, channels) in order, and their labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (60, 32, 32, 3), np.uint8), np.arange(60) * 7 % 10


def string(text: bytes) -> bytes:
    """A str of Python 2, as its pickle protocol 2 has it."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + len(text).to_bytes(4, "little") + text


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + value.to_bytes(4, "little", signed=True)


def python_batch(pixels: np.ndarray, labels: list[int], fortran: bool = False, dtype: bytes = b"u1") -> bytes:
    """What Python 2 and numpy 1 wrote for {batch_label, labels, data, filenames}, opcode by opcode."""
    values = pixels.tobytes("F" if fortran else "C")
    shape = b"".join(map(number, pixels.shape)) + b"\x86"
    kind = (
        b"cnumpy\ndtype\n"
        + string(dtype)
        + b"K\x00K\x01\x87R(K\x03"
        + string(b"|")
        + b"NNN"
        + number(-1) * 2
        + b"K\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + (b"\x88" if fortran else b"\x89") + string(values) + b"tb"
    names = b"](" + b"".join(string(f"leptodactylus_{n}.png".encode()) for n in labels) + b"e"
    items = string(b"batch_label") + string(b"training batch 1 of 5")
    items += string(b"labels") + b"](" + b"".join(map(number, labels)) + b"e"
    items += string(b"data") + array + string(b"filenames") + names
    return b"\x80\x02}(" + items + b"u."


def files(python: bool) -> dict[str, bytes]:
    """Name -> content, in the order in which the real archive has them."""
    inputs, labels = images()
    rows = inputs.transpose(0, 3, 1, 2).reshape(60, 3072)
    made = {}
    for place in (3, 5, 2, 1, 4, 0):
        part = slice(place * RECORDS, (place + 1) * RECORDS)
        if python:
            made[NAMES[place]] = python_batch(rows[part], labels[part].tolist())
        else:
            records = np.concatenate([labels[part, None].astype(np.uint8), rows[part]], axis=1)
            made[f"{NAMES[place]}.bin"] = records.tobytes()
    return made


def archive(path: Path, contents: dict[str, bytes], folder: str) -> Path:
    """A .tar.gz with `contents`, and with a readme, like the real archives."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **contents}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def directory(path: Path, contents: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path
