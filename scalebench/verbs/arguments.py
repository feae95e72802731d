"""Words behind a verb, read by argparse; what is wrong with them is one line, as everywhere."""

from __future__ import annotations

import argparse
from typing import NoReturn

from scalebench.spec import InputError


class Parser(argparse.ArgumentParser):
    """Raises InputError where argparse would print its usage and exit. No abbreviated switches."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=f"scalebench {verb}", description=description, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(
            f"{self.prog.removeprefix('scalebench ')}: {message}; usage: {' '.join(self.format_usage().split()[1:])}"
        )
