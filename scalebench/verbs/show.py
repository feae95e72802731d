"""`scalebench show DIR... [--details]`: the table of finished runs, and where the time of their updates goes."""

from __future__ import annotations

from scalebench.frame import find
from scalebench.report.console import Console
from scalebench.spec import InputError

DETAILS = "--details"  # of every run; of a single one they are shown in any case


def main(arguments: list[str]) -> int:
    paths = [word for word in arguments if word != DETAILS]
    if not paths or any(path.startswith("-") for path in paths):
        raise InputError("show needs the folder of a run or a sweep, such as: python -m scalebench show multirun")
    console = Console()
    console.table(paths)
    runs = find(paths)
    for path in runs if DETAILS in arguments or len(runs) == 1 else []:
        console.details(path.parent)
    return 0
