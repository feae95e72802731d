"""`scalebench show DIR...`: the table of finished runs, in the terminal."""

from __future__ import annotations

from scalebench.report.console import Console
from scalebench.spec import InputError


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        raise InputError("show needs the folder of a run or a sweep, such as: python -m scalebench show multirun")
    Console().table(arguments)
    return 0
