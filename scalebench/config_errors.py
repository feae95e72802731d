"""Hydra's and OmegaConf's errors in one line, with the nearest known name. Layer 4."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scalebench import configs
from scalebench.spec import Config
from scalebench.suggest import nearest, no_such

CONFIG_ERRORS = (HydraException, OmegaConfBaseException)
SWITCHES = ("hydra",)


def explain(error: BaseException, arguments: list[str]) -> str:
    """One line for an error of composing the config from these command line words."""
    if isinstance(error, MissingConfigException):
        return _missing(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read the override '{error.override}': {_first_line(error)}"
    text = str(error)
    unknown = re.search(r"Could not (?:override|delete from config\.|find) '([^']+)'", text)
    if unknown:
        return unknown_key(unknown[1], arguments)
    ambiguous = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if ambiguous:
        return f"{ambiguous[1]} names several values: add --multirun for a sweep over them, or quote the value"
    merging = re.search(r"Error merging override (.*)", text)
    if merging:
        return f"{merging[1]}: {_first_line(error.__cause__ or error)}"
    return _first_line(error)


def unknown_key(key: str, arguments: list[str]) -> str:
    """`no key 'train.lerning_rate'; did you mean 'train.learning_rate'?`"""
    known = [*_keys(Config), *configs.groups()]
    group = key.partition("/")[0].partition(".")[0]
    if key.startswith("strategy.options."):
        name = _chosen("strategy", arguments)
        path = configs.options("strategy").get(name or "")
        known = [f"strategy.options.{k}" for k in OmegaConf.load(path).get("options", {})] if path else []
        if not known:
            return f"no key '{key}'; strategy '{name}' has no options"
    best = nearest(key, known)
    if best is None:  # a near name in another group would be no help
        known = [k for k in known if k.startswith(f"{group}.")] or sorted({k.partition(".")[0] for k in known})
    return f"no key '{key}'; did you mean '{best}'?" if best else no_such("key", key, known)


def _missing(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _first_line(error)
    return no_such(group, name, error.options or [])


def _chosen(group: str, arguments: list[str]) -> str | None:
    """What the command line chose for a group, or our default."""
    for word in reversed(arguments):
        if word.startswith(f"{group}="):
            return word.partition("=")[2].strip("'\"")
    for entry in OmegaConf.load(configs.conf_dir() / "config.yaml").defaults:
        if OmegaConf.is_dict(entry) and group in entry:
            return str(entry[group])
    return None


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
