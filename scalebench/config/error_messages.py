"""Hydra's and OmegaConf's errors in one line, with the nearest known name. Layer 4."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Iterator

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError, nearest, no_such
from scalebench.core.spec import Config

SEARCH_PACKAGE = "scalebench-search"
OF_SEARCH_PACKAGE = {("sweep", "lr_search"), ("hydra/sweeper", "search")}
SEARCHES = "add --multirun hydra/sweeper=search, which looks for the best value"
FORESEEN = (InputError, HydraException, OmegaConfBaseException)


def explain(error: BaseException, arguments: list[str]) -> str:
    """One line for an error of composing and checking the config from these command line words."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if not isinstance(error, FORESEEN):
        # Hydra checks some of its own settings with bare asserts, conversions and look-ups.
        line = traceback.format_exception_only(error)[0].strip()
        return f"the overrides cannot be composed: {line} (SCALEBENCH_TRACEBACK=1 shows where)"
    if isinstance(error, MissingConfigException):
        return _missing(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read the override '{error.override}': {_first_line(error)}"
    text = str(error)
    unknown = re.search(r"Could not (?:override|delete from config\.|find) '([^']+)'", text)
    if unknown:
        return unknown_key(unknown[1], arguments)
    full_key = re.search(r"full_key: (\S+)", text)
    if full_key and re.match(r"Key '[^']*' (is )?not in", text):
        return unknown_key(full_key[1], arguments)
    if full_key and "Missing mandatory value" in text:
        return f"{full_key[1]} has no value; choose {full_key[1].partition('.')[0]}=NAME"
    if "INTERVAL_SWEEP" in text:
        return f"an interval is for a search, not for a sweep: {SEARCHES}"
    if several := re.search(r"Sweep parameters '([^=]+)=(.*)' requires --multirun", text, re.DOTALL):
        way_out = SEARCHES if "interval(" in several[2] else "add --multirun for a sweep over them"
        return f"{several[1]}={several[2]} names several values: {way_out}"
    ambiguous = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if ambiguous:
        return f"{ambiguous[1]} names several values: add --multirun for a sweep over them, or quote the value"
    merging = re.search(r"Error merging override (.*)", text)
    if merging:
        return f"{merging[1]}: {_first_line(error.__cause__ or error)}"
    return _first_line(error)


def unknown_key(key: str, arguments: list[str]) -> str:
    """`no key 'train.lerning_rate'; did you mean 'train.learning_rate'?`"""
    known = [*_keys(Config), *config_files.groups()]
    group = key.partition("/")[0].partition(".")[0]
    if key.startswith("hydra.sweeper."):
        return no_such("key", key, _sweeper_keys())
    if key.startswith("strategy.options."):
        names = [name.strip("'\" \n") for name in _chosen("strategy", arguments).split(",")]
        defaults = {name: config_files.option_defaults(name) for name in names}
        name = next((n for n, known in defaults.items() if key.split(".")[2] not in known), names[0])
        return no_such(f"option of strategy '{name}'", key.split(".", 2)[2], defaults[name])
    if key in known:
        return f"{key} cannot be removed; set it instead: {key}=VALUE"
    if "." in key and group in {k.partition(".")[0] for k in known}:  # a group is no answer to one of its keys
        known = [k for k in known if "." in k]
    if nearest(key, known) is None:  # then the names of its own group, not all of them
        known = [k for k in known if k.startswith(f"{group}.")] or sorted({k.partition(".")[0] for k in known})
    return no_such("key", key, known)


def _missing(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    if (group, name) in OF_SEARCH_PACKAGE:
        if SEARCH_PACKAGE in plugins.left_out():
            return f"{group}={name} is in {SEARCH_PACKAGE}, which {plugins.VARIABLE} leaves out"
        return f"{group}={name} needs {SEARCH_PACKAGE}: pip install ./plugins/{SEARCH_PACKAGE} in a checkout"
    return no_such(group, name, error.options or [])


def _sweeper_keys() -> list[str]:
    """The keys of all sweepers: of Hydra's own, and of those in YAML files of plugins."""
    keys = {"params", "max_batch_size"}
    for path in config_files.options("hydra/sweeper").values():
        keys |= {key for key in config_files.read(path) if not key.startswith("_")}
    return sorted(f"hydra.sweeper.{key}" for key in keys)


def _chosen(group: str, arguments: list[str]) -> str:
    """What the command line chose for a group, or our default."""
    for word in reversed(arguments):
        if word.startswith(f"{group}="):
            return word.partition("=")[2]
    if swept := _swept(group, arguments):
        return swept
    for entry in OmegaConf.load(config_files.conf_dir() / "config.yaml").defaults:
        if OmegaConf.is_dict(entry) and group in entry:
            return str(entry[group])
    return ""


def _swept(group: str, arguments: list[str]) -> str:
    """The values that the chosen sweep has for a group, if it has any."""
    chosen = [word.partition("=")[2] for word in arguments if word.startswith("sweep=")]
    path = config_files.options("sweep").get(chosen[-1]) if chosen else None
    if path is None:
        return ""
    return str(OmegaConf.select(OmegaConf.load(path), f"hydra.sweeper.params.{group}") or "")


def _keys(kind: type, prefix: str = "") -> Iterator[str]:
    for f in dataclasses.fields(kind):
        inner = f.default_factory if isinstance(f.default_factory, type) else None
        if inner is not None and dataclasses.is_dataclass(inner):
            yield from _keys(inner, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
