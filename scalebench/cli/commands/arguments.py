"""The parser, the option values and the console that commands share; an error is one line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH_CHARACTERS = 400  # of a table in a file or a pipe: one line for each row
FOLDERS_HELP = "folder of a run or a sweep, or a result.json; default: the newest sweep below ./multirun"


def folders_or_newest(folders: list[str]) -> list[str]:
    """Return these folders; where there are none, the newest sweep below ./multirun, which a line on stderr names.
    Runs in them whose program was killed get their results, so that they are rows."""
    from scalebench.core.run_folder import LOCK_FILE
    from scalebench.core.sweep_file import SWEEP_FILE, find_newest_sweep
    from scalebench.sweeps.console import Console

    if not folders:
        newest = find_newest_sweep()
        Console.print_error(f"{newest} is the newest {'sweep' if (newest / SWEEP_FILE).exists() else 'run'}")
        folders = [str(newest)]
    for lock in [lock for folder in folders for lock in Path(folder).rglob(LOCK_FILE)]:
        from scalebench.runner.parent import finish_killed_run  # imports much that commands seldom need

        finish_killed_run(lock.parent)
    return folders


def split_names(text: str) -> list[str]:
    """Return the names in `a, b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_efficiency(efficiency: float) -> None:
    """Raise InputError for a value of --efficiency that is not a share."""
    from scalebench.core.errors import InputError

    if not 0 < efficiency <= 1:
        raise InputError(f"--efficiency={efficiency:g} should be a share above 0 and up to 1, such as 0.8")


def make_console() -> Console:
    """Return a console for tables, in which brackets, as in scalebench-train[torch], are text and not markup."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else PLAIN_WIDTH_CHARACTERS
    return console


def complete_words(line: str, parsers: Mapping[str, CommandParser]) -> list[str] | None:
    """Return what can follow a command line in the shell: commands as its first word, then the options of a command,
    which `parsers` have. None where the words are settings, which Hydra completes."""
    words = line.split()[1:]
    current = words.pop() if words and not line.endswith(" ") else ""
    if not words:
        return [name for name in parsers if name.startswith(current)] if "=" not in current else None
    if words[0] not in parsers:
        return None
    parser = parsers[words[0]]
    options = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return [word for word in (*parser.completions, *options) if word.startswith(current)]


class CommandParser(argparse.ArgumentParser):
    """Raises InputError where argparse would print its usage and exit. No abbreviated options."""

    completions: Sequence[str] = ()  # values of its first argument, for the shell

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse arguments and options in any order. Raise InputError for anything unknown."""
        from scalebench.core.errors import InputError, unknown_name_message

        options, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            command, argument = self._command(), unknown[0].partition("=")[0]
            if argument.startswith("-"):
                names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
                raise InputError(f"{command}: {unknown_name_message('option', argument, names)}")
            raise InputError(f"{command} takes no further arguments, not '{unknown[0]}'")
        return options

    def error(self, message: str) -> NoReturn:
        from scalebench.core.errors import InputError  # here and above: `--help` need not wait for it

        usage = " ".join(self.format_usage().split()[1:])
        raise InputError(f"{self._command()}: {message}; usage: {usage}")

    def _command(self) -> str:
        return self.prog.removeprefix("scalebench ")
