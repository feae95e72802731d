"""Random samples: any shape, the same whoever makes them."""

import math
from pathlib import Path

import numpy as np
import pytest

from scalebench.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, synthetic


def made(cache_dir: Path, shape=(6,), targets=(1,), size=500, seed=0, workers=1):
    config = Config(
        model=ModelSpec("mlp", input_shape=list(shape), target_shape=list(targets)),
        dataset=DatasetSpec("random", size=size, seed=seed),
    )
    return cache.open_arrays(synthetic.define_random(config).ensure(cache_dir, workers))


@pytest.mark.parametrize(("shape", "targets"), [((6,), (1,)), ((4, 5, 3), (2, 2))])
def test_shapes_and_types(tmp_path, shape, targets):
    arrays = made(tmp_path, shape, targets)
    assert [array.shape for array in arrays] == [(500, *shape), (500, *targets)]
    assert {array.dtype for array in arrays} == {np.dtype("float32")}


def test_distributions(tmp_path):
    inputs, targets = made(tmp_path, (64,), size=2000)
    assert inputs.mean() == pytest.approx(0, abs=0.02) and inputs.std() == pytest.approx(1, rel=0.02)
    assert targets.min() >= 0 and targets.max() < 1 and targets.mean() == pytest.approx(0.5, abs=0.03)


def test_the_same_for_any_number_of_processes_and_samples(tmp_path, monkeypatch):
    one, two = made(tmp_path / "1", (300_000,), size=7), made(tmp_path / "2", (300_000,), size=7, workers=2)
    few = made(tmp_path / "1", (300_000,), size=5)  # 3 samples to a chunk
    for a, b, c in zip(one, two, few, strict=True):
        assert np.array_equal(a, b) and np.array_equal(a[:5], c)
    assert not np.array_equal(one[0][:3], one[0][3:6])


def test_seeds_differ(tmp_path):
    assert not np.array_equal(made(tmp_path)[0], made(tmp_path, seed=1)[0])


@pytest.mark.parametrize("shape", [(1,), (2**20 + 1,), (200, 3)])
def test_chunks_are_of_bounded_size(shape):
    config = Config(model=ModelSpec("m", input_shape=list(shape), target_shape=[1]), dataset=DatasetSpec("random"))
    chunk = synthetic.define_random(config).chunk
    assert chunk >= 1 and (chunk == 1 or chunk * math.prod(shape) <= synthetic.RANDOM_CHUNK_VALUES)
