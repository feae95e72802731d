"""The CIFAR-10 archive: both versions, packed or not; every mistake is one line, and no pickled code is ever run."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, cifar10, images
from scalebench.workloads.datasets.cifar10 import parse_pickle
from tests.builders.configs import image_config

# CIFAR-10's six files as they are distributed, with ten images each instead of 10,000.
RECORDS = 10
NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"


def expected_images() -> tuple[np.ndarray, np.ndarray]:
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
    kind = b"cnumpy\ndtype\n" + string(dtype) + b"K\x00K\x01\x87R(K\x03" + string(b"|") + b"NNN"
    kind += number(-1) * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + (b"\x88" if fortran else b"\x89") + string(values) + b"tb"
    names = b"](" + b"".join(string(f"leptodactylus_{n}.png".encode()) for n in labels) + b"e"
    items = string(b"batch_label") + string(b"training batch 1 of 5")
    items += string(b"labels") + b"](" + b"".join(map(number, labels)) + b"e"
    items += string(b"data") + array + string(b"filenames") + names
    return b"\x80\x02}(" + items + b"u."


def files(python: bool) -> dict[str, bytes]:
    """Name -> content, in the order in which the real archive has them."""
    inputs, labels = expected_images()
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


FOLDERS = {True: PYTHON, False: BINARY}


@pytest.fixture(autouse=True)
def ten_images_a_file(monkeypatch):
    monkeypatch.setattr(cifar10, "IMAGES_PER_FILE", RECORDS)


def prepare(tmp_path: Path, path: Path, side: int = 32, **changes) -> tuple[np.ndarray, np.ndarray]:
    config = image_config("cifar10", tmp_path / "cache", side, **{"size": 60, "path": str(path), **changes})
    return cache.open_arrays(datasets.prepare(config))


@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_images_in_order_with_the_test_batch_last(tmp_path, python, packed):
    if packed:
        path = archive(tmp_path / "cifar.tar.gz", files(python), FOLDERS[python])
    else:
        path = directory(tmp_path / FOLDERS[python], files(python))
    inputs, targets = prepare(tmp_path, path)
    expected, labels = expected_images()
    assert inputs.dtype == np.uint8 and targets.dtype == np.int64
    assert np.array_equal(inputs, expected) and np.array_equal(targets, labels)


def test_the_folder_above_and_other_compressions(tmp_path):
    directory(tmp_path / "data" / BINARY, files(False))
    with tarfile.open(tmp_path / "cifar.tar.xz", "w:xz") as tar:
        tar.add(tmp_path / "data" / BINARY, BINARY)
    for path in (tmp_path / "data", tmp_path / "cifar.tar.xz"):
        assert np.array_equal(prepare(tmp_path, path)[0], expected_images()[0])


def test_floats_and_another_size(tmp_path, monkeypatch):
    path = archive(tmp_path / "cifar.tar.gz", files(False), BINARY)
    small, large = prepare(tmp_path, path)[0], prepare(tmp_path, path, side=64)[0]
    assert large.shape == (60, 64, 64, 3) and large.dtype == np.uint8
    halves = large.reshape(60, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.corrcoef(halves.ravel(), small.ravel())[0, 1] > 0.8
    assert np.array_equal(prepare(tmp_path, path, dtype="float32")[0], small / np.float32(127.5) - 1)


def test_unpacked_once_and_again_when_it_changed(tmp_path, monkeypatch):
    path = directory(tmp_path / BINARY, files(False))
    prepare(tmp_path, path)
    calls = []
    unpack = cifar10._unpack
    monkeypatch.setattr(cifar10, "_unpack", lambda *arguments: (calls.append(1), unpack(*arguments)))
    prepare(tmp_path, path)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, Path(BINARY))
    assert not calls
    os.utime(path / "data_batch_3.bin", ns=(1, 1))
    prepare(tmp_path, path)
    assert len(calls) == 1


def test_members_of_any_name_stay_in_the_archive(tmp_path):
    contents = {"../../data_batch_1.bin": b"evil", **files(False)}
    with pytest.raises(InputError, match="a file of 4 bytes"):
        prepare(tmp_path, archive(tmp_path / "a.tar.gz", contents, BINARY))
    with tarfile.open(tmp_path / "links.tar", "w") as tar:
        info = tarfile.TarInfo("data_batch_1.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(InputError, match="not a complete CIFAR-10 archive"):
        prepare(tmp_path, tmp_path / "links.tar")
    prepare(tmp_path, archive(tmp_path / "b.tar.gz", files(False), "/tmp/.."))
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.tar.gz", "b.tar.gz", "links.tar", "cache"}


def changed(name: str, content: bytes | None, python: bool = False) -> dict[str, bytes]:
    contents = files(python)
    if content is None:
        del contents[name]
    else:
        contents[name] = content
    return contents


def cut(path: Path, share: float) -> Path:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return path


def foreign(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("notes.txt"), io.BytesIO())
    return path


BAD = {
    "cut": (lambda p: cut(archive(p, files(False), BINARY), 0.5), "not a complete CIFAR-10 archive"),
    "cut at the end": (lambda p: cut(archive(p, files(True), PYTHON), 0.999), "not a complete CIFAR-10 archive"),
    "no archive": (lambda p: p.write_bytes(b"hello") and p, "not a complete CIFAR-10 archive"),
    "empty": (lambda p: p.write_bytes(b"") or p, "not a complete CIFAR-10 archive|lacks"),
    "only gzip": (lambda p: p.write_bytes(gzip.compress(b"hello" * 999)) and p, "not a complete CIFAR-10 archive"),
    "foreign": (foreign, "lacks data_batch_1, data_batch_2"),
    "one missing": (lambda p: archive(p, changed("test_batch.bin", None), BINARY), "lacks test_batch:"),
    "record length": (
        lambda p: archive(p, changed("data_batch_2.bin", bytes(3072 * 10)), BINARY),
        "a file of 30720 bytes, expected 30730",
    ),
    "fewer records": (
        lambda p: directory(p, changed("data_batch_2.bin", bytes(3073 * 9))),
        "a file of 27657 bytes, expected 30730",
    ),
    "labels": (lambda p: archive(p, changed("data_batch_2.bin", b"\x0a" * 30730), BINARY), "labels above 9"),
    "pickle": (
        lambda p: archive(p, changed("data_batch_2", b"cos\nsystem\n(S'x'\ntR.", True), PYTHON),
        "would call os",
    ),
    "folder": (lambda p: p.mkdir() or p, f"has no folder {PYTHON} or {BINARY}"),
    "incomplete folder": (lambda p: directory(p, changed("test_batch", None, True)), "with all six files"),
    "cut folder": (lambda p: directory(p, changed("test_batch.bin", b"1234")), "a file of 4 bytes"),
    "missing": (lambda p: p, "does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_archives_are_one_line(tmp_path, case):
    make, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        prepare(tmp_path, make(tmp_path / "cifar"))
    assert "\n" not in str(caught.value) and cifar10.HOME in str(caught.value)
    assert f"dataset.path={tmp_path}/cifar" in str(caught.value)
    left = tmp_path / "cache"
    assert not left.exists() or [path.suffix for path in left.iterdir()] == [".lock"]


def test_a_huge_member_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "MAX_FILE_BYTES", 30_000)
    for path in (archive(tmp_path / "a", files(False), BINARY), directory(tmp_path / BINARY, files(False))):
        with pytest.raises(InputError, match=r"data_batch_.* has 30730 bytes"):
            prepare(tmp_path, path)


def test_size_and_classes_are_fixed(tmp_path):
    path = archive(tmp_path / "cifar.tar.gz", files(False), BINARY)
    grey = image_config("cifar10", tmp_path, size=60, path=str(path))
    grey.model.input_shape = [32, 32, 1]
    with pytest.raises(InputError, match="square pictures of 3 channels"):
        datasets.prepare(grey)
    with pytest.raises(InputError, match=r"dataset\.size=50: .* leave its size at 60"):
        prepare(tmp_path, path, size=50)
    with pytest.raises(InputError, match=r"dataset\.classes=9: dataset=cifar10 has 10 classes"):
        prepare(tmp_path, path, classes=9)


def test_pillow_is_needed_for_another_size_only(tmp_path, monkeypatch):
    def missing(dataset: str) -> None:
        raise InputError(f"dataset={dataset} reads pictures with Pillow")

    monkeypatch.setattr(images, "load_pillow", missing)
    path = archive(tmp_path / "cifar.tar.gz", files(False), BINARY)
    prepare(tmp_path, path)
    with pytest.raises(InputError, match="dataset=cifar10 reads pictures with Pillow"):
        prepare(tmp_path, path, side=64)


PIXELS = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
LABELS = [3, 9, 0, 255]


def batch(pixels=PIXELS, labels=LABELS, **options) -> bytes:
    return python_batch(pixels, labels, **options)


def test_the_batch_is_a_pickle_of_python_2():
    """The outside check of the test's own writer: pickle itself reads it."""
    loaded = pickle.loads(batch(), encoding="bytes")
    assert np.array_equal(loaded[b"data"], PIXELS) and loaded[b"labels"] == LABELS


