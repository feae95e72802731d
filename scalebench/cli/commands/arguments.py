"""The parser of the command line: argparse, whose errors become one line, as everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """Raises InputError where argparse would print its usage and exit. No abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words and options in any order. InputError for anything unknown."""
        from scalebench.core.errors import InputError, no_such

        options, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            command, word = self._command(), unknown[0].partition("=")[0]
            if word.startswith("-"):
                known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
                raise InputError(f"{command}: {no_such('option', word, known)}")
            raise InputError(f"{command} takes no further words, not '{unknown[0]}'")
        return options

    def error(self, message: str) -> NoReturn:
        from scalebench.core.errors import InputError  # here and above: `--help` shall not wait for it

        usage = " ".join(self.format_usage().split()[1:])
        raise InputError(f"{self._command()}: {message}; usage: {usage}")

    def _command(self) -> str:
        return self.prog.removeprefix("scalebench ")
