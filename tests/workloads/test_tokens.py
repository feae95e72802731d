"""Generated tokens: who follows whom, and the same whoever makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scalebench.spec import Config, DatasetSpec, ModelSpec
from scalebench.workloads.datasets import cache, synthetic


def made(
    folder: Path, size: int = 300, length: int = 20, classes: int = 50, seed: int = 0, workers: int = 1
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    config = Config(
        model=ModelSpec("gpt_small", input_shape=[length], target_shape=[length]),
        dataset=DatasetSpec(synthetic.TOKENS, size=size, seed=seed, classes=classes, dtype="int32"),
    )
    return cache.open_arrays(synthetic.define_tokens(config).ensure(folder, workers))


def test_each_target_is_the_next_token(tmp_path: Path) -> None:
    inputs, targets = made(tmp_path)
    assert inputs.shape == targets.shape == (300, 20)
    assert (inputs.dtype, targets.dtype) == (np.dtype("int32"), np.dtype("int64"))
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert set(np.unique(inputs)) == set(range(50)) and targets.min() >= 0 and targets.max() < 50


def test_each_token_has_a_few_followers_equally_likely(tmp_path: Path) -> None:
    """What is left to foresee is log 4 at the most, and a little less since two of the four may be the same."""
    inputs, targets = made(tmp_path, size=6000, classes=16)
    counts = np.zeros((16, 16))
    np.add.at(counts, (inputs, targets), 1)
    assert 1 < (counts > 0).sum(1).mean() <= synthetic.SUCCESSORS and (counts > 0).sum(1).max() <= synthetic.SUCCESSORS
    shares = counts / counts.sum(1, keepdims=True)
    quarters = shares[shares > 0] * synthetic.SUCCESSORS
    np.testing.assert_allclose(quarters, np.round(quarters), atol=0.2)
    entropy = -(counts * np.log(np.where(shares > 0, shares, 1))).sum() / counts.sum()
    assert 1.0 < entropy <= np.log(synthetic.SUCCESSORS)


def test_the_same_for_any_number_of_processes_and_samples(tmp_path: Path) -> None:
    one, two = made(tmp_path / "1"), made(tmp_path / "2", workers=2)
    few = made(tmp_path / "1", size=70)
    for a, b, c in zip(one, two, few, strict=True):
        assert np.array_equal(a, b) and np.array_equal(a[:70], c)
    assert not np.array_equal(one[0][:64], one[0][64:128])


def test_seeds_numbers_of_tokens_and_lengths_differ(tmp_path: Path) -> None:
    first = made(tmp_path)[0]
    assert not np.array_equal(first, made(tmp_path, seed=1)[0])
    assert made(tmp_path, classes=20)[0].max() == 19
    assert made(tmp_path, length=9)[0].shape == (300, 9)


def test_runs_on_a_sequence_of_one(tmp_path: Path) -> None:
    inputs, targets = made(tmp_path, size=3, length=1, classes=2)
    assert inputs.shape == targets.shape == (3, 1)


@pytest.mark.parametrize("size", [1, 64, 65])
def test_sizes_around_a_chunk(tmp_path: Path, size: int) -> None:
    assert len(made(tmp_path, size=size)[0]) == size
