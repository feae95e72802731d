"""The CIFAR-10 archive, packed or not; every mistake is one line, and nothing but the published files is ever
unpickled."""

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache, cifar10, images
from tests.builders.configs import image_config

# CIFAR-10's six files as they are distributed, with ten images each instead of 10,000.
RECORDS = 10
NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
PYTHON = "cifar-10-batches-py"


def python_batch(pixels, labels):
    """{labels, data} as Python 2 and numpy 1 wrote them, by the names that arrays had then."""
    content = pickle.dumps({b"labels": labels, b"data": pixels}, protocol=2)
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


RANDOM = np.random.default_rng(0)
IMAGES, CLASSES = RANDOM.integers(0, 256, (60, 32, 32, 3), np.uint8), np.arange(60) * 7 % 10


def files(**changes):
    """Name -> content, in the order in which the real archive has them; `changes` by name, None to leave one out."""
    rows, made = IMAGES.transpose(0, 3, 1, 2).reshape(60, 3072), {}
    for place in (3, 5, 2, 1, 4, 0):
        part = slice(place * RECORDS, (place + 1) * RECORDS)
        content = python_batch(rows[part], CLASSES[part].tolist())
        made[NAMES[place]] = changes.get(NAMES[place], content)
    return {name: content for name, content in made.items() if content is not None}


def archive(path, contents, folder=PYTHON):
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


@pytest.fixture(autouse=True)
def ten_images_a_file(monkeypatch):
    monkeypatch.setattr(cifar10, "IMAGES_PER_FILE", RECORDS)
    published = {name: hashlib.md5(content).hexdigest() for name, content in files().items()}
    monkeypatch.setattr(cifar10, "FILES", {name: published[name] for name in NAMES})


def prepare(tmp_path, path, side=32, **changes):
    config = image_config("cifar10", tmp_path / "cache", side, **{"size": 60, "path": str(path), **changes})
    return cache.open_arrays(datasets.prepare(config))


@pytest.mark.parametrize("packed", ["gz", "folder", "the folder above"])
def test_images_in_order_with_the_test_batch_last(tmp_path, packed):
    path = directory(tmp_path / "data" / PYTHON, files())
    if packed == "gz":
        path = archive(tmp_path / "cifar.tar.gz", files())
    elif packed == "the folder above":
        path = path.parent
    inputs, targets = prepare(tmp_path, path)
    assert inputs.dtype == np.uint8 and targets.dtype == np.int64
    assert np.array_equal(inputs, IMAGES) and np.array_equal(targets, CLASSES)


def test_floats_and_another_size(tmp_path):
    path = directory(tmp_path / PYTHON, files())
    small, large = prepare(tmp_path, path)[0], prepare(tmp_path, path, side=64)[0]
    assert large.shape == (60, 64, 64, 3) and large.dtype == np.uint8
    halves = large.reshape(60, 32, 2, 32, 2, 3).mean((2, 4))
    assert np.corrcoef(halves.ravel(), small.ravel())[0, 1] > 0.8
    assert np.array_equal(prepare(tmp_path, path, dtype="float32")[0], small / np.float32(127.5) - 1)


def test_unpacked_once_and_again_when_it_changed(tmp_path, monkeypatch):
    path = directory(tmp_path / PYTHON, files())
    prepare(tmp_path, path)
    calls = []
    unpack = cifar10._unpack
    monkeypatch.setattr(cifar10, "_unpack", lambda *arguments: (calls.append(1), unpack(*arguments)))
    prepare(tmp_path, path)
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, Path(PYTHON))
    assert not calls
    os.utime(path / "data_batch_3", ns=(1, 1))
    prepare(tmp_path, path)
    assert len(calls) == 1


def test_size_and_classes_are_fixed(tmp_path, monkeypatch):
    """Pillow is needed for pictures of another size only."""

    def missing(dataset):
        raise InputError(f"dataset={dataset} reads pictures with Pillow")

    monkeypatch.setattr(images, "load_pillow", missing)
    path = directory(tmp_path / PYTHON, files())
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
    reason = r"of \(32, 32, 3\), model=net takes \(32, 32, 1\): .*or set dataset.image_size"
    with pytest.raises(InputError, match=reason):
        datasets.prepare(grey)


BAD = {
    "no archive": (lambda p: p.write_bytes(b"\x1f\x8b, not one") and p, "is not a complete archive"),
    "another archive": (lambda p: archive(p, {}), "its data_batch_1 is not the published one by its MD5"),
    "pickle": (lambda p: directory(p, files(data_batch_2=b"cos\nsystem\n(S'x'\ntR.")),
     "its data_batch_2 is not the published one by its MD5"),
    "folder": (lambda p: p.mkdir() or p, f"has no folder {PYTHON} with all six files"),
    "incomplete folder": (lambda p: directory(p, files(test_batch=None)), "with all six files"),
    "missing": (lambda p: p, "does not exist"),
}  # fmt: skip


def check_line(tmp_path, path, message):
    with pytest.raises(InputError, match=message) as caught:
        prepare(tmp_path, path)
    assert "\n" not in str(caught.value) and cifar10.HOME in str(caught.value)
    assert f"dataset.path={path}" in str(caught.value)
    left = tmp_path / "cache"
    assert not left.exists() or [path.suffix for path in left.iterdir()] == [".lock"]


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_line(tmp_path, case):
    make, message = BAD[case]
    check_line(tmp_path, make(tmp_path / "cifar"), message)
