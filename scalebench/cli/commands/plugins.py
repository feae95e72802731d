"""`scalebench plugins`: list what other packages add, and whether it loads."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser, make_console
from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError, PluginError, describe_exception
from scalebench.core.plugins import PluginEntry
from scalebench.strategies import registry

NO_PLUGINS = "no plugins are installed; `scalebench new` makes one: docs/guides/plugins.md"
# Kinds of entry points in the order of the table, with texts for people.
KIND_TEXTS = {"models": "model", "datasets": "data set", "strategies": "strategy", "configs": "YAML files"}


def add_arguments(parser: CommandParser) -> None:
    """Add nothing: all plugins are listed."""


def main(options: argparse.Namespace) -> int:
    """Print the table. Return 0, or 1 where something is wrong with a plugin."""
    console, has_faults = make_console(), False
    table = Table("plugin", "version", "adds", "name", "from", "loads", box=box.SIMPLE_HEAD)
    for point in list_allowed_points():
        fault = find_fault(point)
        has_faults = has_faults or fault is not None
        table.add_row(point.origin, point.version, KIND_TEXTS[point.kind], point.name, point.target, fault or "ok")
    if table.row_count:
        console.print(table)
    elif not plugins.disabled_plugins():
        console.print(NO_PLUGINS)
    if plugins.disabled_plugins():
        console.print(f"left out by {plugins.PLUGINS_VARIABLE}: {', '.join(plugins.disabled_plugins())}")
    for name in plugins.missing_plugins():
        console.print(f"{plugins.PLUGINS_VARIABLE} names {name}, and no plugin of that name is installed")
        has_faults = True
    return int(has_faults)


def list_allowed_points() -> list[PluginEntry]:
    """List the entry points that SCALEBENCH_PLUGINS allows, and the strategies of their YAML files, by distribution,
    each in the order of KIND_TEXTS."""
    points = [point for kind in plugins.KINDS for point in plugins.plugin_entries(kind)]
    versions = {point.origin: point.version for point in points if point.kind == "configs"}
    for name, path in config_files.list_options("strategy").items():
        origin = config_files.file_origin("strategy", name)
        if origin not in versions:
            continue
        with contextlib.suppress(PluginError):  # which its YAML files say
            if (adapter := config_files.read_composed("strategy", path).get("adapter")) is not None:
                points.append(PluginEntry("strategies", name, str(adapter), str(origin), versions[str(origin)]))
    return sorted(points, key=lambda point: (point.origin, list(KIND_TEXTS).index(point.kind)))


def find_fault(point: PluginEntry) -> str | None:
    """Load the target of an entry point as a run would, and return in one line what is wrong with it."""
    try:
        if point.kind == "configs":
            folder = config_files.package_folder(point.target)
            if folder is None:
                return f"the package '{point.target}' is not there: its YAML files are left out"
            return next(_list_yaml_faults(folder), None)
        if point.kind == "strategies":
            registry.load_strategy(point.name)
            return None
        label = f"{registry.CONFIG_GROUPS[point.kind]} '{point.name}' of {point.origin}"
        fault = registry.plugin_entries(point.kind)[point.name].problem
        if fault is None and not callable(plugins.load_object(point.target, label)):
            fault = f"{label}: {point.target} is not a function"
        return fault
    except InputError as error:
        return str(error)
    except Exception as error:  # in its code, or its YAML
        return describe_exception(error)


def _list_yaml_faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the YAML files of a plugin."""
    for path in sorted(folder.rglob("*.yaml")):
        file = path.relative_to(folder).as_posix()
        group, _, stem = file.removesuffix(".yaml").rpartition("/")
        yield from filter(None, [config_files.find_conflict(group, stem)])
        tree = config_files.read_composed(group, path)
        name = str(tree.get("name"))
        if group == "strategy" and name in registry.strategy_entries():
            yield from filter(None, [registry.find_strategy(name).problem])
        names_function = any(tree.get(key) for key in ("torch", "keras", "builder", "loader"))
        if group in ("model", "dataset") and not names_function:
            yield from filter(None, [registry.describe_unmade(group, name)])
