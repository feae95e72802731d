"""The hardware of this machine for `scalebench doctor`: the words of report/machine_text.py in rows and a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from scalebench.machine import Machine
from scalebench.report import machine_text


def rows(here: Machine) -> list[machine_text.FactRow]:
    """What there is, and the command that compares the connections of its GPUs."""
    return [*machine_text.list_facts(here), *machine_text.list_gpu_pairs(here), *machine_text.suggest_comparison(here)]


def links(here: Machine) -> Table | None:
    """The matrix of connections; None where nobody knows it."""
    matrix = machine_text.make_link_matrix(here)
    if matrix is None:
        return None
    table = Table("links", *(f"GPU {number}" for number in range(len(matrix))), box=box.SIMPLE_HEAD)
    for number, words in enumerate(matrix):
        table.add_row(f"GPU {number}", *words)
    return table
