"""Samples from a function, of a user or of a plugin: made once by a process of their own, then read from the cache.

Layer 1. The function is called with size, seed and its options; whatever it imports, prints or breaks stays there.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scalebench import plugins
from scalebench.plugins import PluginError
from scalebench.spec import Config, DatasetSpec, InputError
from scalebench.workloads import building, cache, own_code
from scalebench.workloads.kinds import Samples

CUSTOM = "custom"  # the name in the YAML of a data set without one
VERSION = 1  # goes up when the same function gives other files than before


class Builder(NamedTuple):
    """The function of a data set."""

    target: str  # "module:function"
    what: str  # as messages name it
    key: str | None = None  # of the config that says it; None: a plugin does
    version: str = ""  # of the plugin


def is_built(dataset: DatasetSpec) -> bool:
    """Whether a function of a user or of a plugin makes it."""
    return dataset.builder is not None or any(point.name == dataset.name for point in plugins.points("datasets"))


def names() -> list[str]:
    """Data sets that plugins add."""
    return [point.name for point in plugins.points("datasets")]


def builder(dataset: DatasetSpec) -> Builder:
    """Of a data set that is built. InputError for two at once."""
    point = next((point for point in plugins.points("datasets") if point.name == dataset.name), None)
    if point is None:
        assert dataset.builder is not None  # is_built has seen to it
        return Builder(dataset.builder, f"dataset.builder={dataset.builder}", "dataset.builder")
    if dataset.builder is not None:
        raise InputError(f"dataset={dataset.name} is made already: dataset.builder goes with dataset={CUSTOM}")
    return Builder(point.target, f"data set '{point.name}' of {point.origin}", version=point.version)


def filled(config: Config, cache_dir: Path) -> Config:
    """With what the samples say, which are made where they are not there yet: how many they are, dtype and classes.

    A network of ours for pictures takes them at the size that they have. InputError for settings that do not go with
    them, PluginError where the function fails.
    """
    dataset, model = named(config.dataset), config.model
    asked = dataset.asked or dataset.size
    found = facts(ensure(dataset, config.measure.timeout_s, cache_dir))
    classes = _classes(dataset, found)
    dataset = dataclasses.replace(
        dataset,
        size=found.samples,
        asked=None if asked == found.samples else asked,
        dtype=found.dtype,
        classes=classes,
    )
    shape = list(found.input_shape)
    if len(shape) == len(model.input_shape) == 3 and shape != model.input_shape:
        model = dataclasses.replace(model, input_shape=shape, params=None)
    return dataclasses.replace(config, dataset=dataset, model=model)


def named(dataset: DatasetSpec) -> DatasetSpec:
    """With the digest of the function's file. InputError for what only other data sets have."""
    if dataset.path is not None:
        raise InputError(f"dataset={dataset.name} is made by a function, not read: leave out dataset.path")
    if dataset.image_size is not None:
        raise InputError(f"dataset={dataset.name} has samples as its function makes them: leave out dataset.image_size")
    function = builder(dataset)
    try:
        code = own_code.digest(function.target, function.key or function.what)
    except InputError:
        if dataset.name == CUSTOM:
            raise
        code = None  # the process that loads it for its samples says what is wrong, with where
    return dataclasses.replace(dataset, code=code)


def samples(config: Config, cache_dir: Path) -> Samples:
    """What those of a filled config are like."""
    found = facts(ensure(config.dataset, config.measure.timeout_s, cache_dir))
    return Samples(found.input_shape, found.target_shape, config.dataset.classes)


_failed: dict[Path, PluginError] = {}  # of this process: the runs of a sweep need not each wait for the same fault


def ensure(dataset: DatasetSpec, limit_s: float, cache_dir: Path) -> Path:
    """Folder with the samples, which are made within `limit_s` where they are not there yet. Errors as filled, and
    InputError for a cache that is full."""
    function, asked = builder(dataset), dataset.asked or dataset.size
    identity = {
        "format": VERSION,
        "function": function.target,
        "code": dataset.code,
        "version": function.version,
        "size": asked,
        "seed": dataset.seed,
        "options": dataset.options,
    }
    name = re.sub(r"\W", "_", dataset.name)
    folder = cache_dir.absolute() / f"{name}-{cache.fingerprint(name, identity)}"
    if folder in _failed:
        raise _failed[folder]
    request = building.Request(
        function.target, function.what, function.key is not None, asked, dataset.seed, dataset.options
    )
    write: Callable[[Path], None] = functools.partial(building.build, request, limit_s)
    try:
        return cache.ensure(cache_dir, name, identity, 0, write)  # how many bytes they are, only they can tell
    except PluginError as error:
        _failed[folder] = error
        raise


class Facts(NamedTuple):
    """Of samples in the cache."""

    samples: int
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    dtype: str
    top: int | None  # the highest number of a class; None: quantities


@functools.lru_cache(maxsize=64)  # a whole folder of the cache never changes
def facts(folder: Path) -> Facts:
    inputs, targets = cache.open_arrays(folder)
    top = int(targets.max()) if np.issubdtype(targets.dtype, np.integer) else None
    return Facts(len(inputs), inputs.shape[1:], targets.shape[1:], str(inputs.dtype), top)


def _classes(dataset: DatasetSpec, found: Facts) -> int | None:
    if found.top is None and dataset.classes is not None:
        raise InputError(f"dataset={dataset.name} has quantities as targets: leave out dataset.classes")
    if found.top is None:
        return None
    least: Any = max(2, found.top + 1)  # with one, there is nothing to tell apart
    if dataset.classes is not None and dataset.classes < least:
        raise InputError(
            f"dataset.classes={dataset.classes}, and dataset={dataset.name} has class {found.top}: raise it"
        )
    return int(dataset.classes or least)
