"""Generated datasets: the same samples for any number of processes, and (except in `random`) something to learn.
The materials curves: the formula, the padding, the ranges, and that a curve depends on seed and index only."""

import dataclasses
import zlib

import numpy as np
import pytest

from scalebench.core.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, materials, synthetic
from scalebench.workloads.datasets.materials import CHUNK, make_curves
from tests.builders.configs import image_config


def make_random(folder, size=500, seed=0, shape=(300_000,), targets=(1,)):
    model = ModelSpec("mlp", input_shape=list(shape), target_shape=list(targets))
    config = Config(model=model, dataset=DatasetSpec("random", size=size, seed=seed))
    return cache.open_arrays(synthetic.define_random(config).ensure(folder))


def make_images(folder, side=8, size=135, **changes):
    config = image_config("cifar10_synthetic", folder, side, **{"size": size, **changes})
    return cache.open_arrays(synthetic.define_images(config).ensure(folder))


def make_tokens(folder, size=300, seed=0, length=20, classes=50):
    model = ModelSpec("gpt_small", input_shape=[length], target_shape=[length])
    dataset = DatasetSpec(synthetic.TOKENS, size=size, seed=seed, classes=classes, dtype="int32")
    return cache.open_arrays(synthetic.define_tokens(Config(model=model, dataset=dataset)).ensure(folder))


@pytest.mark.parametrize(("make", "size", "few", "chunk"), [
    (make_random, 7, 5, 3),
    (make_images, 135, 70, synthetic.IMAGE_CHUNK),
    (make_tokens, 300, 70, synthetic.TOKEN_CHUNK),
])  # fmt: skip
def test_samples_depend_on_seed_and_index_only(tmp_path, make, size, few, chunk):
    one, two = make(tmp_path / "1", size=size), make(tmp_path / "2", size=size)
    fewer = make(tmp_path, size=few)
    for a, b, c in zip(one, two, fewer, strict=True):
        assert len(a) == size and np.array_equal(a, b) and np.array_equal(a[:few], c)
    assert not np.array_equal(one[0][:chunk], one[0][chunk : 2 * chunk])
    assert not np.array_equal(one[0], make(tmp_path, size=size, seed=1)[0])


def test_whatever_changes_the_images_changes_the_folder(tmp_path):
    """Floats are those of the bytes."""
    base = image_config("cifar10_synthetic", tmp_path)
    narrow = image_config("imagenet_synthetic", tmp_path, size=3)
    narrow.model = dataclasses.replace(narrow.model, input_shape=[5, 3, 1])
    changes = [{"dtype": "float32"}, {"classes": 9}, {"size": 99}, {"seed": 1}, {"side": 9}]
    others = [narrow, *(image_config("cifar10_synthetic", tmp_path, **change) for change in changes)]
    folders = {synthetic.define_images(config).ensure(tmp_path) for config in (base, *others)}
    assert len(folders) == 1 + len(others)
    assert cache.open_arrays(synthetic.define_images(narrow).ensure(tmp_path))[0].shape == (3, 5, 3, 1)
    floats, pixels = (make_images(tmp_path, dtype=dtype)[0] for dtype in ("float32", "uint8"))
    assert floats.dtype == np.float32 and np.array_equal(floats, pixels / np.float32(127.5) - 1)


@pytest.fixture(scope="module")
def chunk():
    return make_curves(7, 0, CHUNK)


# Digests of the inputs and targets of a seed, and their means. https://numpy.org/neps/nep-0019-rng-policy.html lets
# numpy change a stream; then the digests may change, too.
SERIES = {
    "random": (make_random, {"shape": (64,)}, "float32 float32", "02221fcc", "520d87e6", 0.0, 0.5),
    "images": (make_images, {}, "uint8 int64", "2f82763a", "abf34ce4", 63.5 + 63.5, 4.5),
    "tokens": (make_tokens, {}, "int32 int64", "e2f94e47", "18cfd6dc", 24.5, 24.5),
}  # fmt: skip


@pytest.mark.parametrize("name", SERIES)
def test_the_samples_of_a_seed_stay_what_they_were(tmp_path, name):
    """Others need another version, or old caches pass for the new data."""
    make, changes, dtypes, *expected = SERIES[name]
    arrays = make(tmp_path, **changes)
    assert " ".join(str(array.dtype) for array in arrays) == dtypes
    assert [f"{zlib.crc32(array.tobytes()):08x}" for array in arrays] == expected[:2]
    assert [float(array.mean()) for array in arrays] == pytest.approx(expected[2:], rel=0.1, abs=0.01)
    assert (synthetic.RANDOM_VERSION, synthetic.IMAGE_VERSION, synthetic.TOKEN_VERSION) == (1, 1, 1)


def test_the_curves_of_a_seed_stay_what_they_were(chunk):
    """In their last digits they depend on the processor, as far as those of exp do."""
    curves, labels = chunk
    assert materials.VERSION == 1 and curves.dtype == labels.dtype == np.float32
    flag = curves[:, :, 2]
    assert set(np.unique(flag)) == {0.0, 1.0} and not curves[flag == 0].any() and (np.diff(flag, axis=1) <= 0).all()
    points = flag.sum(axis=1)
    assert (points.min(), points.max()) == (100, 200)
    np.testing.assert_allclose(curves.mean((0, 1), float), [0.22344098, 0.30221805, 0.75147461], rtol=1e-5)
    np.testing.assert_allclose(curves.std((0, 1), float), [0.22053951, 0.28628602, 0.43215798], rtol=1e-5)
    np.testing.assert_allclose(labels.mean(0, float), [0.50257435, 0.49988598], rtol=1e-6)
    for start in (0, CHUNK):  # a part of a chunk is its beginning, and each chunk is another one
        few, whole = make_curves(7, start, 3), make_curves(7, start, CHUNK)
        for part, array, first in zip(few, whole, chunk, strict=True):
            assert np.array_equal(part, array[:3]) and np.array_equal(array, first) == (start == 0)
    curves, labels = make_curves(0, 0, 1)
    np.testing.assert_allclose(labels[0], [0.8506242, 0.6369616], rtol=1e-5)
    np.testing.assert_allclose(make_curves(0, CHUNK, 1)[1], [[0.5221571, 0.88973874]], rtol=1e-5)
    points = [0.002076634, 0.01750836, 0.1038317, 0.4443559, 0.2055867, 0.590111]
    np.testing.assert_allclose(curves[0, [1, 50, 99], :2].ravel(), points, rtol=1e-4)


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
