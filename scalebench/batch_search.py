"""In which order batches are tried in the search for the largest that fits, and how many may be. Layer 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalebench.spec import Config
from scalebench.workloads import datasets
from scalebench.workloads.datasets import cache

FINENESS = 16  # the answer is known to this part of itself, and exactly below this


def largest(start: int, most: int, least: int, fits: Callable[[int], bool]) -> int | None:
    """The largest batch from `least` to `most` that fits, to 1/16 of itself; None where not even `least` does.

    From `start` on doubled while it fits, or halved while it does not, and then the middle of what is left. What does
    not fit is taken to fit at no larger batch either.
    """
    low, high, batch = None, None, max(least, min(start, most))
    while True:
        if fits(batch):
            low = batch
        else:
            high = batch
        following = _next(low, high, least, most)
        if following is None:
            return low
        batch = following


def _next(low: int | None, high: int | None, least: int, most: int) -> int | None:
    """What to try where `low` fits and `high` does not; None where that is enough."""
    if high is None:
        assert low is not None  # one of them is known
        return None if low >= most else min(2 * low, most)
    if low is None:
        return None if high <= least else max(high // 2, least)
    return None if high - low <= max(1, low // FINENESS) else (low + high) // 2


def tries(config: Config, gpus: int) -> tuple[int, int]:
    """(fewest, most) launches of a search, for estimates: a data set read from files is not looked at."""
    start = config.train.batch_per_device
    most = start if config.dataset.path is not None else max(start, _most(config.dataset.size, config, gpus))
    up = max(1, (most - 1) // start + 1).bit_length()
    bisecting = min(FINENESS.bit_length(), most.bit_length())
    return 1, max(up, start.bit_length()) + bisecting


def most_samples(config: Config, gpus: int) -> int:
    """Of one device in the largest batch that the training samples give."""
    size = config.dataset.size
    if config.dataset.path is not None:
        folder: Path = datasets.prepare(config)
        size = len(cache.open_arrays(folder)[0])
    return _most(size, config, gpus)


def _most(size: int, config: Config, gpus: int) -> int:
    return datasets.count_train_samples(config.dataset, size) // gpus
