"""`scalebench plugins`: list what other packages add, and whether it loads."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser, make_console
from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError, describe_exception
from scalebench.core.plugins import PluginEntry
from scalebench.strategies import registry
from scalebench.workloads import datasets, networks
from scalebench.workloads.datasets import user_function

NO_PLUGINS = "no plugins are installed; `scalebench new strategy NAME` makes one: docs/guides/plugins.md"
KIND_TEXTS = {"strategies": "strategy", "models": "model", "datasets": "data set", "configs": "YAML files"}
# Models and datasets come first: the parent of runs imports them too, so that a framework that one of them imports has
# to be noticed before a strategy imports it.
LOAD_ORDER = ("models", "datasets", "strategies", "configs")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "pytorch_lightning", "horovod")
MAX_PRINTED_CHARACTERS = 60


@dataclass
class LoadCheck:
    """The outcome of loading one entry point."""

    fault: str | None = None  # one line; None: it loads
    notes: list[str] = field(default_factory=list)  # unusual, but harmless
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
        table.add_row(*_format_cells(point, checked))
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
    each in LOAD_ORDER."""
    points = [point for kind in LOAD_ORDER for point in plugins.plugin_entries(kind)]
    versions = {point.origin: point.version for point in points if point.kind == "configs"}
    registered = {point.name for point in points if point.kind == "strategies"}
    for name, path in config_files.list_options("strategy").items():
        origin = config_files.file_origin("strategy", name)
        adapter = config_files.read_composed("strategy", path).get("adapter") if origin in versions else None
        if adapter is not None and name not in registered:
            points.append(PluginEntry("strategies", name, str(adapter), str(origin), versions[str(origin)]))
    return sorted(points, key=lambda point: (point.origin, LOAD_ORDER.index(point.kind)))


def check_entry_point(point: PluginEntry) -> LoadCheck:
    """Load the target of an entry point, as a run would."""
    checked = LoadCheck()
    try:
        if point.kind == "configs":
            _check_yaml_files(point, checked)
        else:
            _check_code(point, checked)
    except InputError as error:
        checked.fault = str(error)
    except Exception as error:  # in its code, or its YAML
        checked.fault = describe_exception(error)
    return checked


def _check_code(point: PluginEntry, checked: LoadCheck) -> None:
    group = registry.CONFIG_GROUPS[point.kind]
    before, output, start_s = set(sys.modules), io.StringIO(), time.perf_counter()
    try:
        loaded = plugins.load_object(point.target, f"{group} '{point.name}' of {point.origin}", output)
    finally:
        checked.import_s = time.perf_counter() - start_s
        if text := " ".join(output.getvalue().split()):
            checked.notes.append(f"prints while it is imported: {text[:MAX_PRINTED_CHARACTERS]}")
    frameworks = [name for name in FRAMEWORKS if name in sys.modules and name not in before]
    if frameworks and point.kind != "strategies":
        checked.notes.append(f"imports {', '.join(frameworks)}, which each start of a sweep then waits for")
    entry = (registry.strategy_entries() if point.kind == "strategies" else registry.plugin_entries(point.kind))[
        point.name
    ]
    if entry.problem is not None:
        checked.fault = entry.problem
    elif point.kind == "strategies":
        checked.fault = config_files.find_config_files().problems.get(("strategy", point.name))
        if checked.fault is None:
            registry.load_strategy(point.name)
    elif not callable(loaded):
        checked.fault = f"{group} '{point.name}' of {point.origin}: {point.target} is not a function"


def _check_yaml_files(point: PluginEntry, checked: LoadCheck) -> None:
    folder = config_files.package_folder(point.target)
    if folder is None:
        checked.fault = f"the package '{point.target}' is not there: its YAML files are left out"
        return
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    checked.notes.append(", ".join(files) or "there is no YAML file in it")
    checked.fault = next(_yaml_faults(files), None)


def _yaml_faults(files: dict[str, Path]) -> Iterator[str]:
    loaded = config_files.find_config_files()
    for name, path in files.items():
        group, _, stem = name.removesuffix(".yaml").rpartition("/")
        if (group, stem) in loaded.problems:
            yield loaded.problems[group, stem]
        yield from (line for line in loaded.warnings if line.startswith(f"{name} "))
        tree = config_files.read_yaml(path)
        if "/" not in group and (fault := _find_missing_code(name, group, tree)) is not None:
            yield fault


def _find_missing_code(file: str, group: str, tree: dict[str, Any]) -> str | None:
    """Return the fault of a file whose strategy, model or data set nothing makes: no entry point, no function
    that the file names, nor scalebench."""
    name = str(tree.get("name"))
    is_made = {
        "model": networks.is_known(name) or "defaults" in tree or bool({"torch", "keras"} & set(tree)),
        "dataset": name in datasets.DATASETS or name in user_function.plugin_datasets() or "builder" in tree,
    }
    if group == "strategy":
        return registry.find_strategy(name).problem if name in registry.strategy_entries() else None
    if "name" not in tree or is_made.get(group, True):
        return None
    kind = next(kind for kind, each in registry.CONFIG_GROUPS.items() if each == group)
    return f"{file}: nothing makes {name}: its package needs an entry point {name} in scalebench.{kind}"


def _format_cells(point: PluginEntry, checked: LoadCheck) -> tuple[str, ...]:
    loads = checked.fault or "; ".join(["ok", *checked.notes])
    seconds = "" if checked.import_s is None else f"{checked.import_s:.2f}"
    return point.origin, point.version, KIND_TEXTS[point.kind], point.name, point.target, loads, seconds
