"""Generated data sets `imagenet_synthetic` and `cifar10_synthetic`: noise over a colour that tells the class."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config
from scalebench.workloads import images
from scalebench.workloads.recipe import Recipe

CHUNK = 64  # images that share one random stream; part of the data set's definition
VERSION = 1  # goes up when a seed gives other images than before


def recipe(config: Config) -> Recipe:
    """How `dataset.size` images of the model's input shape come into the cache."""
    dataset = config.dataset
    shape = tuple(config.model.input_shape)
    classes = dataset.classes or 1
    return Recipe(
        name=dataset.name,
        version=VERSION,
        samples=dataset.size,
        seed=dataset.seed,
        input_shape=shape,
        target_shape=(),
        chunk=CHUNK,
        make=partial(_make, dataset.seed, shape, classes, dataset.dtype),
        input_dtype=dataset.dtype,
        target_dtype=images.LABEL_DTYPE,
        details={"classes": classes},
    )


def _make(
    seed: int, shape: tuple[int, ...], classes: int, dtype: str, start: int, count: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """One chunk, or the beginning of it: images (count, height, width, channels) and their classes (count,).

    A value is half noise, uniform in 0 .. 127, and half the class's colour, from the same range: learnt
    within a few updates, and different in every pixel. Depends on the seed and the place, not on dataset.size.
    """
    height, width, channels = shape
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // CHUNK]))
    labels = rng.integers(0, classes, CHUNK)
    rows = width * channels
    words = -(-CHUNK * height * rows // 8)
    noise = rng.integers(0, 2**64, words, np.uint64).view(np.uint8)  # whole words: bytes alone take three times as long
    pixels = noise[: count * height * rows].reshape(count, height, rows)
    pixels >>= 1
    pixels += np.tile(_colours(seed, classes, channels)[labels[:count]], width)[:, None]
    return images.in_dtype(pixels.reshape(count, *shape), dtype), labels[:count]


def _colours(seed: int, classes: int, channels: int) -> NDArray[np.uint8]:
    """(classes, channels), 0 .. 127; a stream of their own, which no chunk has."""
    rng = np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(0,)))
    return rng.integers(0, 128, (classes, channels), np.uint8)
