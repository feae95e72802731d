"""The CIFAR-10 archive: both versions, packed or not; every mistake is one line. No pickled code is ever run, and no
archive, however made, takes more memory or time than a good one."""

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import tracemalloc
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


def string(text):
    """A str of Python 2, as its pickle protocol 2 has it."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + len(text).to_bytes(4, "little") + text


def number(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"M" + value.to_bytes(2, "little") if 0 <= value < 2**16 else b"J" + value.to_bytes(4, "little", signed=True)


def listed(items):
    """A list, whose elements Python 2 wrote in parts of 1,000."""
    parts = list(items)
    return b"]" + b"".join(b"(" + b"".join(parts[n : n + 1000]) + b"e" for n in range(0, len(parts), 1000))


def python_batch(pixels, labels, fortran=False, dtype=b"u1"):
    """What Python 2 and numpy 1 wrote for {batch_label, labels, data, filenames}, opcode by opcode."""
    stored = 0

    def put(content):
        nonlocal stored
        stored += 1
        return content + (b"q" + bytes([stored]) if stored < 256 else b"r" + stored.to_bytes(4, "little"))

    values = pixels.tobytes("F" if fortran else "C")
    shape = b"".join(map(number, pixels.shape)) + b"\x86"
    kind = b"cnumpy\ndtype\n" + put(string(dtype)) + b"K\x00K\x01\x87R" + put(b"") + b"(K\x03" + string(b"|") + b"NNN"
    kind += number(-1) * 2 + b"K\x00tb"
    array = put(b"cnumpy.core.multiarray\n_reconstruct\n") + put(b"cnumpy\nndarray\n") + b"K\x00\x85" + string(b"b")
    array += put(b"\x87R") + b"(K\x01" + shape + kind + (b"\x88" if fortran else b"\x89") + string(values) + b"tb"
    items = put(b"\x80\x02}") + b"(" + put(string(b"batch_label")) + put(string(b"training batch 1 of 5"))
    items += put(string(b"labels")) + listed(map(number, labels))
    items += put(string(b"data")) + array + put(string(b"filenames"))
    return items + listed(put(string(b"leptodactylus_%d.png" % n)) for n in range(len(labels))) + b"u."


RANDOM = np.random.default_rng(0)
IMAGES, CLASSES = RANDOM.integers(0, 256, (60, 32, 32, 3), np.uint8), np.arange(60) * 7 % 10


def files(python, **changes):
    """Name -> content, in the order in which the real archive has them; `changes` by name, None to leave one out."""
    rows, made = IMAGES.transpose(0, 3, 1, 2).reshape(60, 3072), {}
    for place in (3, 5, 2, 1, 4, 0):
        part = slice(place * RECORDS, (place + 1) * RECORDS)
        records = np.concatenate([CLASSES[part, None].astype(np.uint8), rows[part]], axis=1).tobytes()
        content = python_batch(rows[part], CLASSES[part].tolist()) if python else records
        made[NAMES[place]] = changes.get(NAMES[place], content)
    return {name if python else f"{name}.bin": content for name, content in made.items() if content is not None}


def archive(path, contents, folder=BINARY):
    """A .tar.gz with `contents`, and with a readme, like the real archives."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **contents}.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def directory(path, contents):
    path.mkdir(parents=True)
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return path


def spoil(path, share=1.0, byte=None):
    """Cut the file after this share of it, and change a byte."""
    content = bytearray(path.read_bytes())
    if byte is not None:
        content[byte] ^= 1
    path.write_bytes(content[: int(share * len(content))])
    return path


FOLDERS = {True: PYTHON, False: BINARY}


@pytest.fixture(autouse=True)
def ten_images_a_file(monkeypatch):
    monkeypatch.setattr(cifar10, "IMAGES_PER_FILE", RECORDS)


def prepare(tmp_path, path, side=32, **changes):
    config = image_config("cifar10", tmp_path / "cache", side, **{"size": 60, "path": str(path), **changes})
    return cache.open_arrays(datasets.prepare(config))


