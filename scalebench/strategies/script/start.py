"""The start of a user's program in a process of ours: as Python's main program, with what its imports set off."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import json
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from scalebench.core.claim.sitecustomize import PROGRAM_VARIABLE
from scalebench.core.errors import InputError, describe_exception, nearest_name
from scalebench.core.json_files import read_tail
from scalebench.strategies.script.arguments import MODULE

LOG_TAIL_BYTES, MAX_LINE_CHARACTERS = 4096, 300  # of the output of a program that ended without a word


def read_started_program() -> list[str] | None:
    """Return the program and its arguments that a command of the user's gave this process; None where none did."""
    text = os.environ.pop(PROGRAM_VARIABLE, None)
    return None if text is None else [str(word) for word in json.loads(text)]


def run_as_main(program: str, *words: str, log: Path | None = None) -> BaseException | None:
    """Run a program, or a module behind `-m `, as the main one, whose output is in `log`. Return why it failed; None
    where it came to its end."""
    name = program.rpartition("/")[2]
    try:
        if program.startswith(MODULE):
            module = program.removeprefix(MODULE).strip()
            sys.path.insert(0, os.getcwd())
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            path = str(Path(program).expanduser())
            sys.path.insert(0, str(Path(path).resolve().parent))
            sys.argv = [path, *words]
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return _describe_exit(end, name, log)
    except ModuleNotFoundError as missing:
        traceback.print_exc()
        return InputError(f"{name} imports {missing.name}, which is not installed beside scalebench")
    except BaseException as failure:
        traceback.print_exc()
        if isinstance(failure, EOFError) and str(failure) == "EOF when reading a line":
            return InputError(f"{name} reads its standard input, which is empty here: give it that as an argument")
        return failure
    return None


def _describe_exit(end: SystemExit, name: str, log: Path | None) -> InputError | None:
    """Return the error of a program that left by sys.exit: the message of its argument parser, the exception that it
    handled meanwhile, as Hydra does, or the last line that it printed."""
    if end.code in (None, 0):
        return None
    if not isinstance(end.code, int):
        return InputError(f"{name}: {end.code}")
    for frame, _ in traceback.walk_tb(end.__traceback__):
        if frame.f_code.co_name == "error" and frame.f_code.co_filename.endswith("argparse.py"):
            message, parser = str(frame.f_locals.get("message")), frame.f_locals.get("self")
            unknown = re.findall(r"--[\w-]+", message if message.startswith("unrecognized") else "")
            spellings = re.findall(r"--[\w-]+", parser.format_usage() if unknown and parser is not None else "")
            near = nearest_name(unknown[0], spellings) if unknown else None
            hint = f"; did you mean script.args.{near.removeprefix('--')}?" if near else ""
            return InputError(f"{name} refused its arguments: {message}{hint}")
    handled, reason = end.__context__, f"{name} ended with exit status {end.code}"
    if (explain := getattr(handled, "format_message", None)) is not None:  # of click and typer
        return InputError(f"{name}: {explain()}")
    if isinstance(handled, Exception):
        return InputError(f"{reason}: {describe_exception(handled)}")
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        lines = read_tail(log, LOG_TAIL_BYTES).split("\n") if log is not None else []
        last = next(filter(None, (line.rpartition("\r")[2].strip() for line in reversed(lines))), "")
        if last:
            reason += f"; the last line in its log: {last[:MAX_LINE_CHARACTERS]}"
    return InputError(reason)


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as it has been imported, whoever imports it."""

    def __init__(self, actions: Mapping[str, Callable[[Any], None]]) -> None:
        self._actions = dict(actions)
        self._finding: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._actions or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            action = self._actions.pop(name, None)  # a program may look for a module without importing it
            if action is not None:
                action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
