"""`script=train.py`: what it stands for among overrides, and the config of a run that trains by a user's program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from scalebench.config.aliases import split_override
from scalebench.core.errors import InputError
from scalebench.core.spec import Config, DatasetSpec, ModelSpec, TrainSpec, has_stop
from scalebench.strategies.script.arguments import BATCH_PLACEHOLDERS, check_script, find_program, flatten_arguments

NAME = "script"  # of the strategy, and the group of keys
OWN_DATA = "its own data"
SHORT_KEYS = {"script": "script.path", "script.scaling": "scaling"}
PROGRAM_KEYS = ("script.path", "script.command")
BATCH_KEYS = ("train.batch_per_device", "train.global_batch")
OWN_GROUPS = ("model", "dataset", "train", "strategy")  # which a user's program has instead of the config
ALLOWED_KEYS = (*BATCH_KEYS, "strategy.launcher")


def expand_script(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with canonical keys for `script=train.py`, which also chooses the strategy.

    Raises InputError for a setting beside it that a program of the user's does not take.
    """
    expanded = [_rename(override) for override in overrides]
    keys = [split_override(override)[0] for override in expanded]
    named = [override for key, override in zip(keys, expanded, strict=True) if key in PROGRAM_KEYS]
    if not named:
        return expanded
    if set(PROGRAM_KEYS) <= set(keys):
        raise InputError("script.command names its program itself: leave out script")
    shown = named[0].replace("script.path=", "script=")
    for key, override in zip(keys, expanded, strict=True):
        is_own = key.partition(".")[0] in OWN_GROUPS and key not in ALLOWED_KEYS
        if is_own and split_override(override) != ("strategy", NAME):
            raise InputError(f"{shown} trains its own model and data, in its own way: leave out {override}")
    texts = [split_override(override)[1] for override in expanded]
    for key, text in zip(keys, texts, strict=True):
        used = [word for word in BATCH_PLACEHOLDERS if word in re.split(r"[\[\],=\s]", text)]
        if used and not set(BATCH_KEYS) & set(keys):
            raise InputError(f"{key}={used[0]} stands for train.batch_per_device, or train.global_batch: set one")
    return expanded if "strategy" in keys else [*expanded, f"strategy={NAME}"]


def _rename(override: str) -> str:
    key, value = split_override(override)
    return override if key not in SHORT_KEYS else f"{SHORT_KEYS[key]}={value}"


def split_fixed_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (arguments, those after a bare `--`), which are for the user's program."""
    words = list(arguments)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def has_script(config: Config) -> bool:
    """Return whether a program of the user's trains, rather than scalebench's own loop."""
    return config.script.path is not None or config.script.command is not None


def settle_script(config: Config) -> Config:
    """Return the config of a run without what a user's program has of its own: model, data and training. Raise
    InputError for what cannot be started."""
    if not has_script(config):
        if config.strategy.name == NAME:
            raise InputError(f"strategy={NAME} trains by a program of yours: name it with script=train.py")
        if config.script.fixed:
            raise InputError("what follows -- are arguments of a program of yours: name it with script=train.py")
        return config
    script, train = replace(config.script, args=flatten_arguments(config.script.args)), config.train
    if script.command is not None:
        script = replace(script, path=find_program(script))
        if config.strategy.launcher != "local":
            raise InputError(
                f"script.command starts the processes: leave out strategy.launcher={config.strategy.launcher}"
            )
    if config.strategy.name != NAME:
        raise InputError(f"script={script.path} is its own strategy: leave out strategy={config.strategy.name}")
    if has_stop(train.stop) or config.measure.search != "none":
        key = "train.stop" if has_stop(train.stop) else f"measure.search={config.measure.search}"
        raise InputError(f"script={script.path} is measured until its throughput is known: leave out {key}")
    digest, name = check_script(script), str(script.path).rpartition("/")[2]
    own = TrainSpec(train.batch_per_device, train.global_batch, precision="default")
    return replace(
        config,
        script=replace(script, digest=digest),
        strategy=replace(config.strategy, processes=script.processes),
        model=ModelSpec(name=name),
        dataset=DatasetSpec(name=OWN_DATA, validation_share=0.0),
        train=own,
    )
