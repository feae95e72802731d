"""The command line of a user's training program: its file, its arguments, and placeholders for what a run decides."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import itertools
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.machine.variables import SECRET_VARIABLES
from scalebench.core.spec import Config, RunSpec, ScriptSpec

MODULE = "-m "  # before the name of a module in script.path, as Python itself has it
PLACEHOLDER = re.compile(r"(?:^|(?<==))@(\w+)(?=/|$)")  # a word, what stands behind its =, or the first part of a path
PLACEHOLDERS = ("@gpus", "@gpus_per_node", "@nodes", "@folder", "@seed", "@repeat", "@batch", "@global_batch")
BATCH_PLACEHOLDERS = ("@batch", "@global_batch")


def script_folder(script: ScriptSpec) -> Path:
    """Return the folder that the program runs in."""
    return Path(script.folder or ".").expanduser().absolute()


def script_file(script: ScriptSpec) -> Path | None:
    """Return the program's file; None where script.path names an installed module. Raises InputError for a file or
    folder that does not exist."""
    folder, path = script_folder(script), str(script.path)
    if not folder.is_dir():
        raise InputError(f"script.folder={script.folder}: no such folder")
    if path.startswith(MODULE):
        parts = path.removeprefix(MODULE).strip().split(".")
        if not all(part.isidentifier() for part in parts):
            raise InputError(f"script={path} should be a file, or -m PACKAGE.MODULE")
        base = folder.joinpath(*parts)
        file = next((file for file in (base.with_suffix(".py"), base / "__main__.py") if file.is_file()), None)
        if file is None and not (folder / parts[0]).is_dir() and importlib.util.find_spec(parts[0]) is None:
            raise InputError(f"script={path}: no module {parts[0]} in {folder}, nor installed beside scalebench")
        return file
    file = folder / Path(path).expanduser()
    if file.is_file() and file.suffix not in (".py", ""):
        way_out = "jupyter nbconvert --to script writes one" if file.suffix == ".ipynb" else "name the file that trains"
        raise InputError(f"script={path} is not a Python program: {way_out}")
    if file.is_file():
        return file
    if file.is_dir():
        raise InputError(f"script={path} {'is a folder' if path else 'names no file'}: name the file that trains")
    beside = sorted(each.name for each in file.parent.glob("*.py")) if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, beside, 1)
    hint = f"; did you mean {Path(path).with_name(near[0])}?" if near else f" in {folder}"
    raise InputError(f"script={path}: no such file{hint}")


def find_program(script: ScriptSpec) -> str:
    """Return the program that script.command starts, as script.path would name it: its first word that is a Python
    file, else the module behind its last -m. Raises InputError where there is neither."""
    words = _split_command(script)
    folder = script_folder(script)
    for word in words:
        if word.endswith(".py") and (folder / Path(word).expanduser()).is_file():
            return word
    modules = [module for word, module in itertools.pairwise(words) if word in ("-m", "--module")]
    if modules:
        return MODULE + modules[-1]
    file = next((word for word in words if word.endswith(".py")), None)
    if file is not None:
        script_file(replace(script, path=file))  # its error says what is there instead
    raise InputError(f"script.command={script.command} starts no file NAME.py and no -m MODULE")


def _split_command(script: ScriptSpec) -> list[str]:
    try:
        return [] if script.command is None else shlex.split(script.command)
    except ValueError as error:
        raise InputError(f"script.command={script.command}: {str(error).lower()}") from None


def main_program(script: ScriptSpec) -> str:
    """Return what the main program of a process is called that runs the script: an absolute path, or a module."""
    path = str(script.path)
    if path.startswith(MODULE):
        return path.removeprefix(MODULE).strip()
    return os.path.abspath(script_folder(script) / Path(path).expanduser())


def flatten_arguments(args: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return arguments by their full names: `script.args.optim.lr=0.1`, whose dot makes a group here, is optim.lr."""
    flat: dict[str, Any] = {}
    for key, value in args.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_arguments(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def check_script(script: ScriptSpec) -> str | None:
    """Return 16 hex digits of the program's file, None for an installed module. Raise InputError for what cannot be
    started: no such file, no valid Python, an unknown placeholder, or a secret that would be in the record."""
    for key, value in script.args.items():
        words = value if isinstance(value, list) else [value]
        if any(isinstance(word, dict) for word in words):
            raise InputError(f"script.args.{key} should be a value or a list of values: {value}")
        _check_words(f"script.args.{key}", key, [str(word) for word in words])
    typed = [*_split_command(script), *script.fixed]
    for before, word in zip(["", *typed], typed, strict=False):
        name = word.partition("=")[0] if word.startswith("-") else before if before.startswith("-") else ""
        _check_words(f"the argument {word.partition('=')[0]}", name.lstrip("-"), [word])
    file = script_file(script)
    if file is None:
        return None
    content = file.read_bytes()
    try:
        ast.parse(content, file.name)
    except SyntaxError as error:
        raise InputError(f"script={script.path}: {file}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"script={script.path}: {file} is not valid Python: {error}") from None
    return hashlib.sha256(content).hexdigest()[:16]


def _check_words(label: str, name: str, words: list[str]) -> None:
    if SECRET_VARIABLES.search(name.replace("-", "_")):
        raise InputError(f"{label} looks like a secret and would be in the record: have the script read a variable")
    for word in words:
        placeholder = PLACEHOLDER.search(word)
        if placeholder is not None and placeholder[0] not in PLACEHOLDERS:
            raise InputError(f"{label}={word}: {unknown_name_message('placeholder', placeholder[0], PLACEHOLDERS)}")


def uses_batch(config: Config) -> bool:
    """Return whether the batch that the config says is passed on to the program."""
    script = config.script
    values = [*_split_command(script), *script.fixed, *script.args.values()]
    words = [str(word) for value in values for word in (value if _is_list(value) else [value])]
    return any(word.rpartition("=")[2] in BATCH_PLACEHOLDERS for word in words)


def render_arguments(spec: RunSpec, folder: Path) -> list[str]:
    """Return the program's arguments in a run whose files are in `folder`: `fixed` as it is, then each of `args`. Where
    script.command starts the program they are all words of that, whose last ones are the program's arguments.

    A key of one letter is -k, any other --key. true is the bare key; false and null leave it out; a list is the key
    with several values.
    """
    script = spec.config.script
    values = {
        "gpus": spec.gpus,
        "gpus_per_node": sum(len(place.devices) for place in spec.places if place.node == 0),
        "nodes": spec.nodes,
        "folder": folder.absolute(),
        "seed": spec.config.seed,
        "repeat": spec.config.repeat,
        "batch": spec.batch_per_device,
        "global_batch": spec.global_batch,
    }

    def fill(value: Any) -> str:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return PLACEHOLDER.sub(lambda placeholder: str(values[placeholder[1]]), text)

    words = [fill(word) for word in [*_split_command(script), *script.fixed]]
    for key, value in script.args.items():
        several = [fill(each) for each in value] if _is_list(value) else [fill(value)]
        if script.style == "hydra":
            words.append(f"{key}={'null' if value is None else several[0] if not _is_list(value) else several}")
        elif value is not None and value is not False:
            name = f"-{key}" if len(key) == 1 else f"--{key}"
            if value is True:
                words.append(name)
            elif script.style == "equals" and len(key) > 1:
                words += [f"{name}={each}" for each in several]
            else:
                words += [name, *several]
    return words


def render_command(spec: RunSpec, folder: Path) -> list[str]:
    """Return the words of the program with its arguments, or of the command that starts it."""
    script = spec.config.script
    return [*([str(script.path)] if script.command is None else []), *render_arguments(spec, folder)]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
