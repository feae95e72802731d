"""The command line of a user's training program: its file, its arguments, and placeholders for what a run decides."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from pathlib import Path
from typing import Any

from scalebench.core.errors import InputError, unknown_name_message
from scalebench.core.machine.variables import SECRET_VARIABLES
from scalebench.core.spec import Config, RunSpec, ScriptSpec

MODULE = "-m "  # before the name of a module in script.path, as Python itself has it
PLACEHOLDER = re.compile(r"@(\w+)")
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
        return next((file for file in (base.with_suffix(".py"), base / "__main__.py") if file.is_file()), None)
    file = folder / Path(path).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise InputError(f"script={path} is a folder: name the file in it that trains")
    beside = sorted(each.name for each in file.parent.glob("*.py")) if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, beside, 1)
    hint = f"; did you mean {Path(path).with_name(near[0])}?" if near else f" in {folder}"
    raise InputError(f"script={path}: no such file{hint}")


def check_script(script: ScriptSpec) -> str | None:
    """Return 16 hex digits of the program's file, None for an installed module. Raise InputError for what cannot be
    started: no such file, no valid Python, an unknown placeholder, or a secret that would be in the record."""
    for key, value in script.args.items():
        words = value if isinstance(value, list) else [value]
        if any(isinstance(word, dict) for word in words):
            raise InputError(f"script.args.{key} should be a value or a list: {value}")
        _check_words(f"script.args.{key}", key, [str(word) for word in words])
    for before, word in zip(["", *script.fixed], script.fixed, strict=False):
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
        placeholder = _find_placeholder(word)
        if placeholder is not None and placeholder[0] not in PLACEHOLDERS:
            raise InputError(f"{label}={word}: {unknown_name_message('placeholder', placeholder[0], PLACEHOLDERS)}")


def _find_placeholder(word: str) -> re.Match[str] | None:
    """Return the placeholder that a word is, or that is the first part of a path (`@folder/out`)."""
    placeholder = PLACEHOLDER.match(word)
    return (
        placeholder
        if placeholder is not None and word[placeholder.end() : placeholder.end() + 1] in ("", "/")
        else None
    )


def uses_batch(config: Config) -> bool:
    """Return whether the batch that the config says is passed on to the program."""
    values = [*config.script.fixed, *config.script.args.values()]
    return any(str(word) in BATCH_PLACEHOLDERS for value in values for word in (value if _is_list(value) else [value]))


def render_arguments(spec: RunSpec, folder: Path) -> list[str]:
    """Return the program's arguments in a run whose files are in `folder`: `fixed` as it is, then each of `args`.

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
        placeholder = _find_placeholder(text)
        return text if placeholder is None else f"{values[placeholder[1]]}{text[placeholder.end() :]}"

    words = [fill(word) for word in script.fixed]
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


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
