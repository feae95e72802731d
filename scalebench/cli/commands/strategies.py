"""`scalebench strategies`: what is registered, from where, and whether it can run here."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser
from scalebench.config import support
from scalebench.core import config_files
from scalebench.core.json_files import from_dict
from scalebench.core.machine import machine
from scalebench.core.spec import StrategySpec
from scalebench.strategies import registry


def add_arguments(parser: CommandParser) -> None:
    """None: all strategies are listed."""


def main(options: argparse.Namespace) -> int:
    device = "cuda" if machine.gpu_count() else "cpu"
    files = config_files.options("strategy")
    table = Table("strategy", "what it is", "from", f"here ({device})", box=box.SIMPLE_HEAD)
    for name, entry in sorted(registry.table().items()):
        description, here = _row(name, files.get(name), device)
        table.add_row(name, description, entry.origin, here)
    console = Console(markup=False)  # brackets, as in scalebench[torch], are meant
    console.width = console.width if console.is_terminal else 400  # a line for each strategy
    console.print(table)
    return 0


def _row(name: str, file: Path | None, device: str) -> tuple[str, str]:
    """What a strategy is, and whether it can run here."""
    problem = registry.find(name).problem or config_files.found().problems.get(("strategy", name))
    if problem is not None:
        return "", f"no: {problem}"
    assert file is not None, "a strategy without a YAML has a problem"
    try:
        tree = config_files.read(file)
        return str(tree.get("description", "")), _here(from_dict(StrategySpec, tree), device)
    except ValueError as error:  # a plugin's: neither ours nor those of others shall be missing for it
        return "", f"no: {file.name}: {error}"


def _here(strategy: StrategySpec, device: str) -> str:
    """Whether a strategy, by its YAML, can run on this machine; the reason if not."""
    missing = registry.missing_packages(strategy.requires)
    if missing:
        return f"no: {missing[0]} is not installed ({registry.install_hint(missing[0])})"
    if device not in strategy.devices:
        return f"no: needs {' or '.join(strategy.devices)}"
    unready = support.launching(strategy)
    return "yes" if unready is None else f"no: {unready}"
