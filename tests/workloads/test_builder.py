"""What the process that makes samples answers, here without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.workloads.datasets import cache, user_function_worker
from tests.plugin_dists import Dists
from tests.plugin_dists import dists as dists

CODE = """\
import sys
import numpy as np
from scalebench.spec import InputError


def build(size, seed, body="", noise=0.0):
    exec(body)
    inputs = np.full((size, 3), seed + noise)
    return inputs, inputs


lone = 3
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "made_here.py").write_text(CODE)
    yield
    sys.modules.pop("made_here", None)


def answer(folder: Path, reference: str = "made_here:build", **options: Any) -> dict[str, Any]:
    request = {"target": reference, "what": f"dataset.builder={reference}", "own": True, "size": 5, "seed": 7}
    return user_function_worker.handle_request({**request, "options": options, "folder": str(folder)})


def test_the_function_is_called_with_size_seed_and_options(tmp_path: Path) -> None:
    assert answer(tmp_path, noise=0.5) == {}
    inputs, targets = cache.open_arrays(tmp_path)
    assert np.array_equal(inputs, np.full((5, 3), 7.5, np.float32)) and np.array_equal(inputs, targets)


def test_the_function_of_a_plugin(tmp_path: Path, dists: Dists) -> None:
    dists.add("more-data", {"more_data.py": CODE}, {"datasets": {"more": "more_data:build"}})
    request = {"target": "more_data:build", "what": "data set 'more' of more-data", "own": False, "size": 2, "seed": 0}
    assert user_function_worker.handle_request({**request, "options": {}, "folder": str(tmp_path)}) == {}
    assert len(cache.open_arrays(tmp_path)[0]) == 2
    wrong = user_function_worker.handle_request({**request, "options": {"body": "1 / 0"}, "folder": str(tmp_path)})
    assert wrong["problem"] == "data set 'more' of more-data fails: ZeroDivisionError: division by zero"


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"body": "raise ValueError('bad\\nthings')"}, "fails: ValueError: bad things"),
    "exits": ({"body": "sys.exit(3)"}, "fails: SystemExit: 3"),
    "interrupts": ({"body": "raise KeyboardInterrupt('x')"}, "fails: KeyboardInterrupt: x"),
    "memory": ({"body": "raise MemoryError"}, "ran out of memory: lower dataset.size"),
    "options": ({"nose": 1}, "fails: TypeError: build() got an unexpected keyword argument"),
    "unfit": ({"noise": float("nan")}, "gives NaN or an infinite value in inputs, first at sample 0"),
    "no function": ({"reference": "made_here:lone"}, "is no function"),
    "not there": ({"reference": "made_here:biuld"}, "cannot be loaded"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults(tmp_path: Path, case: str) -> None:
    words, line = FAULTS[case]
    found = answer(tmp_path, **words)
    reference = words.get("reference", "made_here:build")
    assert found["problem"].startswith(f"dataset.builder={reference} {line}")
    assert "\n" not in found["problem"]
    assert ("Traceback" in found.get("log", "")) == (case not in ("unfit", "no function"))


def test_an_input_error_of_its_own_and_a_full_disk_are_told_apart(tmp_path: Path) -> None:
    assert answer(tmp_path, body="raise InputError('noise should be positive')") == {
        "input": "noise should be positive"
    }
    assert answer(tmp_path / "nowhere") == {"errno": 2}
