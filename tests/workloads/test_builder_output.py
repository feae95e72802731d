"""Samples that a function gave: what is taken as what, and what is refused in which words."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scalebench.workloads.datasets import cache, user_function_worker
from scalebench.workloads.datasets.user_function_worker import UnusableSamples

FLOATS = np.linspace(0, 1, 24).reshape(6, 4)


def written(inputs: Any, targets: Any, folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    user_function_worker.write_samples((inputs, targets), folder)
    return cache.open_arrays(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8"])
def test_floats_become_float32(tmp_path: Path, dtype: str) -> None:
    inputs, targets = written(FLOATS.astype(dtype), FLOATS[:, :2].astype(dtype), tmp_path)
    assert inputs.dtype == targets.dtype == np.float32 and targets.shape == (6, 2)
    assert np.array_equal(inputs, FLOATS.astype(dtype).astype(np.float32))


def test_pictures_stay_bytes(tmp_path: Path) -> None:
    pictures = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)
    inputs, _ = written(pictures, FLOATS, tmp_path)
    assert inputs.dtype == np.uint8 and np.array_equal(inputs, pictures)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool"])
def test_whole_targets_are_class_numbers(tmp_path: Path, dtype: str) -> None:
    labels = np.array([0, 1, 1, 0, 1, 0]).astype(dtype)
    targets = written(FLOATS, labels, tmp_path)[1]
    assert targets.dtype == np.int64 and targets.shape == (6,) and targets.tolist() == [0, 1, 1, 0, 1, 0]


def test_lone_quantities_have_an_axis(tmp_path: Path) -> None:
    targets = written(FLOATS, FLOATS[:, 1], tmp_path)[1]
    assert targets.shape == (6, 1) and np.array_equal(targets[:, 0], FLOATS[:, 1].astype(np.float32))


def test_arrays_larger_than_a_block_and_maps_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_function_worker, "BLOCK_BYTES", 40)
    np.save(tmp_path / "mapped.npy", FLOATS)
    inputs, _ = written(np.load(tmp_path / "mapped.npy", mmap_mode="r"), FLOATS, tmp_path)
    assert np.array_equal(inputs, FLOATS.astype(np.float32))
    broken = FLOATS.copy()
    broken[4, 2] = np.nan
    with pytest.raises(UnusableSamples, match="first at sample 4: "):
        written(FLOATS, broken, tmp_path)


class Tensor:
    """As another package has them."""


UNFIT: dict[str, tuple[Any, str]] = {
    "None": (None, r"^gives None: it should return \(inputs, targets\)$"),
    "an array": (FLOATS, r"^gives a numpy ndarray: it should"),
    "three": ((FLOATS, FLOATS, FLOATS), r"^gives 3 things: it should"),
    "lists": ((FLOATS.tolist(), FLOATS), r"^gives a list as inputs: it should be a numpy array$"),
    "tensors": ((FLOATS, Tensor()), r"^gives a tests Tensor as targets: it should be a numpy array$"),
    "lone inputs": ((FLOATS[0], FLOATS[0]), r"^gives inputs of shape \(4,\): they should be \(n, \.\.\.\)"),
    "lengths": ((FLOATS, FLOATS[1:]), r"^gives inputs of shape \(6, 4\) and targets of shape \(5, 4\): they should"),
    "one target": ((FLOATS, np.ones(())), r"targets of shape \(\): they should be as many$"),
    "no samples": ((FLOATS[:0], FLOATS[:0]), r"^gives no samples: "),
    "no values": ((FLOATS[:, :0], FLOATS), r"^gives no samples: inputs of shape \(6, 0\)"),
    "whole inputs": ((FLOATS.astype(int), FLOATS), r"^gives inputs of int64: cast them to float32, or to uint8"),
    "texts": ((FLOATS, np.array(["a"] * 6)), r"^gives targets of <U1: cast them to float32, or to int64"),
    "objects": ((FLOATS.astype(object), FLOATS), r"^gives inputs of object"),
    "one-hot": ((FLOATS, np.eye(6, dtype=int)), r"^gives whole numbers as targets, of shape \(6, 6\): class numbers"),
    "below 0": ((FLOATS, np.arange(6) - 2), r"^gives class -2, below 0, in targets, first at sample 0: mend or drop"),
    "infinite": ((np.where(FLOATS > 0.9, np.inf, FLOATS), FLOATS), r"infinite value in inputs, first at sample 5"),
    "too large": ((FLOATS * 1e300, FLOATS), r"NaN or an infinite value in inputs, first at sample 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_trained_on(tmp_path: Path, case: str) -> None:
    made, message = UNFIT[case]
    with pytest.raises(UnusableSamples, match=message):
        user_function_worker.write_samples(made, tmp_path)


def test_a_full_disk_is_no_fault_of_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "create", full)
    with pytest.raises(user_function_worker.WriteFailed) as caught:
        user_function_worker.write_samples((FLOATS, FLOATS), tmp_path)
    assert caught.value.number == errno.ENOSPC
