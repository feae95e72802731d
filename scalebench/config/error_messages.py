"""Explain errors of Hydra and OmegaConf in one line, with the nearest valid name."""

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
from scalebench.core.errors import InputError, nearest_name, unknown_name_message
from scalebench.core.spec import Config

SEARCH_PACKAGE = "scalebench-search"
SEARCH_PACKAGE_FILES = {("sweep", "lr_search"), ("hydra/sweeper", "search")}
SEARCH_HINT = "add --multirun hydra/sweeper=search, which looks for the best value"
EXPECTED_ERRORS = (InputError, HydraException, OmegaConfBaseException)


def explain_error(error: BaseException, arguments: list[str]) -> str:
    """Return one line for an error that composing and checking the config of these arguments raised."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, OSError) and not isinstance(error, HydraException):  # some of Hydra's are both
        where = error.filename or "output folder"
        return f"{where}: {error.strerror or error}; choose another hydra.run.dir or hydra.sweep.dir"
    if not isinstance(error, EXPECTED_ERRORS):
        # Hydra checks some of its own settings with bare asserts, conversions and look-ups.
        line = traceback.format_exception_only(error)[0].strip()
        return f"the overrides cannot be composed: {line} (SCALEBENCH_TRACEBACK=1 shows where)"
    if isinstance(error, MissingConfigException):
        return _explain_missing_file(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read the override '{error.override}': {_first_line(error)}"
    text = str(error)
    unknown = re.search(r"Could not (?:override|delete from config\.|find) '([^']+)'", text)
    if unknown:
        return explain_unknown_key(unknown[1], arguments)
    full_key = re.search(r"full_key: (\S+)", text)
    if full_key and re.match(r"Key '[^']*' (is )?not in", text):
        return explain_unknown_key(full_key[1], arguments)
    if full_key and "Missing mandatory value" in text:
        return f"{full_key[1]} has no value; choose {full_key[1].partition('.')[0]}=NAME"
    if "INTERVAL_SWEEP" in text:
        return f"an interval is for a search, not for a sweep: {SEARCH_HINT}"
    if several := re.search(r"Sweep parameters '([^=]+)=(.*)' requires --multirun", text, re.DOTALL):
        way_out = SEARCH_HINT if "interval(" in several[2] else "add --multirun for a sweep over them"
        return f"{several[1]}={several[2]} names several values: {way_out}"
    ambiguous = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if ambiguous:
        return f"{ambiguous[1]} names several values: add --multirun for a sweep over them, or quote the value"
    merging = re.search(r"Error merging override (.*)", text)
    if merging:
        return f"{merging[1]}: {_first_line(error.__cause__ or error)}"
    return _first_line(error)


def explain_unknown_key(key: str, arguments: list[str]) -> str:
    """Return a line such as `no key 'train.lerning_rate'; did you mean 'train.learning_rate'?`"""
    keys = [*list_config_keys(Config), *config_files.list_groups()]
    group = key.partition("/")[0].partition(".")[0]
    if key.startswith("hydra.sweeper."):
        return unknown_name_message("key", key, _sweeper_keys())
    if key.startswith("strategy.options."):
        names = [name.strip("'\" \n") for name in _find_choice("strategy", arguments).split(",")]
        defaults = {name: config_files.strategy_option_defaults(name) for name in names}
        name = next((n for n, options in defaults.items() if key.split(".")[2] not in options), names[0])
        return unknown_name_message(f"option of strategy '{name}'", key.split(".", 2)[2], defaults[name])
    if key in keys:
        return f"{key} cannot be removed; set it instead: {key}=VALUE"
    if "." in key and group in {k.partition(".")[0] for k in keys}:  # then a group alone is no useful suggestion
        keys = [k for k in keys if "." in k]
    if nearest_name(key, keys) is None:  # then list the names of its own group, not all of them
        keys = [k for k in keys if k.startswith(f"{group}.")] or sorted({k.partition(".")[0] for k in keys})
    return unknown_name_message("key", key, keys)


def _explain_missing_file(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    if (group, name) in SEARCH_PACKAGE_FILES:
        if SEARCH_PACKAGE in plugins.disabled_plugins():
            return f"{group}={name} is in {SEARCH_PACKAGE}, which {plugins.PLUGINS_VARIABLE} leaves out"
        return f"{group}={name} needs {SEARCH_PACKAGE}: pip install ./plugins/{SEARCH_PACKAGE} in a checkout"
    return unknown_name_message(group, name, error.options or [])


def _sweeper_keys() -> list[str]:
    """Return the keys of all sweepers: those of Hydra's own, and those in YAML files of plugins."""
    keys = {"params", "max_batch_size"}
    for path in config_files.list_options("hydra/sweeper").values():
        keys |= {key for key in config_files.read_yaml(path) if not key.startswith("_")}
    return sorted(f"hydra.sweeper.{key}" for key in keys)


def _find_choice(group: str, arguments: list[str]) -> str:
    """Return what the command line chose for a group, else what its sweep or our default chooses."""
    for argument in reversed(arguments):
        if argument.startswith(f"{group}="):
            return argument.partition("=")[2]
    if swept := _find_swept_values(group, arguments):
        return swept
    for entry in OmegaConf.load(config_files.conf_dir() / "config.yaml").defaults:
        if OmegaConf.is_dict(entry) and group in entry:
            return str(entry[group])
    return ""


def _find_swept_values(group: str, arguments: list[str]) -> str:
    """Return the values that the chosen sweep YAML has for a group, if it has any."""
    sweeps = [argument.partition("=")[2] for argument in arguments if argument.startswith("sweep=")]
    path = config_files.list_options("sweep").get(sweeps[-1]) if sweeps else None
    if path is None:
        return ""
    return str(OmegaConf.select(OmegaConf.load(path), f"hydra.sweeper.params.{group}") or "")


def list_config_keys(kind: type, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a dataclass and of those nested in it."""
    for f in dataclasses.fields(kind):
        inner = f.default_factory if isinstance(f.default_factory, type) else None
        if inner is not None and dataclasses.is_dataclass(inner):
            yield from list_config_keys(inner, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