@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("packed", ["gz", "tar", "folder", "the folder above"])
def test_images_in_order_with_the_test_batch_last(tmp_path, python, packed):
    path = tmp_path / "data" / FOLDERS[python]
    directory(path, files(python))
    if packed == "gz":
        path = archive(tmp_path / "cifar.tar.gz", files(python), FOLDERS[python])
    elif packed == "tar":
        with tarfile.open(tmp_path / "cifar.tar", "w") as tar:
            tar.add(path, FOLDERS[python])
        path = tmp_path / "cifar.tar"
    elif packed == "the folder above":
        path = path.parent
    inputs, targets = prepare(tmp_path, path)
    assert inputs.dtype == np.uint8 and targets.dtype == np.int64
    assert np.array_equal(inputs, IMAGES) and np.array_equal(targets, CLASSES)


def test_an_archive_that_is_not_the_published_one_is_named(tmp_path, capsys, monkeypatch):
    path = archive(tmp_path / "cifar.tar.gz", files(True), PYTHON)
    prepare(tmp_path, path)
    line = capsys.readouterr().err
    assert line.startswith(f"scalebench: dataset.path={path} is none of the two archives of {cifar10.HOME} by its MD5")
    assert line.count("\n") == 1
    monkeypatch.setattr(cifar10, "PUBLISHED_MD5", (hashlib.md5(path.read_bytes()).hexdigest(),))
    prepare(tmp_path, path, cache=str(tmp_path / "other"))
    assert capsys.readouterr().err == ""


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
    with pytest.raises(InputError, match="lacks data_batch_1"):
        prepare(tmp_path, tmp_path / "links.tar")
    prepare(tmp_path, archive(tmp_path / "b.tar.gz", files(False), "/tmp/.."))
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.tar.gz", "b.tar.gz", "links.tar", "cache"}


BAD = {
    "cut": (lambda p: spoil(archive(p, files(False)), 0.5), "not a complete CIFAR-10 archive"),
    "cut at the end": (lambda p: spoil(archive(p, files(True), PYTHON), 0.999), "not a complete CIFAR-10 archive"),
    "a byte before gzip's checksum": (lambda p: spoil(archive(p, files(False)), byte=-8), "CRC check failed"),
    "no archive": (lambda p: p.write_bytes(b"hello") and p, "not a complete CIFAR-10 archive"),
    "empty": (lambda p: p.write_bytes(b"") or p, "not a complete CIFAR-10 archive|lacks"),
    "only gzip": (lambda p: p.write_bytes(gzip.compress(b"hello" * 999)) and p, "not a complete CIFAR-10 archive"),
    "foreign": (lambda p: archive(p, {"notes.txt": b""}), "lacks data_batch_1, data_batch_2"),
    "one missing": (lambda p: archive(p, files(False, test_batch=None)), "lacks test_batch:"),
    "record length": (lambda p: archive(p, files(False, data_batch_2=bytes(3072 * 10))),
     "a file of 30720 bytes, expected 30730"),
    "fewer records": (lambda p: directory(p, files(False, data_batch_2=bytes(3073 * 9))),
     "a file of 27657 bytes, expected 30730"),
    "labels": (lambda p: archive(p, files(False, data_batch_2=b"\x0a" * 30730)), "labels above 9"),
    "pickle": (lambda p: archive(p, files(True, data_batch_2=b"cos\nsystem\n(S'x'\ntR."), PYTHON),
     "GLOBAL b'os system' in place of PROTO"),
    "folder": (lambda p: p.mkdir() or p, f"has no folder {PYTHON} or {BINARY}"),
    "incomplete folder": (lambda p: directory(p, files(True, test_batch=None)), "with all six files"),
    "cut folder": (lambda p: directory(p, files(False, test_batch=b"1234")), "a file of 4 bytes"),
    "missing": (lambda p: p, "does not exist"),
}  # fmt: skip


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


def zeros(name, kind, size):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf() + bytes(size)


