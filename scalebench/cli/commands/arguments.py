"""The parser of the command line: argparse with errors of one line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """Raises InputError where argparse would print its usage and exit. No abbreviated options."""

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
