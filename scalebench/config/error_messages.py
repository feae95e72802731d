"""Explain errors of Hydra and OmegaConf in one line, with the nearest valid name."""

from __future__ import annotations

import dataclasses
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from scalebench.config import aliases
from scalebench.core import config_files
from scalebench.core.errors import InputError, nearest_name, unknown_name_message
from scalebench.core.spec import Config
from scalebench.strategies import registry

VALUE_TYPES = {"integer": "a whole number", "float": "a number", "bool": "true or false", "boolean": "true or false"}
UNITS = {"_s": " of seconds", "_minutes": " of minutes", "_bytes": " of bytes"}  # by the end of a key
FILE_SUFFIXES = {".py", ".yaml", ".npz", ".npy", ".csv", ".pt"}
# Hints for names of files and folders, which are values of other keys, by group; {name} stands for the name.
FILE_HINTS = {
    "model": "a network of your own is model={name}:FUNCTION",
    "dataset": "the path of a data set is a key: dataset=NAME dataset.path={name}",
    "hardware": "write --config-dir FOLDER hardware=NAME for FOLDER/hardware/NAME.yaml",
}
MAX_LISTED_NAMES = 12  # of a group, in an error; `scalebench list` shows more
SEARCH_HINT = "add --multirun hydra/sweeper=search, which looks for the best value"
MANY_VALUES = "names several values: add --multirun for a sweep over them"
EXPECTED_ERRORS = (InputError, HydraException, OmegaConfBaseException, MarkedYAMLError)
# The first pattern matches what Hydra, OmegaConf and our reader of records say about an unknown key. The others are
# paired with the line that is printed instead, in which {0} and {1} are the groups of the match; the first one counts.
UNKNOWN_KEY = re.compile(
    r"Could not (?:override|delete from config\.|find) '([^']+)'|^(\S+) is not a key$|"
    r"^Key '[^']*' (?:is )?not in.*full_key: (\S+)", re.DOTALL,
)  # fmt: skip
RULES = (
    (r"InputError raised while resolving interpolation: (.*?)(?: full_key: |$)", "{0}"),  # by a resolver of ours
    (r"already at '([^']+)'", "{0} exists already; leave out the + before it"),
    (r"(\S+) appears more than once in the final defaults list", "{0} exists already; leave out the + before it"),
    (r"Missing mandatory value.*full_key: ((\w+)\S*)", "{0} has no value; choose {1}=NAME"),
    (r"INTERVAL_SWEEP", f"an interval is for a search, not for a sweep: {SEARCH_HINT}"),
    (r"Sweep parameters '([^=]+=.*interval\(.*)' requires --multirun", f"{{0}} names several values: {SEARCH_HINT}"),
    (r"Sweep parameters '([^=]+=.*)' requires --multirun", f"{{0}} {MANY_VALUES}"),
    (r"Ambiguous value for argument '([^']+)'", f"{{0}} {MANY_VALUES}, or quote the value"),
)  # fmt: skip


