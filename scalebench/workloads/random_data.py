"""The data set `random`: standard normal samples of whatever shape the model takes, with nothing to learn in them."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config
from scalebench.workloads.recipe import Recipe

CHUNK_VALUES = 2**20  # about as many share one random stream; part of the data set's definition
VERSION = 1  # goes up when a seed gives other samples than before
Shape = tuple[int, ...]


def recipe(config: Config) -> Recipe:
    """How `dataset.size` samples of the model's shapes come into the cache."""
    shapes = tuple(config.model.input_shape), tuple(config.model.target_shape)
    chunk = max(1, CHUNK_VALUES // math.prod(shapes[0]))
    return Recipe(
        name="random",
        version=VERSION,
        samples=config.dataset.size,
        seed=config.dataset.seed,
        input_shape=shapes[0],
        target_shape=shapes[1],
        chunk=chunk,
        make=partial(_make, config.dataset.seed, shapes, chunk),
    )


def _make(
    seed: int, shapes: tuple[Shape, Shape], chunk: int, start: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Inputs from the standard normal distribution, targets uniform in [0, 1); independent of dataset.size."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // chunk]))
    targets = rng.random((chunk, *shapes[1]), np.float32)
    return rng.standard_normal((count, *shapes[0]), np.float32), targets[:count]
