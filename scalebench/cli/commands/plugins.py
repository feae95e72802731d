"""`scalebench plugins`: what other packages add, and whether it loads."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench.cli.commands.arguments import CommandParser
from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError
from scalebench.core.plugins import Point
from scalebench.strategies import registry

NO_PLUGINS = "no plugins are installed; `scalebench new strategy NAME` makes one, and docs/plugins.md tells how"
KINDS = {"strategies": "strategy", "models": "model", "datasets": "data set", "configs": "YAML files"}
# First what the parent of runs imports too: the frameworks that it imports are not confused with those of strategies.
LOAD_ORDER = ("models", "datasets", "strategies", "configs")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "pytorch_lightning", "horovod")
MAX_PRINTED_CHARACTERS = 60


@dataclass
class Check:
    """The outcome of loading one entry point."""

    fault: str | None = None  # one line; None: it loads
    notes: list[str] = field(default_factory=list)  # what is unusual and does no harm
    import_s: float | None = None


def add_arguments(parser: CommandParser) -> None:
    """None: all plugins are listed."""


def main(options: argparse.Namespace) -> int:
    """Print the table. The exit status: 0; 1 where something is wrong with a plugin."""
    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else 400  # a line for each entry point
    faulty = False
    table = Table("plugin", "version", "API", "adds", "name", "from", "loads", "import s", box=box.SIMPLE_HEAD)
    for point in allowed_points():
        checked = check(point)
        faulty = faulty or checked.fault is not None
        table.add_row(*_cells(point, checked))
    if table.row_count:
        console.print(table)
    elif not plugins.left_out():
        console.print(NO_PLUGINS)
    if plugins.left_out():
        console.print(f"left out by {plugins.VARIABLE}: {', '.join(plugins.left_out())}")
    for name in plugins.not_installed():
        console.print(f"{plugins.VARIABLE} names {name}, and no plugin of that name is installed")
        faulty = True
    return int(faulty)


def allowed_points() -> list[Point]:
    """The entry points that SCALEBENCH_PLUGINS does not leave out, by distribution, each in LOAD_ORDER."""
    return sorted((point for kind in LOAD_ORDER for point in plugins.points(kind)), key=lambda point: point.origin)


def check(point: Point) -> Check:
    """Load what an entry point names, as a run would."""
    checked = Check()
    try:
        if point.kind == "configs":
            _check_yaml_files(point, checked)
        else:
            _check_code(point, checked)
    except InputError as error:
        checked.fault = str(error)
    except Exception as error:  # in its Options, or its YAML
        checked.fault = plugins.said(error)
    return checked


def _check_code(point: Point, checked: Check) -> None:
    group = registry.GROUPS[point.kind]
    before, output, start_s = set(sys.modules), io.StringIO(), time.perf_counter()
    try:
        loaded = plugins.load(point.target, f"{group} '{point.name}' of {point.origin}", output)
    finally:
        checked.import_s = time.perf_counter() - start_s
        if text := " ".join(output.getvalue().split()):
            checked.notes.append(f"prints while it is imported: {text[:MAX_PRINTED_CHARACTERS]}")
    frameworks = [name for name in FRAMEWORKS if name in sys.modules and name not in before]
    if frameworks and point.kind != "strategies":
        checked.notes.append(f"imports {', '.join(frameworks)}, which each start of a sweep then waits for")
    entry = (registry.table() if point.kind == "strategies" else registry.added(point.kind))[point.name]
    if entry.problem is not None:
        checked.fault = entry.problem
    elif point.kind == "strategies":
        checked.fault = config_files.found().problems.get(("strategy", point.name))
        if checked.fault is None:
            options = config_files.read(config_files.options("strategy")[point.name]).get("options") or {}
            registry.check_options_agree(point.name, registry.load(point.name), options)
    elif not callable(loaded):
        checked.fault = f"{group} '{point.name}' of {point.origin}: {point.target} is no function"


def _check_yaml_files(point: Point, checked: Check) -> None:
    folder = config_files.folder_of(point.target)
    if folder is None:
        checked.fault = f"the package '{point.target}' is not there: its YAML files are left out"
        return
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    checked.notes.append(", ".join(files) or "there is no YAML file in it")
    checked.fault = next(_yaml_faults(files), None)


def _yaml_faults(files: dict[str, Path]) -> Iterator[str]:
    loaded = config_files.found()
    for name, path in files.items():
        group, _, stem = name.removesuffix(".yaml").rpartition("/")
        if (group, stem) in loaded.problems:
            yield loaded.problems[group, stem]
        yield from (line for line in loaded.warnings if line.startswith(f"{name} "))
        config_files.read(path)


def _cells(point: Point, checked: Check) -> tuple[str, ...]:
    loads = checked.fault or "; ".join(["ok", *checked.notes])
    seconds = "" if checked.import_s is None else f"{checked.import_s:.2f}"
    version = plugins.api_version(point.origin) or f"{plugins.API_VERSION} (not said)"
    return point.origin, point.version, version, KINDS[point.kind], point.name, point.target, loads, seconds
