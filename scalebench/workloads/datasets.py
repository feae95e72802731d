"""Dataset names -> arrays on disk -> the sources that ranks read. Layer 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from scalebench.spec import Config, InputError, RunSpec
from scalebench.suggest import no_such
from scalebench.workloads import cache, materials, user_file
from scalebench.workloads.recipe import Recipe
from scalebench.workloads.source import Source

RECIPES = {"materials": materials.recipe}


def cache_dir(config: Config) -> Path:
    """`dataset.cache`, else $SCALEBENCH_CACHE, else scalebench in the user's cache folder."""
    chosen = config.dataset.cache or os.environ.get("SCALEBENCH_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "scalebench"


def prepare(config: Config) -> Path:
    """The folder with this run's dataset, which is made or unpacked first where it is not there yet.

    Raises InputError for an unknown dataset, a user's file that does not fit, or a cache that is full.
    """
    where = cache_dir(config)
    if config.dataset.path is not None:
        shapes = tuple(config.model.input_shape), tuple(config.model.target_shape)
        return user_file.ensure(where, Path(config.dataset.path), *shapes)
    return _recipe(config).ensure(where)


def _recipe(config: Config) -> Recipe:
    name = config.dataset.name
    if name not in RECIPES:
        raise InputError(no_such("dataset", name, RECIPES))
    return RECIPES[name](config.dataset.size, config.dataset.seed)


def split(samples: int, validation_share: float) -> int:
    """How many of `samples` train; the rest, at the end, validates."""
    return samples - round(samples * validation_share)


def train_samples(config: Config, samples: int) -> int:
    return split(samples, config.dataset.validation_share)


def sources(spec: RunSpec, replica: int, replicas: int, kind: type[Source] = Source) -> tuple[Source, Source | None]:
    """This replica's (training, validation) batches; None without any sample to validate."""
    config = spec.config
    inputs, targets = cache.open_arrays(prepare(config))
    border = train_samples(config, len(inputs))
    common: dict[str, Any] = {
        "global_batch": spec.global_batch,
        "seed": config.seed,
        "replica": replica,
        "replicas": replicas,
    }
    feed = "host" if config.dataset.feed == "device" else config.dataset.feed  # the adapter places it
    train = kind(inputs, targets, feed=feed, last=border, **common)
    if len(inputs) - border < replicas:
        return train, None
    return train, Source(inputs, targets, first=border, **common)
