"""What each data set is like for a network that takes samples as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalebench.spec import Config, DatasetSpec, InputError, ModelSpec
from scalebench.workloads import datasets


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def build(): ...\n")


def filled(model: dict[str, Any], name: str, **dataset: Any) -> ModelSpec:
    own = ModelSpec(**{"name": "custom", "torch": "mine:build", "loss": "auto", "metric": "auto", **model})
    return datasets.fill_from_samples(Config(model=own, dataset=DatasetSpec(name, **dataset))).model


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[list[int], list[int], int]]] = {
    "materials": ({}, {}, ([200, 3], [2], 2)),
    "random": ({"input_shape": [30, 2], "target_shape": [3]}, {}, ([30, 2], [3], 3)),
    "random of one output": ({"input_shape": [30]}, {}, ([30], [1], 1)),
    "cifar10_synthetic": ({}, {"classes": 10}, ([32, 32, 3], [], 10)),
    "cifar10": ({}, {"classes": 10, "path": "/x"}, ([32, 32, 3], [], 10)),
    "imagenet": ({}, {"classes": 1000, "path": "/x"}, ([224, 224, 3], [], 1000)),
    "imagenet_synthetic": ({}, {"classes": 9, "image_size": 64}, ([64, 64, 3], [], 9)),
    "imagenet_synthetic of the model's size": (
        {"input_shape": [48, 40, 1], "outputs": 12}, {"classes": 9}, ([48, 40, 1], [], 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_shapes(case: str) -> None:
    model, dataset, expected = CASES[case]
    found = filled(model, case.partition(" ")[0], **dataset)
    assert (found.input_shape, found.target_shape, found.outputs) == expected
    assert found.loss == ("mse" if expected[1] else "cross_entropy") and found.name == "mine:build"


@pytest.mark.parametrize("name", ["materials", "random"])
def test_a_file_of_ones_own_says_its_shapes(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "my.npz", inputs=np.ones((5, 4, 2)), targets=np.ones((5, 3)))
    found = filled({}, name, path="my.npz")
    assert (found.input_shape, found.target_shape, found.outputs) == ([4, 2], [3], 3)


def test_files_without_shapes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", inputs=np.ones(5), targets=np.ones((5, 3)))
    with pytest.raises(InputError, match=r"^dataset.path=.*flat.npz: inputs has shape \(5,\), expected \(n, \.\.\.\)"):
        filled({}, "materials", path="flat.npz")
    with pytest.raises(InputError, match=r"^dataset.path=.*none.npz cannot be read \(no such file\)"):
        filled({}, "materials", path="none.npz")


def test_random_samples_need_a_shape() -> None:
    with pytest.raises(InputError, match=r"^dataset=random makes samples of whatever shape the model takes: say it"):
        filled({}, "random")
