"""`python -m scalebench.plugin_probe DISTRIBUTION FILE`: loads all that one plugin adds, and writes what came of it.

In a process of its own, since nobody knows what a plugin does. A line of JSON for each entry point, as soon as it is
known: who is killed in the midst of it has said how far it came. Layer 3.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scalebench import configs, plugins, registry
from scalebench.plugins import Point
from scalebench.spec import InputError

# First what the parent of runs would load too: what it imports is told apart from what strategies import.
ORDER = ("models", "datasets", "strategies", "configs")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "pytorch_lightning", "horovod")
WORDS_AT_MOST = 60


@dataclass
class Probed:
    """What came of one entry point."""

    kind: str
    name: str
    target: str
    fault: str | None = None  # one line; None: it loads
    notes: list[str] = field(default_factory=list)  # what is odd, and does no harm
    seconds: float | None = None  # that its import took


def main(argv: list[str]) -> int:
    origin, file = argv
    with Path(file).open("w") as stream:
        for point in of(origin):
            stream.write(json.dumps(dataclasses.asdict(probe(point))) + "\n")
            stream.flush()
    return 0


def of(origin: str) -> list[Point]:
    """The entry points of one distribution, in the order that they are probed in."""
    return [point for kind in ORDER for point in plugins.points(kind) if point.origin == origin]


def probe(point: Point) -> Probed:
    """Loads what an entry point names, as a run would."""
    found = Probed(point.kind, point.name, point.target)
    try:
        if point.kind == "configs":
            _probe_yaml(point, found)
        else:
            _probe_code(point, found)
    except InputError as error:
        found.fault = str(error)
    except Exception as error:  # in its Options, or its YAML
        found.fault = plugins.said(error)
    return found


def _probe_code(point: Point, found: Probed) -> None:
    group = registry.GROUPS[point.kind]
    before, output, begun_s = set(sys.modules), io.StringIO(), time.perf_counter()
    try:
        made = plugins.load(point.target, f"{group} '{point.name}' of {point.origin}", output)
    finally:
        found.seconds = time.perf_counter() - begun_s
        if text := " ".join(output.getvalue().split()):
            found.notes.append(f"prints while it is imported: {text[:WORDS_AT_MOST]}")
    loaded = [name for name in FRAMEWORKS if name in sys.modules and name not in before]
    if loaded and point.kind != "strategies":
        found.notes.append(f"imports {', '.join(loaded)}, which each start of a sweep then waits for")
    entry = (registry.table() if point.kind == "strategies" else registry.added(point.kind))[point.name]
    if entry.problem is not None:
        found.fault = entry.problem
    elif ("strategy", point.name) in configs.found().problems and point.kind == "strategies":
        found.fault = configs.found().problems["strategy", point.name]
    elif point.kind == "strategies":
        options = configs.read(configs.options("strategy")[point.name]).get("options") or {}
        registry.check_options_agree(point.name, registry.load(point.name), options)
    elif not callable(made):
        found.fault = f"{group} '{point.name}' of {point.origin}: {point.target} is no function"


def _probe_yaml(point: Point, found: Probed) -> None:
    folder = configs.folder_of(point.target)
    if folder is None:
        found.fault = f"the package '{point.target}' is not there: its YAML files are left out"
        return
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    found.notes.append(", ".join(files) or "there is no YAML file in it")
    found.fault = next(_faults(files), None)


def _faults(files: dict[str, Path]) -> Iterator[str]:
    """What is wrong with a plugin's YAML files."""
    told = configs.found()
    for name, path in files.items():
        group, _, stem = name.removesuffix(".yaml").rpartition("/")
        if (group, stem) in told.problems:
            yield told.problems[group, stem]
        yield from (line for line in told.warnings if line.startswith(f"{name} "))
        configs.read(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
