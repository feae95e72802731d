"""Generated images: the same whoever makes them and in either dtype, and with something in them to learn."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from scalebench.workloads.datasets import cache, images, synthetic
from tests.workloads.configs import image_config

SAMPLES = 2 * synthetic.CHUNK + 7


def made(cache_dir: Path, side: int = 8, workers: int = 1, **changes) -> tuple[np.ndarray, np.ndarray]:
    config = image_config("cifar10_synthetic", cache_dir, side, **{"size": SAMPLES, **changes})
    return cache.open_arrays(synthetic.define_images(config).ensure(cache_dir, workers))


def test_shapes_and_types(tmp_path):
    inputs, targets = made(tmp_path)
    assert inputs.shape == (SAMPLES, 8, 8, 3) and inputs.dtype == np.uint8
    assert targets.shape == (SAMPLES,) and targets.dtype == np.int64
    assert set(targets.tolist()) == set(range(10))


def test_several_processes_make_the_same(tmp_path):
    for one, two in zip(made(tmp_path / "1"), made(tmp_path / "2", workers=2), strict=True):
        assert np.array_equal(one, two)


def test_float32_is_the_same_pictures(tmp_path):
    (inputs, targets), (floats, same) = made(tmp_path), made(tmp_path, dtype="float32")
    assert floats.dtype == np.float32 and np.array_equal(floats, images.to_float32(inputs))
    assert np.array_equal(targets, same)


def test_more_samples_begin_with_the_fewer(tmp_path):
    few, many = made(tmp_path, size=10), made(tmp_path)
    assert np.array_equal(few[0], many[0][:10]) and np.array_equal(few[1], many[1][:10])


def test_seeds_and_chunks_differ(tmp_path):
    inputs, targets = made(tmp_path)
    chunk = synthetic.CHUNK
    assert not np.array_equal(inputs[:chunk], inputs[chunk : 2 * chunk])
    other = made(tmp_path, seed=1)
    assert not np.array_equal(inputs, other[0]) and not np.array_equal(targets, other[1])
    assert not np.array_equal(*(synthetic._class_colors(seed, 10, 3) for seed in (0, 1)))


def test_what_changes_the_images_changes_the_folder(tmp_path):
    base = image_config("cifar10_synthetic", tmp_path)
    others = [
        image_config("imagenet_synthetic", tmp_path),
        image_config("cifar10_synthetic", tmp_path, side=9),
        *(image_config("cifar10_synthetic", tmp_path, **change) for change in ({"dtype": "float32"}, {"classes": 9})),
        *(image_config("cifar10_synthetic", tmp_path, **change) for change in ({"size": 99}, {"seed": 1})),
    ]
    folders = {synthetic.define_images(config).ensure(tmp_path) for config in (base, *others)}
    assert len(folders) == 1 + len(others)


def test_any_shape_of_images(tmp_path):
    config = image_config("imagenet_synthetic", tmp_path, size=3)
    config.model = dataclasses.replace(config.model, input_shape=[5, 3, 1])
    assert cache.open_arrays(synthetic.define_images(config).ensure(tmp_path))[0].shape == (3, 5, 3, 1)


def test_the_class_is_in_the_colour_and_the_rest_is_noise(tmp_path):
    inputs, targets = made(tmp_path, side=32, size=1000)
    colours = inputs.reshape(1000, -1, 3).mean(1)
    centres = np.stack([colours[:500][targets[:500] == c].mean(0) for c in range(10)])
    nearest = np.linalg.norm(colours[500:, None] - centres, axis=2).argmin(1)
    assert (nearest == targets[500:]).mean() > 0.99
    # Uniform in 0 .. 127 around its class's colour, and no two neighbours alike.
    noise = inputs - colours[:, None, None]
    assert noise.std() == pytest.approx(128 / np.sqrt(12), rel=0.01)
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 10 and abs((noise[:, :, 1:] * noise[:, :, :-1]).mean()) < 10
