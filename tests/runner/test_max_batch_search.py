"""The order in which batches are tried."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.spec import Config, DatasetSpec
from scalebench.runner.max_batch import RESOLUTION, estimate_try_counts, largest_batch, max_samples_per_device
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from tests.builders.runs import simulated_config


def search(start: int, border: int, maximum: int, minimum: int = 1) -> tuple[int | None, list[int]]:
    """Return (answer, tried batches) where `border` is the largest that fits."""
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= border

    return largest_batch(start, maximum, minimum, fits), tried


@pytest.mark.parametrize(
    ("start", "border", "maximum", "answer", "order"),
    [
        (75, 700, 5000, 675, [75, 150, 300, 600, 1200, 900, 750, 675, 712]),
        (8, 11, 100, 11, [8, 16, 12, 10, 11]),
        (75, 3, 100, 3, [75, 37, 18, 9, 4, 2, 3]),
        (75, 0, 100, None, [75, 37, 18, 9, 4, 2, 1]),
        (75, 1000, 300, 300, [75, 150, 300]),
        (75, 1000, 200, 200, [75, 150, 200]),
        (75, 1000, 40, 40, [40]),
        (1, 1, 1, 1, [1]),
    ],
)
def test_batches_are_doubled_then_bisected(
    start: int, border: int, maximum: int, answer: int | None, order: list[int]
) -> None:
    assert search(start, border, maximum) == (answer, order)


@given(st.integers(1, 10_000), st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 4))
def test_the_answer_is_within_a_sixteenth_and_no_batch_is_tried_twice(
    start: int, border: int, maximum: int, minimum: int
) -> None:
    maximum = max(maximum, minimum)
    answer, tried = search(start, border, maximum, minimum)
    assert len(tried) == len(set(tried)) and all(minimum <= batch <= maximum for batch in tried)
    if border < minimum:
        assert answer is None
        return
    best = min(border, maximum)
    assert answer is not None and answer <= best < answer + max(1, answer // RESOLUTION)
    assert answer == best or best >= RESOLUTION
    assert answer in tried


@given(st.integers(1, 500), st.integers(0, 2000))
def test_a_search_takes_as_many_tries_as_estimated(start: int, border: int) -> None:
    config = config_of_size(2000, start)
    fewest, maximum = estimate_try_counts(config, 2)
    assert fewest <= len(search(start, border, max_samples_per_device(config, 2))[1]) <= maximum


def config_of_size(size: int, batch: int = 10) -> Config:
    config = simulated_config(size=size)
    config.dataset.validation_share = 0.25
    return dataclasses.replace(config, train=dataclasses.replace(config.train, batch_per_device=batch))


@pytest.mark.parametrize(("gpus", "maximum"), [(1, 75), (2, 37), (4, 18)])
def test_the_training_samples_bound_the_batch(gpus: int, maximum: int) -> None:
    assert max_samples_per_device(config_of_size(100), gpus) == maximum


def test_samples_of_user_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "prepare", lambda config: "folder")
    monkeypatch.setattr(cache, "open_arrays", lambda folder: ([0] * 40, [0] * 40))
    config = config_of_size(1000)
    config.dataset = DatasetSpec("materials", size=1000, path="own.npz", validation_share=0.25)
    assert max_samples_per_device(config, 3) == 10
    assert estimate_try_counts(config, 3)[1] < 20, "without reading the file"
