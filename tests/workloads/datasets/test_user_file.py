"""A user's .npz file: unpacked once, and every mistake in it is one line."""

import errno
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.core.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, sample_writer, user_file

CONFIG = Config(model=ModelSpec("mine", input_shape=[200, 3], target_shape=[2]), dataset=DatasetSpec("materials"))


def good(samples=5, dtype="float64"):
    rng = np.random.default_rng(0)
    return {"inputs": rng.random((samples, 200, 3)).astype(dtype), "targets": rng.random((samples, 2)).astype(dtype)}


def ensure(tmp_path, arrays=None):
    path = tmp_path / "data.npz"
    if arrays is not None:
        np.savez(path, **arrays)
    return user_file.import_npz(CONFIG, tmp_path / "cache", path)


@pytest.mark.parametrize("dtype", ["float64", "fortran"])
def test_unpacked_as_float32(tmp_path, dtype):
    """The file may be compressed, have arrays in Fortran's order, and more of them."""
    arrays = good(dtype="float64" if dtype == "fortran" else dtype)
    if dtype == "fortran":
        arrays |= {"inputs": np.asfortranarray(arrays["inputs"]), "more": np.ones(3)}
        np.savez_compressed(tmp_path / "data.npz", **arrays)
    inputs, targets = cache.open_arrays(ensure(tmp_path, None if dtype == "fortran" else arrays))
    assert inputs.dtype == targets.dtype == np.float32 and isinstance(inputs, np.memmap) and inputs.flags.c_contiguous
    assert np.array_equal(inputs, arrays["inputs"].astype(np.float32))
    assert np.array_equal(targets, arrays["targets"].astype(np.float32))


def test_read_once_and_again_when_it_changed(tmp_path, monkeypatch):
    folder = ensure(tmp_path, good())
    monkeypatch.setattr(user_file, "_unpack", lambda *_: pytest.fail("read again"))
    assert ensure(tmp_path) == folder
    monkeypatch.chdir(tmp_path)
    assert user_file.import_npz(CONFIG, tmp_path / "cache", Path("data.npz")) == folder
    monkeypatch.undo()
    os.utime(tmp_path / "data.npz", ns=(1, 1))
    assert ensure(tmp_path) != folder


def raise_full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


BAD = {
    "names": ({"x": np.ones(2), "targets": good()["targets"]}, r"contains x, targets, but no array inputs"),
    "nothing": ({}, "contains nothing, but no array inputs"),
    "shape": (
        good() | {"inputs": np.ones((5, 100, 3))},
        r"inputs has samples of \(100, 3\), expected \(200, 3\): reshape it",
    ),
    "axes": (good() | {"targets": np.ones(5)}, r"targets has samples of \(1,\), expected \(2,\)"),
    "integers": (good() | {"targets": np.ones((5, 2), int)}, "targets is int64, expected floats"),
    "objects": (good() | {"targets": np.full((5, 2), None)}, r"not a readable \.npz .*Object arrays"),
    "NaN": (
        good() | {"inputs": np.where(np.arange(5)[:, None, None] == 1, np.nan, np.ones((5, 200, 3)))},
        "has NaN or an infinite value in inputs, first at sample 1: ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_content_is_one_line(tmp_path, case, monkeypatch):
    monkeypatch.setattr(sample_writer, "BLOCK_BYTES", 10_000)
    arrays, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        ensure(tmp_path, arrays)
    assert f"dataset.path={tmp_path}/data.npz" in str(caught.value) and "\n" not in str(caught.value)
    assert case in ("shape", "axes") or [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_no_npz_at_all(tmp_path):
    path = tmp_path / "data.npz"
    with pytest.raises(InputError, match=r"data\.npz cannot be read \(No such file"):
        ensure(tmp_path)
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"data\.npz cannot be read \(not a regular file\)"):
        ensure(tmp_path)
    path.unlink()
    np.save(tmp_path / "data.npy", np.ones(3))
    saved = (tmp_path / "data.npy").read_bytes()
    for content in (saved, b"", b"no zip", b"PK\x03\x04", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is not a readable \.npz .*numpy\.savez") as caught:
            ensure(tmp_path)
        assert content != saved or "one array, as numpy.save writes it" in str(caught.value)


@pytest.mark.parametrize("short", ["memory", "disk"])
def test_what_unpacks_to_more_than_there_is_room_for(tmp_path, monkeypatch, short):
    if short == "memory":
        content = io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**50, 200, 3)}
        np.lib.format.write_array_header_1_0(content, header)
        with zipfile.ZipFile(tmp_path / "data.npz", "w") as file:
            for name in user_file.ARRAY_NAMES:
                file.writestr(f"{name}.npy", content.getvalue())
        message = "needs more memory than there is: store fewer samples|too large|too big"
    else:
        np.savez_compressed(tmp_path / "data.npz", **good())
        monkeypatch.setattr(os, "posix_fallocate", raise_full)
        message = r"is full \(No space left on device\): set dataset.cache="
    with pytest.raises(InputError, match=message):
        ensure(tmp_path)