def explain_error(error: BaseException, arguments: list[str]) -> str:
    """Return one line for an error that composing and checking the config of these arguments raised."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if in_file := re.match(r"(?:In|Invalid defaults list in) '?([^':]+)'?[:,] (.*)", str(error), re.DOTALL):
        if isinstance(error, MissingConfigException):
            line = _explain_missing_file(error)
            return line if in_file[1] in ("config", "hydra/config") else f"{in_file[1]}.yaml: {line}"
        return f"{in_file[1]}.yaml: {_explain_fault_of_file(in_file[1], in_file[2], error, arguments)}"
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
        key, value = aliases.split_override(str(error.override))
        foreign = next((word for word in value.split(",") if word.isidentifier() and not word.isascii()), None)
        if foreign is not None and key in config_files.list_groups():  # strategy=dåp, which Hydra's grammar lacks
            return explain_unknown_choice(key, foreign, list(config_files.list_options(key)))
        way_out = f"; for a text write \"{key}='{value}'\" in a shell" if key and "'" not in value + key else ""
        reason = "" if "Exception:" in _first_line(error) else f": {_first_line(error)}"  # of its parser's internals
        return f"cannot read the override '{error.override}'{reason}{way_out}"
    text = str(error)
    if match := UNKNOWN_KEY.search(text):
        return explain_unknown_key(str(match[match.lastindex or 0]), arguments)
    if match := re.search(r"Interpolation key '([^']+)' not found.*full_key: (\S+)", text, re.DOTALL):
        return f"{match[2]}: {explain_unknown_key(match[1], arguments)}"
    for pattern, line in RULES:
        if match := re.search(pattern, text, re.DOTALL):
            return line.format(*match.groups())
    full_key = re.search(r"full_key: (\S+)", text)
    if merging := re.search(r"Error merging override (.*)", text):
        return _explain_value(merging[1], _first_line(error.__cause__ or error))
    return f"{full_key[1]}: {_first_line(error)}" if full_key else _first_line(error)


def _explain_fault_of_file(file: str, text: str, error: BaseException, arguments: list[str]) -> str:
    """Explain what Hydra says about one of the files that it composes: a default that is not there, or the text of
    OmegaConf on a key or a value."""
    group = file.rpartition("/")[0]
    _, composing, inner = text.partition("raised while composing config:\n")
    if not composing:
        return " ".join(text.split())
    text, line = inner, inner.partition("\n")[0].strip()
    if not_keys := re.match(r"Merge error: \w+ is not a subclass of (\w+)Spec. value: (.*)", line):
        return f"{not_keys[1].lower()} should hold keys with values, not {not_keys[2]}"
    full_key = re.search(r"full_key: (\S+)", text)
    if full_key is None:
        return line
    key, last = full_key[1], full_key[1].rpartition(".")[2]
    if re.match(r"Key '[^']*' (is )?not in", text):
        top_keys = {f.name for f in dataclasses.fields(Config)} | {"hydra"}
        if key == group or (key == f"{group}.{last}" and last in top_keys):
            return f"no key '{key}'; if its keys are those of the whole config, begin it with # @package _global_"
        return explain_unknown_key(key, arguments)
    value = re.match(r"Value '(.*?)'", line)
    return _explain_value(f"{key}={'' if value is None else value[1]}", line)


def explain_unknown_key(key: str, arguments: list[str]) -> str:
    """Return a line such as `no key 'train.lerning_rate'; did you mean 'train.learning_rate'?`"""
    keys = list_keys_and_groups()
    if key.startswith("hydra."):
        return f"no key '{key}'; scalebench --cfg hydra shows all"
    if key.startswith("strategy.options."):  # of ~KEY alone: each run checks those that are set, by its own strategy
        return f"{key} cannot be removed, since it is not there; leave out ~{key}"
    if key in keys:
        return f"{key} cannot be removed; set it instead: {key}=VALUE"
    if hint := aliases.read_names("key_hints").get(_last_part(key)):
        return f"no key '{key}'; {hint}"
    if (meant := find_meant_key(key, arguments)) is not None:
        return f"no key '{key}'; did you mean '{meant}'?"
    group = key.partition("/")[0].partition(".")[0]
    candidates = [k for k in keys if k.startswith(f"{group}.")] or sorted({k.partition(".")[0] for k in keys})
    return f"no key '{key}'; known: {', '.join(sorted(candidates))}"


def find_meant_key(name: str, arguments: list[str]) -> str | None:
    """Return the key that a wrong name most likely stands for: as an argument of the user's program, by its name in
    other programs, by its last part, as an option of the chosen strategy, or by its spelling. None where none is
    near."""
    keys = list_keys_and_groups()
    last, group = _last_part(name), name.partition(".")[0]
    inside = [key for key in keys if key.startswith(f"{group}.")] if "." in name else []
    if inside and group == "script":
        return _nearest_key(last, inside) or f"script.args.{name.rpartition('.')[2]}"
    if (key := aliases.read_names("keys").get(last)) is not None:
        return key
    if (nearest := _nearest_key(last, inside)) is not None:
        return nearest
    same = [key for key in keys if _last_part(key) == last and key != name]
    if same:
        return min(same, key=aliases.rank_key)
    for strategy in _find_strategies(arguments):
        if last in config_files.strategy_option_defaults(strategy.strip("'\" \n")):
            return f"strategy.options.{last}"
    return None if inside else _nearest_key(last, keys)


def _nearest_key(last: str, keys: Sequence[str]) -> str | None:
    """Return the key whose last part is spelt most like `last`; None where none is near."""
    by_last = {_last_part(key): key for key in sorted(keys, key=aliases.rank_key, reverse=True)}
    nearest = nearest_name(last, by_last)
    return None if nearest is None else by_last[nearest]


def _last_part(key: str) -> str:
    return aliases.normalize_name(key.rpartition(".")[2])


def _explain_value(override: str, text: str) -> str:
    """Return a line for a value of the wrong type, which OmegaConf describes in `text`."""
    key = override.partition("=")[0]
    if "is not a ListConfig" in text:
        return f"{key} should be a list, such as [1,2]"
    if re.search("is not a subclass of|Cannot assign .* to Dict", text):
        inner = next((each for each in list_config_keys(Config) if each.startswith(f"{key}.")), f"{key}.NAME")
        return f"{override} should be values by name, such as {inner}=VALUE"
    typed = re.search(r"(?:could not be converted to|is not a valid) (\w+)", text)
    if typed is None:
        return f"{override}: {text}"
    units = next((text for end, text in UNITS.items() if key.endswith(end)), "")
    line = f"{override} should be {VALUE_TYPES.get(typed[1].lower(), typed[1])}{units}"
    is_auto = override == "train.batch_per_device=auto"
    return f"{line}; measure=max_batch searches for the largest one that fits" if is_auto else line


def explain_switch(message: str, arguments: Sequence[str], switches: Sequence[str]) -> str:
    """Return a line for a message of argparse on an unknown switch: `--gpus` should be written gpus=VALUE."""
    switch = message.rpartition("unrecognized arguments: ")[2].split()[0] if "unrecognized" in message else ""
    if not switch:
        return f"{message}; --hydra-help lists the switches"
    name, _, value = switch.partition("=")
    value = value or _value_after(arguments, switch)
    word = aliases.normalize_name(name)
    if word not in list_keys_and_groups() and any(argument.startswith("script=") for argument in arguments):
        return f"no option '{name}'; an argument of the script is script.args.{name.lstrip('-')}={value or 'true'}"
    if (hint := aliases.read_names("key_hints").get(word)) is not None:
        return f"no option '{name}'; {hint}"
    if len(word) > 1 and (near := nearest_name(name, switches)) is not None:
        return f"no option '{name}'; did you mean '{near}'?"
    key = word if word in list_keys_and_groups() else find_meant_key(word, list(arguments)) if len(word) > 1 else None
    if key is None:
        return f"no option '{name}'; settings are written KEY=VALUE, such as gpus=2, and --hydra-help lists the options"
    is_switch = isinstance(getattr(Config, key, None), bool)
    return f"no option '{name}'; write {key}={value or ('true' if is_switch else 'VALUE')}"


def _value_after(arguments: Sequence[str], word: str) -> str:
    """Return the argument after this one where it is a value, `gpus 2` or `gpus =2`; else an empty text."""
    after = [*arguments, ""][list(arguments).index(word) + 1]
    return after.removeprefix("=") if not after.startswith("-") and "=" not in after[1:] else ""


def explain_bare_word(word: str, arguments: Sequence[str]) -> str:
    """Return a line for a word that is not KEY=VALUE: the name of a strategy, a key, or what a space cut off."""
    before = ["", *arguments][list(arguments).index(word)]
    name, _, value = word.partition(":")
    groups = [group for group in config_files.list_groups() if word in config_files.list_options(group)]
    is_key = name in list_keys_and_groups()
    if before.endswith("="):
        line = f"write {before}{word} without the space"
    elif word in ("script", "torchrun", "python") or word.endswith(".py"):
        file = next((each for each in (word, *arguments) if each.endswith(".py")), "FILE")
        line = f"scalebench starts a training script by itself: script={file}"
    elif groups and not is_key:
        return f"'{word}' is a {groups[0]}: write {groups[0]}={word}"
    elif (key := name if is_key else find_meant_key(name, list(arguments))) is not None:
        line = f"write {key}={value or _value_after(arguments, word) or 'VALUE'}"
    elif any(argument.startswith(("script=", "script.path=")) for argument in arguments):
        line = "words for the script follow a --, at the end"
    else:
        line = "write KEY=VALUE, such as gpus=2"
    return f"'{word}' is not a setting: {line}"


def _explain_missing_file(error: MissingConfigException) -> str:
    group, slash, name = (error.missing_cfg_file or "").partition("/")
    if group == "hydra":  # the only group with groups in it
        inner, _, name = name.partition("/")
        group = f"{group}/{inner}"
    if not slash:
        return _first_line(error)
    groups = [*config_files.list_groups(), "hydra/launcher", "hydra/sweeper"]
    names = list(config_files.list_options(group)) if error.options is None else error.options
    if not names and group not in groups:
        return unknown_name_message("config group", group, groups)
    return explain_unknown_choice(group, name, names)


def explain_unknown_choice(group: str, name: str, names: Sequence[str]) -> str:
    """Return a line such as `no strategy 'mirorred'; did you mean 'mirrored'?`, or where the names are listed."""
    for points, of_group in registry.CONFIG_GROUPS.items():  # what a plugin registers without its YAML
        entry = registry.plugin_entries(points).get(name) if of_group == group else None
        if entry is not None and entry.problem is not None:
            return entry.problem
    hint = aliases.read_names(group).get(aliases.normalize_name(name))
    if "/" in name or Path(name).suffix in FILE_SUFFIXES:
        hint = FILE_HINTS.get(group)
    if hint is not None and name not in names:
        return f"no {group} '{name}'; {hint.format(name=name)}"
    for folder in (".", "conf"):  # where `scalebench new` writes, and where people put files of their own
        if name not in names and os.path.isfile(os.path.join(folder, group, f"{name}.yaml")):
            return f"no {group} '{name}'; for {folder}/{group}/{name}.yaml add: --config-dir {folder}"
    kind = next((kind for kind, listed in config_files.LIST_KINDS.items() if listed == group), None)
    is_long = kind is not None and len(names) > MAX_LISTED_NAMES
    way_out = f"scalebench list {kind} shows all {len(names)}" if is_long else None
    return unknown_name_message(group, name, names, way_out)


def _find_strategies(arguments: list[str]) -> list[str]:
    """Return the strategies that the command line chooses, else those of its sweep, else ours by default."""
    chosen = {group: value for group, _, value in (argument.partition("=") for argument in arguments)}
    path = config_files.list_options("sweep").get(chosen.get("sweep", ""))
    swept = None if path is None else OmegaConf.select(OmegaConf.load(path), "hydra.sweeper.params.strategy")
    return str(chosen.get("strategy") or swept or "ddp").split(",")


def list_keys_and_groups() -> list[str]:
    return [*list_config_keys(Config), *config_files.list_groups()]


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
