"""In which order batches are tried."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.spec import Config, DatasetSpec
from scalebench.runner.max_batch import FINENESS, largest_batch, max_samples, try_counts
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache
from tests.builders.runs import simulated_config


def search(start: int, border: int, most: int, least: int = 1) -> tuple[int | None, list[int]]:
    """(answer, what was tried) where `border` is the largest that fits."""
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= border

    return largest_batch(start, most, least, fits), tried


@pytest.mark.parametrize(
    ("start", "border", "most", "answer", "order"),
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
def test_the_order(start: int, border: int, most: int, answer: int | None, order: list[int]) -> None:
    assert search(start, border, most) == (answer, order)


@given(st.integers(1, 10_000), st.integers(0, 20_000), st.integers(1, 20_000), st.integers(1, 4))
def test_it_ends_within_a_sixteenth_below_the_border_and_tries_nothing_twice(
    start: int, border: int, most: int, least: int
) -> None:
    most = max(most, least)
    answer, tried = search(start, border, most, least)
    assert len(tried) == len(set(tried)) and all(least <= batch <= most for batch in tried)
    if border < least:
        assert answer is None
        return
    best = min(border, most)
    assert answer is not None and answer <= best < answer + max(1, answer // FINENESS)
    assert answer == best or best >= FINENESS
    assert answer in tried


@given(st.integers(1, 500), st.integers(0, 2000))
def test_a_search_takes_no_more_tries_than_were_estimated(start: int, border: int) -> None:
    config = sized(2000, start)
    fewest, most = try_counts(config, 2)
    assert fewest <= len(search(start, border, max_samples(config, 2))[1]) <= most


def sized(size: int, batch: int = 10) -> Config:
    config = simulated_config(size=size)
    config.dataset.validation_share = 0.25
    return dataclasses.replace(config, train=dataclasses.replace(config.train, batch_per_device=batch))


@pytest.mark.parametrize(("gpus", "most"), [(1, 75), (2, 37), (4, 18)])
def test_the_largest_batch_that_the_training_samples_give(gpus: int, most: int) -> None:
    assert max_samples(sized(100), gpus) == most


def test_of_own_files_the_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "prepare", lambda config: "folder")
    monkeypatch.setattr(cache, "open_arrays", lambda folder: ([0] * 40, [0] * 40))
    config = sized(1000)
    config.dataset = DatasetSpec("materials", size=1000, path="own.npz", validation_share=0.25)
    assert max_samples(config, 3) == 10
    assert try_counts(config, 3)[1] < 20, "without a look at the file"
