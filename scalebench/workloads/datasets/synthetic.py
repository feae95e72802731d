"""Generated datasets: `random`, `imagenet_synthetic`, `cifar10_synthetic` and `tokens_synthetic`.

Samples depend on dataset.seed and on their index only, not on dataset.size or on the number of processes. They are made
in chunks with one random stream each, so the chunk sizes are part of a dataset's definition.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.core.errors import InputError
from scalebench.core.spec import Config
from scalebench.workloads.datasets.cache import ChunkedDataset
from scalebench.workloads.datasets.images import LABEL_DTYPE, to_dtype
from scalebench.workloads.network import Shape

# Versions: raise one when a seed gives other samples than before.
RANDOM_VERSION = IMAGE_VERSION = TOKEN_VERSION = 1
RANDOM_CHUNK_VALUES = 2**20  # about as many numbers share one random stream
IMAGE_CHUNK = 64
TOKEN_CHUNK = 64
TOKENS = "tokens_synthetic"
TOKEN_DTYPE = "int32"
SUCCESSORS = 4  # of each token, equally likely: a perfect model has a loss of log 4 = 1.386


def define_random(config: Config) -> ChunkedDataset:
    """Return the dataset `random`: standard normal samples of the model's shapes, with nothing to learn in them."""
    shapes = tuple(config.model.input_shape), tuple(config.model.target_shape)
    chunk = max(1, RANDOM_CHUNK_VALUES // math.prod(shapes[0]))
    make = partial(_make_random, config.dataset.seed, shapes, chunk)
    return ChunkedDataset(config.dataset, RANDOM_VERSION, *shapes, chunk, make)


def _make_random(
    seed: int, shapes: tuple[Shape, Shape], chunk: int, start: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Make inputs from the standard normal distribution and targets uniform in [0, 1)."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // chunk]))
    targets = rng.random((chunk, *shapes[1]), np.float32)
    return rng.standard_normal((count, *shapes[0]), np.float32), targets[:count]


def define_images(config: Config) -> ChunkedDataset:
    """Return the dataset of images of the model's input shape: noise over a color that depends on the class."""
    dataset, shape, classes = config.dataset, tuple(config.model.input_shape), config.dataset.classes or 1
    make = partial(_make_images, dataset.seed, shape, classes, dataset.dtype)
    types, details = (dataset.dtype, LABEL_DTYPE), {"classes": classes}
    return ChunkedDataset(dataset, IMAGE_VERSION, shape, (), IMAGE_CHUNK, make, *types, details)


def _make_images(
    seed: int, shape: Shape, classes: int, dtype: str, start: int, count: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Make a chunk, or the beginning of one: images (count, height, width, channels) and their classes (count,).

    A value is the sum of noise, uniform in 0 .. 127, and of the class's color from the same range: it can be learned
    within a few steps, and every pixel is different.
    """
    height, width, channels = shape
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // IMAGE_CHUNK]))
    labels = rng.integers(0, classes, IMAGE_CHUNK)
    row_bytes = width * channels
    words = -(-IMAGE_CHUNK * height * row_bytes // 8)
    noise = rng.integers(0, 2**64, words, np.uint64).view(np.uint8)  # drawing single bytes takes three times as long
    pixels = noise[: count * height * row_bytes].reshape(count, height, row_bytes)
    pixels >>= 1
    colors = _dataset_generator(seed).integers(0, 128, (classes, channels), np.uint8)
    pixels += np.tile(colors[labels[:count]], width)[:, None]
    return to_dtype(pixels.reshape(count, *shape), dtype), labels[:count]


def _dataset_generator(seed: int) -> np.random.Generator:
    """Return the generator of what all chunks of a dataset share."""
    return np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(0,)))


def define_tokens(config: Config) -> ChunkedDataset:
    """Return the dataset of sequences of a random Markov chain; each token is followed by one of SUCCESSORS others."""
    shape, classes = tuple(config.model.input_shape), config.dataset.classes or 1
    make = partial(_make_tokens, config.dataset.seed, shape[0], classes)
    types, details = (TOKEN_DTYPE, LABEL_DTYPE), {"classes": classes}
    return ChunkedDataset(config.dataset, TOKEN_VERSION, shape, shape, TOKEN_CHUNK, make, *types, details)


def _make_tokens(
    seed: int, length: int, classes: int, start: int, count: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Make a chunk, or the beginning of one: tokens (count, length) and the token that follows each of them."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // TOKEN_CHUNK]))
    successors = _dataset_generator(seed).integers(0, classes, (classes, SUCCESSORS))
    chain = np.empty((TOKEN_CHUNK, length + 1), np.int64)
    chain[:, 0] = rng.integers(0, classes, TOKEN_CHUNK)
    choices = rng.integers(0, SUCCESSORS, (TOKEN_CHUNK, length))
    for position in range(length):
        chain[:, position + 1] = successors[chain[:, position], choices[:, position]]
    return chain[:count, :-1].astype(np.int32), chain[:count, 1:]


def make_token_dicts(
    size: int, seed: int, length: int = 64, vocabulary: int = 512, labels: str = "tokens"
) -> dict[str, NDArray[np.int64]]:
    """Make the samples of dataset=token_dicts: `size` sequences as Hugging Face's models take them.

    The labels are the tokens themselves, which models shift, or two classes by the first token. Raises InputError for
    another value of `labels`.
    """
    if labels not in ("tokens", "classes"):
        raise InputError(f"dataset.options.labels={labels} should be tokens or classes")
    chunks = [_make_tokens(seed, length, vocabulary, start, TOKEN_CHUNK)[0] for start in range(0, size, TOKEN_CHUNK)]
    tokens = np.concatenate(chunks)[:size].astype(np.int64)
    classes = (tokens[:, 0] >= vocabulary // 2).astype(np.int64)
    return {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "labels": tokens if labels == "tokens" else classes,
    }
