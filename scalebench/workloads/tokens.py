"""The data set `tokens_synthetic`: sequences of a random Markov chain, each token followed by one of a few others."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from scalebench.spec import Config, InputError
from scalebench.workloads import networks, own_model
from scalebench.workloads.images import LABEL_DTYPE
from scalebench.workloads.recipe import Recipe

NAME = "tokens_synthetic"
DTYPE = "int32"
CHUNK = 64  # sequences that share one random stream; part of the data set's definition
SUCCESSORS = 4  # of each token, equally likely: a loss of log 4 = 1.386 is left to who knows them all
VERSION = 1  # goes up when a seed gives other samples than before


def recipe(config: Config) -> Recipe:
    """How `dataset.size` sequences of the model's length come into the cache."""
    dataset, classes = config.dataset, config.dataset.classes or 1
    (length,) = config.model.input_shape
    return Recipe(
        name=NAME,
        version=VERSION,
        samples=dataset.size,
        seed=dataset.seed,
        input_shape=(length,),
        target_shape=(length,),
        chunk=CHUNK,
        make=partial(_make, dataset.seed, length, classes),
        input_dtype=DTYPE,
        target_dtype=LABEL_DTYPE,
        details={"classes": classes},
    )


def check(config: Config) -> None:
    """InputError unless the model takes tokens and gives logits for as many as the data set has."""
    dataset, model = config.dataset, config.model
    if own_model.is_own(model) or not networks.takes_tokens(model):
        raise InputError(
            f"dataset={NAME} has token numbers, which model={model.name} does not look up: choose another dataset, or "
            "model=gpt_small"
        )
    if dataset.classes is None or dataset.dtype != DTYPE:
        raise InputError(
            f"dataset={NAME} has a number of different tokens, which are {DTYPE}: set dataset.dtype={DTYPE} and "
            "dataset.classes"
        )
    if model.target_shape != model.input_shape:
        raise InputError(
            f"dataset={NAME} has a target for each of {model.input_shape} tokens, model={model.name} takes targets of "
            f"{tuple(model.target_shape)}"
        )
    if model.outputs < dataset.classes:
        raise InputError(
            f"dataset={NAME} has {dataset.classes} different tokens, model={model.name} has {model.outputs} outputs: "
            "lower dataset.classes, or raise model.outputs"
        )


def check_model(config: Config) -> None:
    """InputError where the model takes tokens: what comes is something else."""
    if not own_model.is_own(config.model) and networks.takes_tokens(config.model):
        raise InputError(
            f"model={config.model.name} takes token numbers, which dataset={config.dataset.name} has none of: choose "
            f"dataset={NAME}"
        )


def _make(seed: int, length: int, classes: int, start: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """One chunk, or the beginning of it: tokens (count, length) and the ones that follow each of them.

    Depends on the seed and the place, not on dataset.size.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, start // CHUNK]))
    followers = _followers(seed, classes)
    chain = np.empty((CHUNK, length + 1), np.int64)
    chain[:, 0] = rng.integers(0, classes, CHUNK)
    chosen = rng.integers(0, SUCCESSORS, (CHUNK, length))
    for place in range(length):
        chain[:, place + 1] = followers[chain[:, place], chosen[:, place]]
    return chain[:count, :-1].astype(np.int32), chain[:count, 1:]


def _followers(seed: int, classes: int) -> NDArray[np.int64]:
    """(classes, SUCCESSORS); a stream of their own, which no chunk has."""
    rng = np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(0,)))
    return rng.integers(0, classes, (classes, SUCCESSORS))
