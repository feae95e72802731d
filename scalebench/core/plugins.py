"""Entry points of other packages: which there are, what is wrong with them, and their import.

Nothing of a plugin runs until a run needs it. What is wrong with one fails the runs that use it, and no others.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TextIO

from scalebench.core.errors import InputError

# The version of what docs/plugin-api.md lists. It goes up when something there changes its meaning or goes away; what
# is added keeps it. A plugin states the version it was written for as the name of an entry point `scalebench.api`.
API_VERSION = 1
API = "api"  # the kind of that entry point
KINDS = ("strategies", "models", "datasets", "configs")
OURS = "scalebench"
VARIABLE = "SCALEBENCH_PLUGINS"
WORDS_AT_MOST = 300


class PluginError(InputError):
    """A fault of a plugin, or of a user's own function: it fails the runs that need it, and not the sweep."""

    def __init__(self, line: str, log: str = "") -> None:
        """`log`: the traceback, for the log of the run."""
        super().__init__(line)
        self.log = log


@dataclass(frozen=True)
class Point:
    """One entry point: what a package adds under a name."""

    kind: str  # of KINDS
    name: str
    target: str  # "module:object"; of configs the package that is the folder
    origin: str  # the distribution
    version: str


def points(kind: str) -> tuple[Point, ...]:
    """Entry points `scalebench.<kind>` of the installed packages that SCALEBENCH_PLUGINS, when set, lets in (a list of
    distributions; empty: none), by name and origin. Imports nothing of them."""
    return tuple(point for point in _installed() if point.kind == kind and _allowed(point.origin))


def installed() -> dict[str, str]:
    """Distribution -> its version, of all that bring plugins; also of those that SCALEBENCH_PLUGINS leaves out."""
    return dict(sorted({point.origin: point.version for point in _installed() if point.kind in KINDS}.items()))


def left_out() -> list[str]:
    """Distributions with plugins that SCALEBENCH_PLUGINS does not let in."""
    return [origin for origin in installed() if not _allowed(origin)]


def not_installed() -> list[str]:
    """Names in SCALEBENCH_PLUGINS that no installed plugin has."""
    there = {_normal(origin) for origin in installed()}
    return [name for name in _chosen() or [] if name not in there]


def api_version(origin: str) -> str | None:
    """The version of the plugin API that a distribution says it was written for, as it says it."""
    told = (point.name for point in _installed() if point.kind == API and point.origin == origin)
    return max(told, key=lambda name: (len(name), name), default=None)


def api_problem(origin: str) -> str | None:
    """Why a plugin cannot go with this scalebench: it was written for a later version of the API."""
    told = api_version(origin)
    if told is None or (told.isdigit() and int(told) <= API_VERSION):
        return None
    if not told.isdigit():
        return f"{origin} says that it is written for version '{told}' of the plugin API, which is no number"
    return (
        f"{origin} is written for version {told} of the plugin API, and this scalebench has "
        f"{API_VERSION}: upgrade scalebench, or install an earlier {origin}"
    )


def load(target: str, what: str, output: TextIO | None = None) -> Any:
    """Import the object "module:name". PluginError, with the traceback as its log, where that fails.

    `what` stands before the reason: "strategy 'mine' of my-plugin". What the import prints goes to `output`, by
    default the error output, where it spoils no table.
    """
    module_name, _, name = target.partition(":")
    if not name:
        raise PluginError(f"{what} cannot be loaded from {target}: it should be MODULE:NAME")
    try:
        with redirect_stdout(output or sys.stderr):
            return getattr(importlib.import_module(module_name), name)
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, and what tests are skipped by
        reason = f"{what} cannot be loaded from {target}: {said(error)}"
        raise PluginError(reason, traceback.format_exc()) from error


def said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:WORDS_AT_MOST]
    if isinstance(error, (ImportError, AttributeError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[Point, ...]:
    """All entry points that are for us, by name and origin."""
    found = [_point(kind, point) for kind in (*KINDS, API) for point in entry_points(group=f"{OURS}.{kind}")]
    return tuple(sorted(found, key=lambda point: (point.name, point.origin, point.target)))


def _point(kind: str, point: EntryPoint) -> Point:
    target = "".join(point.value.partition("[")[0].split())  # without extras, which nobody can check here
    origin, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
    return Point(kind, point.name, target, origin or target.partition(":")[0], version or "")


def _allowed(origin: str) -> bool:
    chosen = _chosen()
    return chosen is None or _normal(origin) in chosen


def _chosen() -> list[str] | None:
    told = os.environ.get(VARIABLE)
    return None if told is None else [_normal(name.strip()) for name in told.split(",") if name.strip()]


def _normal(name: str) -> str:
    """As pip compares the names of distributions."""
    return re.sub(r"[-_.]+", "-", name).lower()
