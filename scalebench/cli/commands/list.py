"""`scalebench list [KIND] [NAME]`: the strategies, models, data sets, hardware and sweeps that a command can name."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser, make_console
from scalebench.config import support
from scalebench.core import config_files
from scalebench.core.config_files import LIST_KINDS
from scalebench.core.config_fingerprint import flatten
from scalebench.core.errors import InputError, split_number, unknown_name_message
from scalebench.core.json_files import build_record
from scalebench.core.machine import machine
from scalebench.core.plugins import BUILT_IN
from scalebench.core.spec import StrategySpec
from scalebench.strategies import registry

MAX_OVERVIEW_NAMES = 6
OTHERS = "others"
UNLISTED_KEYS = ("name", "description", "sources", "requires", "adapter", "cannot")  # of a YAML file
LAST_TITLES = ("of the studies", "for tests of scalebench")  # strategies of these are shown with --all


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(LIST_KINDS))
    parser.add_argument("name", metavar="NAME", nargs="?", help="one entry, with its options and their defaults")
    parser.add_argument("--all", action="store_true", help="also the strategies of earlier studies, and for tests")


def main(options: argparse.Namespace) -> int:
    console = make_console()
    if options.kind is None:
        _print_overview(console)
    elif options.kind not in LIST_KINDS:
        ways = [each for each, group in LIST_KINDS.items() if options.kind == group]  # else it may be a name
        ways += [f"{each} {options.kind}" for each, group in LIST_KINDS.items() if options.kind in list_names(group)]
        line = f"no kind '{options.kind}'; write: scalebench list {ways[0]}" if ways else ""
        raise InputError(f"list: {line or unknown_name_message('kind', options.kind, LIST_KINDS)}")
    elif options.name is None:
        _print_kind(console, options.kind, options.all)
    else:
        _print_entry(console, LIST_KINDS[options.kind], options.name)
    return 0


def list_names(group: str) -> list[str]:
    """Return the names in a config group, also those that a broken plugin registers."""
    names = set(config_files.list_options(group))
    return sorted(names | set(registry.strategy_entries()) if group == "strategy" else names)


def group_names(group: str, names: list[str]) -> dict[str, list[str]]:
    """Return names by the title of their group, as list_groups.yaml has them; then those of each plugin, and others."""
    rest = sorted((name for name in names if _find_origin(group, name) == BUILT_IN), key=split_number)
    grouped: dict[str, list[str]] = {}
    titles = config_files.read_yaml(Path(__file__).with_name("list_groups.yaml"))
    for title, patterns in titles.get(group, {}).items():
        grouped[title] = list(dict.fromkeys(name for pattern in patterns for name in fnmatch.filter(rest, pattern)))
        rest = [name for name in rest if name not in grouped[title]]
    for name in sorted(names, key=split_number):
        if (origin := _find_origin(group, name)) != BUILT_IN:
            grouped.setdefault(f"from {origin}", []).append(name)
    ordered = sorted((grouped | {OTHERS: rest}).items(), key=lambda item: item[0] in LAST_TITLES)
    return {title: members for title, members in ordered if members}


def _find_origin(group: str, name: str) -> str:
    if group == "strategy" and name in registry.strategy_entries():
        return registry.strategy_entries()[name].origin
    return config_files.file_origin(group, name) or BUILT_IN


def _print_overview(console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    for kind, group in LIST_KINDS.items():
        names = list_names(group)
        firsts = [name for members in group_names(group, names).values() for name in members]
        more = ", ..." if len(names) > MAX_OVERVIEW_NAMES else ""
        table.add_row(kind, str(len(names)), ", ".join(firsts[:MAX_OVERVIEW_NAMES]) + more)
    console.print(table)
    console.print("\nscalebench list KIND shows one kind, scalebench list KIND NAME one entry with its options")


def _print_kind(console: Console, kind: str, show_all: bool) -> None:
    group = LIST_KINDS[kind]
    width = max(map(len, list_names(group))) + 2  # so that the columns of all groups are below each other
    notes: dict[str, str] = {}
    hidden = 0
    for title, names in group_names(group, list_names(group)).items():
        if group == "strategy" and title in LAST_TITLES and not show_all:
            hidden += len(names)
            continue
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=width)
        for name in names:
            table.add_row(f"  {name}", *_describe(group, name, notes))
        console.print(title, style="bold")
        console.print(table)
    console.print()
    for label, note in notes.items():
        console.print(f"{label}: {note}", soft_wrap=True)
    if hidden:
        console.print(f"--all also shows {hidden} strategies of earlier studies and of tests")
    console.print(f"scalebench list {kind} NAME shows one with its options")


def _describe(group: str, name: str, notes: dict[str, str]) -> list[str]:
    """Return the further columns of an entry. `notes` gets the reasons that are too long for a column."""
    file = config_files.list_options(group).get(name)
    try:
        text = "" if file is None else config_files.describe_entry(file)
    except ValueError:  # of a plugin, whose fault must not hide the others
        text = ""
    if group != "strategy":
        return [text]
    label, reason = find_strategy_support(name)
    if reason and not label:
        numbers = {reason: number for number, reason in notes.items()}
        label = numbers.get(reason) or f"no ({sum(key.startswith('no (') for key in notes) + 1})"
    if reason:
        notes.setdefault(label, reason)
    return [label or "yes", text]


def find_strategy_support(name: str) -> tuple[str, str]:
    """Return why a strategy cannot run on this machine, by its YAML: a label of a few words, and the reason; two empty
    texts where it can."""
    problem = registry.find_strategy(name).problem or config_files.find_conflict("strategy", name)
    if problem is not None:
        return "", problem
    file = config_files.list_options("strategy")[name]
    try:
        strategy = build_record(StrategySpec, config_files.read_composed("strategy", file))
    except ValueError as error:
        return "", f"{file.name}: {error}"
    if missing := registry.missing_packages(strategy.requires):
        return f"needs {missing[0]}", registry.install_hint(missing[0])
    device = "cuda" if machine.count_gpus() else "cpu"
    if device not in strategy.devices:
        return "needs GPUs" if device == "cpu" else f"needs {' or '.join(strategy.devices)}", ""
    return "", support.find_launch_problem(strategy) or ""


def _print_entry(console: Console, group: str, name: str) -> None:
    names = list_names(group)
    if name not in names:
        from scalebench.config.error_messages import explain_unknown_choice  # which imports Hydra

        raise InputError(explain_unknown_choice(group, name, names))
    file = config_files.list_options(group).get(name)
    if file is None:  # of a broken plugin
        raise InputError(f"{group} {name}: {find_strategy_support(name)[1]}")
    console.print(f"{group}={name}", style="bold")
    for text in (config_files.read_yaml(file).get("description"), config_files.read_comments(file)[0]):
        if text:
            console.print(text, soft_wrap=not console.is_terminal)
    if group == "strategy":
        console.print(f"here: {': '.join(filter(None, find_strategy_support(name))) or 'yes'}")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for row in list_settings(group, file):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print(f"\nfrom {_find_origin(group, name)}: {file}", soft_wrap=True)


def list_settings(group: str, file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (key as the command line has it, value, remark) for what a YAML file sets; of a strategy all options, and
    of its properties those that are not the default."""
    tree, comments = config_files.read_composed(group, file), config_files.read_key_comments(group, file)
    for entry in tree.pop("defaults", []):
        chosen = re.match(r"override /(\w+)(@|$)", next(iter(entry))) if isinstance(entry, dict) else None
        if chosen is not None:
            yield chosen[1], str(next(iter(entry.values()))), ""
    choices, at_least = tree.pop("choices", None) or {}, tree.pop("at_least", None) or {}
    for key in UNLISTED_KEYS:
        tree.pop(key, None)
    defaults = {**dataclasses.asdict(StrategySpec()), "options": None} if group == "strategy" else {}
    for key, value in flatten(tree):
        option = key.partition("options.")[2] if group == "strategy" else ""
        if not option and (key == "hydra.mode" or value in (None, [], {}) or value == defaults.get(key)):
            continue
        remark = comments.get(key) or (f"one of {', '.join(map(str, choices[option]))}" if option in choices else "")
        remark = f"{remark}; at least {at_least[option]}".removeprefix("; ") if option in at_least else remark
        full_key = key.removeprefix("hydra.sweeper.params.") if group == "sweep" else f"{group}.{key}"
        yield full_key, format_value(value), remark


def format_value(value: Any) -> str:
    """Return a value as YAML and the command line have it: true, null, [1, 2]."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
