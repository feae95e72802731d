"""Generated datasets: the same samples for any number of processes, and (except in `random`) something to learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scalebench.core.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, images, synthetic
from tests.workloads.datasets.dataset_configs import image_config

Arrays = tuple[NDArray[Any], NDArray[Any]]


def make_random(
    folder: Path, size: int = 500, seed: int = 0, workers: int = 1, shape: tuple[int, ...] = (300_000,),
    targets: tuple[int, ...] = (1,),
) -> Arrays:  # fmt: skip
    model = ModelSpec("mlp", input_shape=list(shape), target_shape=list(targets))
    config = Config(model=model, dataset=DatasetSpec("random", size=size, seed=seed))
    return cache.open_arrays(synthetic.define_random(config).ensure(folder, workers))


def make_images(folder: Path, side: int = 8, workers: int = 1, size: int = 135, **changes: Any) -> Arrays:
    config = image_config("cifar10_synthetic", folder, side, **{"size": size, **changes})
    return cache.open_arrays(synthetic.define_images(config).ensure(folder, workers))


def make_tokens(
    folder: Path, size: int = 300, seed: int = 0, workers: int = 1, length: int = 20, classes: int = 50
) -> Arrays:
    model = ModelSpec("gpt_small", input_shape=[length], target_shape=[length])
    dataset = DatasetSpec(synthetic.TOKENS, size=size, seed=seed, classes=classes, dtype="int32")
    return cache.open_arrays(synthetic.define_tokens(Config(model=model, dataset=dataset)).ensure(folder, workers))


@pytest.mark.parametrize(("make", "size", "few", "chunk"), [
    (make_random, 7, 5, 3),
    (make_images, 135, 70, synthetic.IMAGE_CHUNK),
    (make_tokens, 300, 70, synthetic.TOKEN_CHUNK),
])  # fmt: skip
def test_samples_depend_on_seed_and_index_only(
    tmp_path: Path, make: Callable[..., Arrays], size: int, few: int, chunk: int
) -> None:
    one, two, fewer = (
        make(tmp_path / "1", size=size),
        make(tmp_path / "2", size=size, workers=2),
        make(tmp_path, size=few),
    )
    for a, b, c in zip(one, two, fewer, strict=True):
        assert len(a) == size and np.array_equal(a, b) and np.array_equal(a[:few], c)
    assert not np.array_equal(one[0][:chunk], one[0][chunk : 2 * chunk])
    assert not np.array_equal(one[0], make(tmp_path, size=size, seed=1)[0])


@pytest.mark.parametrize(("shape", "targets"), [((6,), (1,)), ((4, 5, 3), (2, 2))])
def test_random_samples_have_any_shape(tmp_path: Path, shape: tuple[int, ...], targets: tuple[int, ...]) -> None:
    arrays = make_random(tmp_path, shape=shape, targets=targets)
    assert [array.shape for array in arrays] == [(500, *shape), (500, *targets)]
    assert {array.dtype for array in arrays} == {np.dtype("float32")}


def test_distributions_of_random_samples(tmp_path: Path) -> None:
    inputs, targets = make_random(tmp_path, shape=(64,), size=2000)
    assert inputs.mean() == pytest.approx(0, abs=0.02) and inputs.std() == pytest.approx(1, rel=0.02)
    assert targets.min() >= 0 and targets.max() < 1 and targets.mean() == pytest.approx(0.5, abs=0.03)


def test_images_are_the_same_in_either_dtype(tmp_path: Path) -> None:
    (inputs, targets), (floats, labels) = make_images(tmp_path), make_images(tmp_path, dtype="float32")
    assert inputs.shape == (135, 8, 8, 3) and inputs.dtype == np.uint8
    assert targets.shape == (135,) and targets.dtype == np.int64 and set(targets.tolist()) == set(range(10))
    assert floats.dtype == np.float32 and np.array_equal(floats, images.to_float32(inputs))
    assert np.array_equal(targets, labels)


def test_whatever_changes_the_images_changes_the_folder(tmp_path: Path) -> None:
    base = image_config("cifar10_synthetic", tmp_path)
    narrow = image_config("imagenet_synthetic", tmp_path, size=3)
    narrow.model = dataclasses.replace(narrow.model, input_shape=[5, 3, 1])
    changes: list[dict[str, Any]] = [{"dtype": "float32"}, {"classes": 9}, {"size": 99}, {"seed": 1}, {"side": 9}]
    others = [narrow, *(image_config("cifar10_synthetic", tmp_path, **change) for change in changes)]
    folders = {synthetic.define_images(config).ensure(tmp_path) for config in (base, *others)}
    assert len(folders) == 1 + len(others)
    assert cache.open_arrays(synthetic.define_images(narrow).ensure(tmp_path))[0].shape == (3, 5, 3, 1)


def test_the_class_is_in_the_color_and_the_rest_is_noise(tmp_path: Path) -> None:
    inputs, targets = make_images(tmp_path, side=32, size=1000)
    colors = inputs.reshape(1000, -1, 3).mean(1)
    centers = np.stack([colors[:500][targets[:500] == c].mean(0) for c in range(10)])
    nearest = np.linalg.norm(colors[500:, None] - centers, axis=2).argmin(1)
    assert (nearest == targets[500:]).mean() > 0.99
    # Uniform in 0 .. 127 around the color of its class, and neighbors are independent.
    noise = inputs - colors[:, None, None]
    assert noise.std() == pytest.approx(128 / np.sqrt(12), rel=0.01)
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 10 and abs((noise[:, :, 1:] * noise[:, :, :-1]).mean()) < 10


def test_each_target_is_the_next_token(tmp_path: Path) -> None:
    inputs, targets = make_tokens(tmp_path)
    assert inputs.shape == targets.shape == (300, 20)
    assert (inputs.dtype, targets.dtype) == (np.dtype("int32"), np.dtype("int64"))
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert set(np.unique(inputs)) == set(range(50)) and targets.min() >= 0 and targets.max() < 50


def test_each_token_has_a_few_successors_equally_likely(tmp_path: Path) -> None:
    """The loss of a perfect model is log 4 at most, and a little less since two of the four may be the same."""
    inputs, targets = make_tokens(tmp_path, size=6000, classes=16)
    counts = np.zeros((16, 16))
    np.add.at(counts, (inputs, targets), 1)
    assert (counts > 0).sum(1).mean() > 1 and (counts > 0).sum(1).max() <= synthetic.SUCCESSORS
    shares = counts / counts.sum(1, keepdims=True)
    quarters = shares[shares > 0] * synthetic.SUCCESSORS
    np.testing.assert_allclose(quarters, np.round(quarters), atol=0.2)
    entropy = -(counts * np.log(np.where(shares > 0, shares, 1))).sum() / counts.sum()
    assert 1.0 < entropy <= np.log(synthetic.SUCCESSORS)


@pytest.mark.parametrize(("size", "length", "classes"), [(3, 1, 2), (1, 9, 20), (64, 9, 20), (65, 9, 20)])
def test_sizes_of_token_datasets(tmp_path: Path, size: int, length: int, classes: int) -> None:
    inputs, targets = make_tokens(tmp_path, size=size, length=length, classes=classes)
    assert inputs.shape == targets.shape == (size, length) and inputs.max() < classes
