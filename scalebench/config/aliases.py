"""Other programs' names for our settings: spellings that are accepted, and hints for those that are not.

`accept_aliases` rewrites what can mean only one thing: train.precision=bf16, measure.target=1%, model=mynet.py:Net,
devices=2. Keys of other names are refused with a hint, since one name for one setting keeps records and command lines
readable.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from scalebench.core.config_files import list_groups, read_strategy_config, read_yaml
from scalebench.core.errors import InputError

SHARE_KEYS = ("measure.target", "dataset.validation_share")  # shares, which people also write in per cent
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_OVERRIDE = re.compile(r"(\+{0,2})([\w./@-]+)=(.*)", re.DOTALL)

FILE_GROUPS = ("model", "dataset")  # whose choice may be a function of the user's, MODULE:FUNCTION
MODEL_KEYS = {"torch": "torch", "tensorflow": "keras"}  # by framework, under `model`
REFERENCE = re.compile(r"[\w./-]+:\w+")  # of a function
REFERENCE_KEYS = ("model.torch", "model.keras", "dataset.builder", "dataset.loader")


@functools.cache
def read_names(table: str) -> dict[str, str]:
    """Return a table of other_names.yaml as {name: our key, or a hint}; empty where there is none of that name."""
    tables = read_yaml(Path(__file__).with_name("other_names.yaml"))
    return {name: meaning for meaning, names in tables.get(table, {}).items() for name in names.split()}


def accept_aliases(overrides: Iterable[str]) -> list[str]:
    """Return overrides with the accepted spellings of values as ours; each value of a sweep, too.

    Raises InputError where one function is to build the network of two frameworks.
    """
    accepted = [_accept_alias(override) for override in overrides]
    values = dict(map(split_override, accepted))
    return [word for override in accepted for word in _expand_reference(override, values)]


def _expand_reference(override: str, values: Mapping[str, str]) -> list[str]:
    """Return the overrides that `model=mynet:Net` or `dataset=mydata:build` stands for, beside these values by key."""
    group, value = split_override(override)
    names = value.split(",")
    are_functions = [REFERENCE.fullmatch(name) is not None for name in names]
    if group not in FILE_GROUPS or not any(are_functions):
        return [override]
    if not all(are_functions):
        raise InputError(f"{override}: names and functions do not go together in one sweep")
    if group == "dataset":
        key = "builder"
    elif "model.keras" in values or "model.torch" in values:  # which has the network of the other framework
        key = "torch" if "model.keras" in values else "keras"
    else:
        key = choose_model_key(values.get("strategy", "ddp").split(","))
    return [f"{group}=custom", f"{group}.{key}={','.join(map(_name_module, names))}"]


def choose_model_key(strategies: Iterable[str]) -> str:
    """Return the key of a function that builds a network, by the framework of these strategies.

    Raises InputError where they are of two frameworks.
    """
    keys = {MODEL_KEYS.get(str(read_strategy_config(name).get("framework")), "torch") for name in strategies}
    if len(keys) > 1:
        raise InputError(
            "one function cannot build the network of both frameworks: name the other with model.keras=MODULE:FUNCTION"
        )
    return keys.pop()


def _name_module(reference: str) -> str:
    """Return `sub/mynet.py:Net` as `sub.mynet:Net`; another reference, and a file outside of this folder, as it is."""
    path, _, function = reference.rpartition(":")
    if not path.endswith(".py"):
        return reference
    try:
        parts = Path(os.path.abspath(path)).relative_to(Path.cwd()).with_suffix("").parts
    except ValueError:
        return reference
    return f"{'.'.join(parts)}:{function}" if all(map(str.isidentifier, parts)) else reference


def _accept_alias(override: str) -> str:
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        return override
    prefix, key, value = match.groups()
    if value.startswith("[") and value.endswith("]") and key in list_groups():
        return f"{prefix}{key}={value[1:-1]}"  # each group has one choice, so that a list of them is a sweep
    if key == "devices":  # as columns, pages and docs call them
        return f"{prefix}gpus={value}"
    if key in REFERENCE_KEYS:
        return f"{prefix}{key}={','.join(map(_name_module, value.split(',')))}"
    if key == "train.precision":
        words = [word.strip() for word in value.split(",")]
        return f"{prefix}{key}={','.join(read_names(key).get(word.lower(), word) for word in words)}"
    if key in SHARE_KEYS:
        return f"{prefix}{key}={_PERCENT.sub(lambda percent: f'{float(percent[1]) / 100:.12g}', value)}"
    return override


def split_override(override: str) -> tuple[str, str]:
    """Return (key, value) of an override as it was typed; both empty where it is none."""
    match = _OVERRIDE.fullmatch(override)
    return ("", "") if match is None else (match[2], match[3])


def rank_key(key: str) -> tuple[int, int]:
    """Return a sort key that puts settings of training first, and what describes a network or a machine last."""
    groups = ("train", "measure", "sweep", "dataset", "hardware", "strategy", "model")
    group = key.partition(".")[0]
    return groups.index(group) if group in groups else -1, key.count(".")


def normalize_name(name: str) -> str:
    """Return the name of an option or key as a key is written: `--Num-GPUs` as num_gpus."""
    return name.lstrip("-").replace("-", "_").lower()
