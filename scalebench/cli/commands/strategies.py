"""`scalebench strategies`: list the registered strategies, their origin, and whether they run here."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser
from scalebench.config import support
from scalebench.core import config_files
from scalebench.core.json_files import build_record
from scalebench.core.machine import machine
from scalebench.core.spec import StrategySpec
from scalebench.strategies import registry


def add_arguments(parser: CommandParser) -> None:
    """Add nothing: all strategies are listed."""


def main(options: argparse.Namespace) -> int:
    device = "cuda" if machine.count_gpus() else "cpu"
    files = config_files.list_options("strategy")
    table = Table("strategy", "what it is", "from", f"here ({device})", box=box.SIMPLE_HEAD)
    for name, entry in sorted(registry.strategy_entries().items()):
        description, support_text = _describe_strategy(name, files.get(name), device)
        table.add_row(name, description, entry.origin, support_text)
    console = Console(markup=False)  # brackets, as in scalebench-train[torch], are text
    console.width = console.width if console.is_terminal else 400  # one line for each strategy
    console.print(table)
    return 0


def _describe_strategy(name: str, file: Path | None, device: str) -> tuple[str, str]:
    """Return the description of a strategy, and whether it can run here."""
    problem = registry.find_strategy(name).problem or config_files.find_config_files().problems.get(("strategy", name))
    if problem is not None:
        return "", f"no: {problem}"
    assert file is not None, "a strategy without a YAML has a problem"
    try:
        tree = config_files.read_yaml(file)
        return str(tree.get("description", "")), _describe_support(build_record(StrategySpec, tree), device)
    except ValueError as error:  # of a plugin, whose fault must not hide the other strategies
        return "", f"no: {file.name}: {error}"


def _describe_support(strategy: StrategySpec, device: str) -> str:
    """Return "yes" where a strategy, by its YAML, can run on this machine, else "no" with the reason."""
    missing = registry.missing_packages(strategy.requires)
    if missing:
        return f"no: {missing[0]} is not installed ({registry.install_hint(missing[0])})"
    if device not in strategy.devices:
        return f"no: needs {' or '.join(strategy.devices)}"
    problem = support.find_launch_problem(strategy)
    return "yes" if problem is None else f"no: {problem}"