BOMBS = {
    "other member": zeros("notes", tarfile.REGTYPE, 2_000_000),
    "extended header": zeros("././@PaxHeader", tarfile.XHDTYPE, 2_000_000),
    "long name": zeros("././@LongLink", tarfile.GNUTYPE_LONGNAME, 2_000_000),
    "many members": zeros("notes", tarfile.REGTYPE, 0) * 4000,
    "after the end": bytes(2_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cifar10, "MAX_ARCHIVE_BYTES", 1_000_000)
    monkeypatch.setattr(cifar10, "MAX_FILE_BYTES", 100_000)
    (tmp_path / "bomb").write_bytes(gzip.compress(BOMBS[name]))
    tracemalloc.start()
    with pytest.raises(InputError, match="it unpacks to more than 1000000 bytes"):
        prepare(tmp_path, tmp_path / "bomb")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_500_000


@pytest.mark.parametrize("field", [b"-0000000001", b"\x80\0\0\0\0\0\0\0\0\0\x7f", b"0o000000777", b"00000000008"])
def test_a_size_that_is_no_octal_number(tmp_path, field):
    header = bytearray(zeros("notes", tarfile.REGTYPE, 0))
    header[124:136] = field.ljust(12, b"\0")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
    (tmp_path / "a.tar").write_bytes(header)
    with pytest.raises(InputError, match=r"not a complete CIFAR-10 archive \("):
        prepare(tmp_path, tmp_path / "a.tar")


def test_size_and_classes_are_fixed(tmp_path, monkeypatch):
    """Pillow is needed for pictures of another size only."""

    def missing(dataset):
        raise InputError(f"dataset={dataset} reads pictures with Pillow")

    monkeypatch.setattr(images, "load_pillow", missing)
    path = archive(tmp_path / "cifar.tar.gz", files(False))
    prepare(tmp_path, path)
    for changes, message in (
        ({"side": 64}, "dataset=cifar10 reads pictures with Pillow"),
        ({"size": 50}, r"dataset\.size=50: .* leave its size at 60"),
        ({"classes": 9}, r"dataset\.classes=9: dataset=cifar10 has 10 classes"),
    ):
        with pytest.raises(InputError, match=message):
            prepare(tmp_path, path, **changes)
    grey = image_config("cifar10", tmp_path, size=60, path=str(path))
    grey.model.input_shape = [32, 32, 1]
    with pytest.raises(InputError, match="square pictures of 3 channels"):
        datasets.prepare(grey)


PIXELS = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
LABELS = [3, 9, 0, 255]
BATCH = python_batch(PIXELS, LABELS)


@pytest.mark.parametrize("fortran", [False, True])
def test_images_and_labels(fortran):
    """The outside check of the test's own writer: pickle itself reads it."""
    batch = python_batch(PIXELS, LABELS, fortran=fortran)
    loaded = pickle.loads(batch, encoding="bytes")
    assert np.array_equal(loaded[b"data"], PIXELS) and loaded[b"labels"] == LABELS
    pixels, labels = parse_pickle(batch, 4, 6)
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
    with pytest.raises(ValueError, match=r"in place of|as a key"):
        parse_pickle(pickle.dumps({b"data": CALLS[name], b"labels": []}, protocol), 4, 6)
    assert not (tmp_path / "ran").exists()


def test_lists_of_more_than_a_thousand_and_repeated_strings():
    """Python 2 wrote an object that it had written before as its number."""
    pixels, labels = np.arange(5000, dtype=np.uint8).reshape(2500, 2), np.arange(2500) % 10
    parsed = parse_pickle(python_batch(pixels, labels.tolist()), 2500, 2)
    assert np.array_equal(parsed[0], pixels) and np.array_equal(parsed[1], labels)
    stored = bytes([BATCH.split(string(b"leptodactylus_0.png") + b"q")[1][0]])
    assert parse_pickle(BATCH.replace(string(b"leptodactylus_3.png"), b"h" + stored), 4, 6)[1].tolist() == LABELS


def head(value):
    return b"\x80\x02}(" + string(b"data") + value + b"u."


DOUBLED = b"K\x01" + b"2\x86" * 60  # DUP, TUPLE2: hash, repr and == of 2 ** 60 numbers
STORED = b"K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 60
BAD_PICKLES = {
    "list": (pickle.dumps([1], 2), "EMPTY_LIST in place of EMPTY_DICT"),
    "protocol": (pickle.dumps({"data": 1}, 4), "PROTO 4 in place of PROTO 2"),
    "other keys": (b"\x80\x02}(" + string(b"more") + b"K\x01u.", "STRING b'more' as a key"),
    "key twice": (b"\x80\x02}(" + (string(b"batch_label") + string(b"x")) * 2 + b"u.", "b'batch_label' as a key"),
    "no data": (b"\x80\x02}(u.", "without data and labels"),
    "text": (head(string(b"x" * 24)), "STRING b'x*' in place of GLOBAL b'numpy.core.multiarray _reconstruct'"),
    "doubled tuple as a key": (b"\x80\x02}(" + DOUBLED + b"K\x01u.", "INT 1 as a key"),
    "a string of 2 GiB": (head(b"T\xff\xff\xff\x7f"), r"STRING b'u\.' in place of GLOBAL"),
    "a string of less than nothing": (head(b"T\xff\xff\xff\xff"), r"STRING b'u\.' in place of GLOBAL"),
    "a name without an end": (head(b"c" + b"x" * 1000), "GLOBAL b'x* x*' in place of"),
    "stored tuple as a key": (b"\x80\x02}(" + STORED + b"K\x01u.", "INT 1 as a key"),
    "stored list": (b"\x80\x02}(]q\x00h\x00K\x01u.", "EMPTY_LIST as a key"),
    "repeated list": (b"\x80\x02}q\x00(h\x00K\x01u.", "a repeated object"),
    "another class": (head(b"cos\nsystem\n"), "GLOBAL b'os system' in place of"),
    "ndarray called": (head(b"cnumpy\nndarray\n(" + number(2**30) * 2 + b"t\x85R"), "b'numpy ndarray' in place of"),
    "bytearray": (head(b"\x96" + (2**31).to_bytes(8, "little")), "code b'.x96'"),
    "stored at a large number": (b"\x80\x02}r\xff\xff\xff\xff.", "STOP in place of MARK"),
    "many empty parts": (b"\x80\x02}(" + string(b"labels") + b"]" + b"(e" * 500, "more than 216 operations"),
    "rows": (python_batch(PIXELS[:3], LABELS), "INT 3 in place of INT 4"),
    "dtype": (python_batch(PIXELS, LABELS, dtype=b"u2"), "STRING b'u2' in place of STRING b'u1'"),
    "fewer labels": (python_batch(PIXELS, labels=LABELS[:3]), "STRING b'data' in place of MARK"),
    "more labels": (python_batch(PIXELS, labels=[*LABELS, 1]), "a list of 5, expected 4"),
    "labels": (python_batch(PIXELS, labels=[1, 2, 3, 256]), "no class numbers"),
    "negative": (python_batch(PIXELS, labels=[1, 2, 3, -1]), "no class numbers"),
    "cut array": (BATCH.replace(string(PIXELS.tobytes()), string(PIXELS.tobytes()[:-1])), "cut short"),
    "more behind": (BATCH + b"more", "4 bytes after its end"),
    "cut": (BATCH[:-1], "a pickle that is cut short"),
}


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_another_layout(case):
    content, message = BAD_PICKLES[case]
    tracemalloc.start()
    with pytest.raises(ValueError, match=message) as caught:
        parse_pickle(content, 4, 6)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000 and len(str(caught.value)) < 300


@settings(max_examples=100)
@given(data=st.data())
def test_damage_raises_or_changes_values_only(data):
    content = bytearray(BATCH)
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[position] = data.draw(st.integers(0, 255))
    try:
        pixels, labels = parse_pickle(bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))]), 4, 6)
    except ValueError:
        return
    assert pixels.shape == (4, 6) and labels.shape == (4,)
