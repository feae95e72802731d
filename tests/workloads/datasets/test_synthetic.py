"""Generated datasets: the same samples for any number of processes, and (except in `random`) something to learn.
The materials curves: the formula, the padding, the ranges, and that a curve depends on seed and index only."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.core.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, images, materials, synthetic
from scalebench.workloads.datasets.materials import CHUNK, generate_curves
from tests.builders.configs import image_config


def make_random(folder, size=500, seed=0, workers=1, shape=(300_000,), targets=(1,)):
    model = ModelSpec("mlp", input_shape=list(shape), target_shape=list(targets))
    config = Config(model=model, dataset=DatasetSpec("random", size=size, seed=seed))
    return cache.open_arrays(synthetic.define_random(config).ensure(folder, workers))


def make_images(folder, side=8, workers=1, size=135, **changes):
    config = image_config("cifar10_synthetic", folder, side, **{"size": size, **changes})
    return cache.open_arrays(synthetic.define_images(config).ensure(folder, workers))


def make_tokens(folder, size=300, seed=0, workers=1, length=20, classes=50):
    model = ModelSpec("gpt_small", input_shape=[length], target_shape=[length])
    dataset = DatasetSpec(synthetic.TOKENS, size=size, seed=seed, classes=classes, dtype="int32")
    return cache.open_arrays(synthetic.define_tokens(Config(model=model, dataset=dataset)).ensure(folder, workers))


@pytest.mark.parametrize(
    ("make", "size", "few", "chunk", "workers"),
    [
        (make_random, 7, 5, 3, 2),
        (make_images, 135, 70, synthetic.IMAGE_CHUNK, 1),
        (make_tokens, 300, 70, synthetic.TOKEN_CHUNK, 1),
        pytest.param(make_images, 135, 70, synthetic.IMAGE_CHUNK, 2, marks=pytest.mark.slow),
        pytest.param(make_tokens, 300, 70, synthetic.TOKEN_CHUNK, 2, marks=pytest.mark.slow),
    ],
)
def test_samples_depend_on_seed_and_index_only(tmp_path, make, size, few, chunk, workers):
    one, two = make(tmp_path / "1", size=size), make(tmp_path / "2", size=size, workers=workers)
    fewer = make(tmp_path, size=few)
    for a, b, c in zip(one, two, fewer, strict=True):
        assert len(a) == size and np.array_equal(a, b) and np.array_equal(a[:few], c)
    assert not np.array_equal(one[0][:chunk], one[0][chunk : 2 * chunk])
    assert not np.array_equal(one[0], make(tmp_path, size=size, seed=1)[0])


def test_distributions_of_random_samples(tmp_path):
    arrays = make_random(tmp_path, shape=(4, 5, 3), targets=(2, 2))
    assert [array.shape for array in arrays] == [(500, 4, 5, 3), (500, 2, 2)]
    assert {array.dtype for array in arrays} == {np.dtype("float32")}
    inputs, targets = make_random(tmp_path, shape=(64,), size=2000)
    assert inputs.mean() == pytest.approx(0, abs=0.02) and inputs.std() == pytest.approx(1, rel=0.02)
    assert targets.min() >= 0 and targets.max() < 1 and targets.mean() == pytest.approx(0.5, abs=0.03)


def test_images_are_the_same_in_either_dtype(tmp_path):
    (inputs, targets), (floats, labels) = make_images(tmp_path), make_images(tmp_path, dtype="float32")
    assert inputs.shape == (135, 8, 8, 3) and inputs.dtype == np.uint8
    assert targets.shape == (135,) and targets.dtype == np.int64 and set(targets.tolist()) == set(range(10))
    assert floats.dtype == np.float32 and np.array_equal(floats, images.to_float32(inputs))
    assert np.array_equal(targets, labels)


def test_whatever_changes_the_images_changes_the_folder(tmp_path):
    base = image_config("cifar10_synthetic", tmp_path)
    narrow = image_config("imagenet_synthetic", tmp_path, size=3)
    narrow.model = dataclasses.replace(narrow.model, input_shape=[5, 3, 1])
    changes = [{"dtype": "float32"}, {"classes": 9}, {"size": 99}, {"seed": 1}, {"side": 9}]
    others = [narrow, *(image_config("cifar10_synthetic", tmp_path, **change) for change in changes)]
    folders = {synthetic.define_images(config).ensure(tmp_path) for config in (base, *others)}
    assert len(folders) == 1 + len(others)
    assert cache.open_arrays(synthetic.define_images(narrow).ensure(tmp_path))[0].shape == (3, 5, 3, 1)


def test_the_class_is_in_the_color_and_the_rest_is_noise(tmp_path):
    inputs, targets = make_images(tmp_path, side=32, size=1000)
    colors = inputs.reshape(1000, -1, 3).mean(1)
    centers = np.stack([colors[:500][targets[:500] == c].mean(0) for c in range(10)])
    nearest = np.linalg.norm(colors[500:, None] - centers, axis=2).argmin(1)
    assert (nearest == targets[500:]).mean() > 0.99
    # Uniform in 0 .. 127 around the color of its class, and neighbors are independent.
    noise = inputs - colors[:, None, None]
    assert noise.std() == pytest.approx(128 / np.sqrt(12), rel=0.01)
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 10 and abs((noise[:, :, 1:] * noise[:, :, :-1]).mean()) < 10


def test_tokens_and_their_successors(tmp_path):
    """Each target is the next token, which is one of a few, equally likely: the loss of a perfect model is log 4 at
    most, and a little less since two of the four may be the same."""
    inputs, targets = make_tokens(tmp_path)
    assert inputs.shape == targets.shape == (300, 20)
    assert (inputs.dtype, targets.dtype) == (np.dtype("int32"), np.dtype("int64"))
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert set(np.unique(inputs)) == set(range(50)) and targets.min() >= 0 and targets.max() < 50
    inputs, targets = make_tokens(tmp_path, size=6000, classes=16)
    counts = np.zeros((16, 16))
    np.add.at(counts, (inputs, targets), 1)
    assert (counts > 0).sum(1).mean() > 1 and (counts > 0).sum(1).max() <= synthetic.SUCCESSORS
    shares = counts / counts.sum(1, keepdims=True)
    quarters = shares[shares > 0] * synthetic.SUCCESSORS
    np.testing.assert_allclose(quarters, np.round(quarters), atol=0.2)
    entropy = -(counts * np.log(np.where(shares > 0, shares, 1))).sum() / counts.sum()
    assert 1.0 < entropy <= np.log(synthetic.SUCCESSORS)


def test_sizes_of_token_datasets(tmp_path):
    for size, length, classes in ((3, 1, 2), (1, 9, 20), (64, 9, 20), (65, 9, 20)):
        inputs, targets = make_tokens(tmp_path, size=size, length=length, classes=classes)
        assert inputs.shape == targets.shape == (size, length) and inputs.max() < classes


@pytest.fixture(scope="module")
def chunk():
    return generate_curves(7, 0, CHUNK)


def test_the_series_of_a_seed_stays_what_it_was():
    """Another series needs another materials.VERSION, or old caches pass for the new data."""
    curves, labels = generate_curves(0, 0, 1)
    assert materials.VERSION == 1
    np.testing.assert_allclose(labels[0], [0.8506242, 0.6369616], rtol=1e-5)
    points = [0.002076634, 0.01750836, 0.1038317, 0.4443559, 0.2055867, 0.590111]
    np.testing.assert_allclose(curves[0, [1, 50, 99], :2].ravel(), points, rtol=1e-4)


def test_curves_are_distributed_as_they_should(chunk):
    curves, labels = chunk
    assert curves.shape == (CHUNK, 200, 3) and labels.shape == (CHUNK, 2)
    assert curves.dtype == labels.dtype == np.float32
    assert np.isfinite(curves).all()
    assert labels.min() >= 0 and labels.max() <= 1
    # Uniform: the mean of 4096 draws lies within 5 standard errors of one half.
    assert np.abs(labels.mean(axis=0) - 0.5).max() < 5 * np.sqrt(1 / 12 / CHUNK)
    assert abs(np.corrcoef(labels.T)[0, 1]) < 0.08
    log_max = np.log10(chunk[0][:, :, 0].max(axis=1) * 1e-2)
    assert log_max.min() >= -2.5001 and log_max.max() <= -1.9999
    quarters = np.histogram(log_max, bins=4, range=(-2.5, -2.0))[0]
    assert abs(quarters / CHUNK - 0.25).max() < 0.04


def test_points_are_even_and_the_rest_is_padding(chunk):
    curves, _ = chunk
    strain, stress, flag = np.moveaxis(curves, 2, 0)
    points = flag.sum(axis=1).astype(int)
    assert points.min() == 100 and points.max() == 200
    assert np.array_equal(flag, np.arange(200) < points[:, None])
    assert not strain[flag == 0].any() and not stress[flag == 0].any()
    assert not strain[:, 0].any() and not stress[:, 0].any()
    for curve, count in zip(strain[:50], points[:50], strict=True):
        np.testing.assert_allclose(curve[:count], np.linspace(0, curve[count - 1], count), rtol=1e-5)


def test_stress_is_the_modified_hyperbolic_model_with_one_per_cent_noise(chunk):
    curves, labels = chunk[0].astype(np.float64), chunk[1].astype(np.float64)
    g0_mpa, a = 20 + 180 * labels[:, :1], 0.6 + 0.6 * labels[:, 1:]
    gamma = curves[:, :, 0] * 1e-2
    tau = g0_mpa * gamma / (1 + (gamma / 1e-3) ** a)
    real = gamma > 0
    noise = curves[:, :, 1][real] * 0.2 / tau[real] - 1
    assert abs(noise.mean()) < 1e-4
    assert abs(noise.std() - 0.01) < 1e-4
    assert abs(noise[:-1] @ noise[1:]) / (noise @ noise) < 0.01  # each point has its own


@settings(max_examples=15)
@given(start=st.integers(0, 2 * CHUNK), count=st.integers(0, CHUNK + 50))
def test_a_curve_depends_on_its_index_only(start, count):
    curves, labels = generate_curves(3, start, count)
    assert len(curves) == len(labels) == count
    for index in {0, count - 1} if count else set():
        one_curve, one_label = generate_curves(3, start + index, 1)
        assert np.array_equal(curves[index], one_curve[0]) and np.array_equal(labels[index], one_label[0])
    for arguments in ((0, 0, -1), (0, -1, 1), (-1, 0, 1)):
        with pytest.raises(ValueError):
            generate_curves(*arguments)
