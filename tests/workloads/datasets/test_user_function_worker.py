"""The process that calls a dataset function (here called in this process): which samples it accepts, which problems it
reports."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scalebench.workloads.datasets import cache, user_function_worker
from scalebench.workloads.datasets.user_function_worker import UnusableSamples
from tests.builders.plugins import Distributions
from tests.builders.plugins import dists as dists

CODE = """\
import sys
import numpy as np
from scalebench.core.errors import InputError


def build(size, seed, body="", noise=0.0):
    exec(body)
    inputs = np.full((size, 3), seed + noise)
    return inputs, inputs


number = 3
"""
FLOATS = np.linspace(0, 1, 24).reshape(6, 4)


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made_here.py").write_text(CODE)
    yield
    sys.modules.pop("made_here", None)


def respond(folder: Path, reference: str = "made_here:build", **options: Any) -> dict[str, Any]:
    label = f"dataset.builder={reference}"
    request = {"reference": reference, "label": label, "from_user": True, "size": 5, "seed": 7}
    return user_function_worker.handle_request({**request, "options": options, "folder": str(folder)})


def test_the_function_is_called_with_size_seed_and_options(tmp_path: Path) -> None:
    assert respond(tmp_path, noise=0.5) == {}
    inputs, targets = cache.open_arrays(tmp_path)
    assert np.array_equal(inputs, np.full((5, 3), 7.5, np.float32)) and np.array_equal(inputs, targets)


def test_the_function_of_a_plugin(tmp_path: Path, dists: Distributions) -> None:
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": {"more": "more_data:build"}})
    label = "data set 'more' of more-data"
    request = {"reference": "more_data:build", "label": label, "from_user": False, "size": 2, "seed": 0}
    assert user_function_worker.handle_request({**request, "options": {}, "folder": str(tmp_path)}) == {}
    assert len(cache.open_arrays(tmp_path)[0]) == 2
    wrong = user_function_worker.handle_request({**request, "options": {"body": "1 / 0"}, "folder": str(tmp_path)})
    assert wrong["problem"] == "data set 'more' of more-data fails: ZeroDivisionError: division by zero"


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"body": "raise ValueError('bad\\nthings')"}, "fails: ValueError: bad things"),
    "exits": ({"body": "sys.exit(3)"}, "fails: SystemExit: 3"),
    "memory": ({"body": "raise MemoryError"}, "ran out of memory: lower dataset.size"),
    "options": ({"nose": 1}, "fails: TypeError: build() got an unexpected keyword argument"),
    "unusable": ({"noise": float("nan")}, "returns NaN or an infinite value in inputs, first at sample 0"),
    "no function": ({"reference": "made_here:number"}, "is no function"),
    "missing": ({"reference": "made_here:biuld"}, "cannot be loaded"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_problems_are_one_line(tmp_path: Path, case: str) -> None:
    arguments, line = PROBLEMS[case]
    response = respond(tmp_path, **arguments)
    reference = arguments.get("reference", "made_here:build")
    assert response["problem"].startswith(f"dataset.builder={reference} {line}")
    assert "\n" not in response["problem"]
    assert ("Traceback" in response.get("log", "")) == (case not in ("unusable", "no function"))


def test_input_errors_and_failed_writes_are_not_the_functions_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "noise should be positive"
    assert respond(tmp_path, body=f"raise InputError('{line}')") == {"input": line}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "create_array", full)
    assert respond(tmp_path) == {"errno": errno.ENOSPC}


def write(inputs: Any, targets: Any, folder: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    user_function_worker.write_samples((inputs, targets), folder)
    return cache.open_arrays(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8"])
def test_floats_become_float32(tmp_path: Path, dtype: str) -> None:
    inputs, targets = write(FLOATS.astype(dtype), FLOATS[:, 1].astype(dtype), tmp_path)
    assert inputs.dtype == targets.dtype == np.float32
    assert np.array_equal(inputs, FLOATS.astype(dtype).astype(np.float32))
    assert targets.shape == (6, 1) and np.array_equal(targets, inputs[:, 1:2])


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool"])
def test_integer_targets_are_class_numbers_and_pictures_stay_bytes(tmp_path: Path, dtype: str) -> None:
    pictures = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)
    inputs, targets = write(pictures, np.array([0, 1, 1, 0, 1, 0]).astype(dtype), tmp_path)
    assert inputs.dtype == np.uint8 and np.array_equal(inputs, pictures)
    assert targets.dtype == np.int64 and targets.tolist() == [0, 1, 1, 0, 1, 0]


def test_arrays_larger_than_a_block_and_memory_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_function_worker, "BLOCK_BYTES", 40)
    np.save(tmp_path / "mapped.npy", FLOATS)
    inputs, _ = write(np.load(tmp_path / "mapped.npy", mmap_mode="r"), FLOATS, tmp_path)
    assert np.array_equal(inputs, FLOATS.astype(np.float32))
    broken = FLOATS.copy()
    broken[4, 2] = np.nan
    with pytest.raises(UnusableSamples, match="first at sample 4: "):
        write(FLOATS, broken, tmp_path)


class Tensor:
    """Stands for an array of another package."""


UNUSABLE: dict[str, tuple[Any, str]] = {
    "None": (None, r"^returns None: it should return \(inputs, targets\)$"),
    "an array": (FLOATS, r"^returns a numpy ndarray: it should"),
    "three": ((FLOATS, FLOATS, FLOATS), r"^returns 3 values: it should"),
    "lists": ((FLOATS.tolist(), FLOATS), r"^returns a list as inputs: it should be a numpy array$"),
    "tensors": ((FLOATS, Tensor()), r"^returns a tests Tensor as targets: it should be a numpy array$"),
    "one axis": ((FLOATS[0], FLOATS[0]), r"^returns inputs of shape \(4,\): they should be \(n, \.\.\.\)"),
    "lengths": ((FLOATS, FLOATS[1:]), r"^returns inputs of shape \(6, 4\) and targets of shape \(5, 4\): they should"),
    "no samples": ((FLOATS[:0], FLOATS[:0]), r"^returns no samples: "),
    "integer inputs": ((FLOATS.astype(int), FLOATS), r"^returns inputs of int64: cast them to float32, or to uint8"),
    "strings": ((FLOATS, np.array(["a"] * 6)), r"^returns targets of <U1: cast them to float32, or to int64"),
    "one-hot": ((FLOATS, np.eye(6, dtype=int)), r"^returns integer targets of shape \(6, 6\): class numbers"),
    "below 0": ((FLOATS, np.arange(6) - 2), r"^returns the negative class -2 in targets, first at sample 0: correct"),
    "infinite": ((np.where(FLOATS > 0.9, np.inf, FLOATS), FLOATS), r"infinite value in inputs, first at sample 5"),
    "too large": ((FLOATS * 1e300, FLOATS), r"NaN or an infinite value in inputs, first at sample 0"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_results_that_cannot_be_trained_on(tmp_path: Path, case: str) -> None:
    result, message = UNUSABLE[case]
    with pytest.raises(UnusableSamples, match=message):
        user_function_worker.write_samples(result, tmp_path)
