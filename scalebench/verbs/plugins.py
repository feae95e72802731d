"""`scalebench plugins`: what other packages add, and whether it loads. Each package has a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from scalebench import api, plugin_probe, plugins
from scalebench.launchers import leash
from scalebench.plugin_probe import Probed
from scalebench.records import from_dict
from scalebench.verbs.arguments import CommandParser

LIMIT_S = 60.0
NONE = "no plugins are installed; `scalebench new strategy NAME` makes one, and docs/plugins.md tells how"
KINDS = {"strategies": "strategy", "models": "model", "datasets": "data set", "configs": "YAML files"}


def add_arguments(parser: CommandParser) -> None:
    """None: all plugins are listed."""


def main(options: argparse.Namespace) -> int:
    """Print the table. The exit status: 0; 1 where something is wrong with a plugin."""
    console = Console(markup=False, highlight=False)
    console.width = console.width if console.is_terminal else 400  # a line for each entry point
    there = [origin for origin in plugins.installed() if origin not in plugins.left_out()]
    wrong = False
    if there:
        table = Table("plugin", "version", "API", "adds", "name", "from", "loads", "import s", box=box.SIMPLE_HEAD)
        for origin in there:
            found = probed(origin)
            wrong = wrong or any(each.fault is not None for each in found)
            for each in found:
                table.add_row(*_cells(origin, each))
        console.print(table)
    elif not plugins.left_out():
        console.print(NONE)
    if plugins.left_out():
        console.print(f"left out by {plugins.VARIABLE}: {', '.join(plugins.left_out())}")
    for name in plugins.not_installed():
        console.print(f"{plugins.VARIABLE} names {name}, and no plugin of that name is installed")
        wrong = True
    return int(wrong)


def probed(origin: str, limit_s: float = LIMIT_S) -> list[Probed]:
    """What came of each entry point of a distribution, loaded in a process that has so many seconds for all."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probed"
        how = _run([sys.executable, "-m", "scalebench.plugin_probe", origin, str(file)], limit_s)
        lines = file.read_text().splitlines() if file.exists() else []
    found = [from_dict(Probed, json.loads(line)) for line in lines]
    left = plugin_probe.of(origin)[len(found) :]
    for number, point in enumerate(left):
        fault = f"{how} while it was imported" if number == 0 else f"not tried, after '{left[0].name}'"
        found.append(Probed(point.kind, point.name, point.target, fault))
    return found


def _run(words: list[str], limit_s: float) -> str:
    """How the process ended that these words start; nothing of it is left."""
    with _started(words) as process:
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"it took more than {limit_s:g} s"
    return f"its process ended with {f'status {status}' if status >= 0 else signal.Signals(-status).name}"


@contextlib.contextmanager
def _started(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    on_leash = leash.command(os.getpid(), words)
    process = subprocess.Popen(on_leash, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
        process.wait()


def _cells(origin: str, each: Probed) -> tuple[str, ...]:
    loads = each.fault or "; ".join(["ok", *each.notes])
    seconds = "" if each.seconds is None else f"{each.seconds:.2f}"
    told = plugins.api_version(origin) or f"{api.VERSION} (not said)"
    return origin, plugins.installed()[origin], told, KINDS[each.kind], each.name, each.target, loads, seconds