@pytest.mark.parametrize("fortran", [False, True])
def test_images_and_labels(fortran):
    pixels, labels = parse_pickle(batch(fortran=fortran), 4, 6)
    assert pixels.dtype == labels.dtype == np.uint8
    assert np.array_equal(pixels, PIXELS) and labels.tolist() == LABELS


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


CALLS = {
    "system": Call(os.system, "touch ran"),
    "eval": Call(eval, "open('ran', 'w')"),
    "getattr": Call(getattr, "", "join"),
    "memmap": Call(np.memmap, "ran", np.uint8, "w+", 0, (1,)),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_no_pickled_function_is_called(tmp_path, name, protocol):
    with pytest.raises(ValueError, match="it would call"):
        parse_pickle(pickle.dumps({b"data": CALLS[name], b"labels": []}, protocol), 4, 6)
    assert not (tmp_path / "ran").exists()


def test_stand_ins_replace_numpy():
    """A real numpy.ndarray could be made to read foreign memory or to allocate all memory."""
    huge = b"\x80\x02}(" + string(b"labels") + b"]" + string(b"data")
    huge += b"cnumpy\nndarray\n(" + number(2**30) + number(2**30) + b"t\x85Ru."
    with pytest.raises(ValueError, match="data that are no array"):
        parse_pickle(huge, 4, 6)


BAD_PICKLES = {
    "list": (pickle.dumps([1]), "without data and labels"),
    "other keys": (pickle.dumps({b"data": 1}), "without data and labels"),
    "text": (pickle.dumps({b"data": b"x" * 24, b"labels": LABELS}), "no array"),
    "rows": (batch(PIXELS[:3]), r"shape \(3, 6\)"),
    "dtype": (batch(dtype=b"u2"), "expected bytes"),
    "fewer labels": (batch(labels=LABELS[:3]), "no list of 4"),
    "labels": (batch(labels=[1, 2, 3, 256]), "no class numbers"),
    "negative": (batch(labels=[1, 2, 3, -1]), "no class numbers"),
    "cut array": (batch().replace(string(PIXELS.tobytes()), string(PIXELS.tobytes()[:-1])), "cut short"),
}


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_another_layout(case):
    content, message = BAD_PICKLES[case]
    with pytest.raises(ValueError, match=message):
        parse_pickle(content, 4, 6)


def test_a_garbled_index_takes_no_memory():
    with pytest.raises(ValueError, match="without data"):
        parse_pickle(b"\x80\x02}r\xff\xff\xff\xff.", 4, 6)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_raises_or_changes_values_only(data):
    content = bytearray(batch())
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[position] = data.draw(st.integers(0, 255))
    try:
        pixels, labels = parse_pickle(bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))]), 4, 6)
    except Exception:
        return
    assert pixels.shape == (4, 6) and labels.shape == (4,)
