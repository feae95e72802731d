"""`scalebench plugins`: list what other packages add, and whether it loads."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


class LoadCheck(NamedTuple):
    """The outcome of loading one entry point."""

    fault: str | None  # one line; None: it loads
    files: str = ""  # of YAML, that it brings
    import_s: float | None = None


def add_arguments(parser: CommandParser) -> None:
    """Add nothing: all plugins are listed."""


def main(options: argparse.Namespace) -> int:
    """Print the table. Return 0, or 1 where something is wrong with a plugin."""
    console, has_faults = make_console(), False
    table = Table("plugin", "version", "adds", "name", "from", "loads", "import s", box=box.SIMPLE_HEAD)
    for point in list_allowed_points():
        checked = check_entry_point(point)
        has_faults = has_faults or checked.fault is not None
        loads = checked.fault or "; ".join(filter(None, ["ok", checked.files]))
        seconds = "" if checked.import_s is None else f"{checked.import_s:.2f}"
        kind = KIND_TEXTS[point.kind]
        table.add_row(point.origin, point.version, kind, point.name, point.target, loads, seconds)
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
    """List the entry points that SCALEBENCH_PLUGINS allows, and the classes that only YAML files name, by distribution,
    each in the order of KIND_TEXTS."""
    points = [point for kind in KIND_TEXTS for point in plugins.plugin_entries(kind)]
    versions = {point.origin: point.version for point in points if point.kind == "configs"}
    registered = {point.name for point in points if point.kind == "strategies"}
    for name, path in config_files.list_options("strategy").items():
        origin = config_files.file_origin("strategy", name)
        if origin not in versions or name in registered:
            continue
        with contextlib.suppress(PluginError):  # which its YAML files say
            if (adapter := config_files.read_composed("strategy", path).get("adapter")) is not None:
                points.append(PluginEntry("strategies", name, str(adapter), str(origin), versions[str(origin)]))
    return sorted(points, key=lambda point: (point.origin, list(KIND_TEXTS).index(point.kind)))


def check_entry_point(point: PluginEntry) -> LoadCheck:
    """Load the target of an entry point, as a run would."""
    start_s, fault = time.perf_counter(), None
    try:
        if point.kind == "configs":
            return _check_yaml_files(point)
        if point.kind == "strategies":
            fault = config_files.find_conflict("strategy", point.name)
            if fault is None:
                registry.load_strategy(point.name)
        else:
            fault = registry.plugin_entries(point.kind)[point.name].problem
            label = f"{registry.CONFIG_GROUPS[point.kind]} '{point.name}' of {point.origin}"
            if fault is None and not callable(plugins.load_object(point.target, label)):
                fault = f"{label}: {point.target} is not a function"
    except InputError as error:
        fault = str(error)
    except Exception as error:  # in its code, or its YAML
        fault = describe_exception(error)
    return LoadCheck(fault, import_s=None if point.kind == "configs" else time.perf_counter() - start_s)


def _check_yaml_files(point: PluginEntry) -> LoadCheck:
    folder = config_files.package_folder(point.target)
    if folder is None:
        return LoadCheck(f"the package '{point.target}' is not there: its YAML files are left out")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    return LoadCheck(next(_list_yaml_faults(files), None), ", ".join(files) or "there is no YAML file in it")


def _list_yaml_faults(files: dict[str, Path]) -> Iterator[str]:
    """Yield what is wrong with YAML files."""
    for file, path in files.items():
        group, _, stem = file.removesuffix(".yaml").rpartition("/")
        yield from filter(None, [config_files.find_conflict(group, stem)])
        tree = config_files.read_composed(group, path)
        name = str(tree.get("name"))
        if group == "strategy" and name in registry.strategy_entries():
            yield from filter(None, [registry.find_strategy(name).problem])
        names_function = any(tree.get(key) for key in ("torch", "keras", "builder", "loader"))
        if group in ("model", "dataset") and not names_function:
            yield from filter(None, [registry.describe_unmade(group, name)])
