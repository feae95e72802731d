"""The hardware of this machine for `scalebench doctor`: the words of report/hardware.py in rows and a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from scalebench.machine import Machine
from scalebench.report import hardware


def rows(here: Machine) -> list[hardware.Row]:
    """What there is, and the command that compares the connections of its GPUs."""
    return [*hardware.facts(here), *hardware.pairs(here), *hardware.comparing(here)]


def links(here: Machine) -> Table | None:
    """The matrix of connections; None where nobody knows it."""
    matrix = hardware.links(here)
    if matrix is None:
        return None
    table = Table("links", *(f"GPU {number}" for number in range(len(matrix))), box=box.SIMPLE_HEAD)
    for number, words in enumerate(matrix):
        table.add_row(f"GPU {number}", *words)
    return table
