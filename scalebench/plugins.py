"""Entry points of other packages: which there are, what is wrong with them, their code under guard. Layer 1.

Nothing of a plugin runs until a run asks for it. What is wrong with one fails the runs that use it, and no others.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from scalebench import api
from scalebench.spec import InputError

KINDS = ("strategies", "models", "datasets", "configs")
OURS = "scalebench"


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


@functools.lru_cache(maxsize=8)
def points(kind: str) -> tuple[Point, ...]:
    """Entry points `scalebench.<kind>` of the installed packages that SCALEBENCH_PLUGINS, when set, lets in (a list of
    distributions; empty: none), by name and origin. Imports nothing of them."""
    found = [_point(kind, point) for point in entry_points(group=f"scalebench.{kind}") if _allowed(point)]
    return tuple(sorted(found, key=lambda point: (point.name, point.origin)))


def forget() -> None:
    """Look at what is installed anew."""
    points.cache_clear()


def api_problem(origin: str) -> str | None:
    """Why a plugin cannot go with this scalebench: it was written for a later version of the API."""
    for point in entry_points(group="scalebench.api"):
        if _origin(point) == origin and point.name.isdigit() and int(point.name) > api.VERSION:
            return (
                f"{origin} is written for version {point.name} of the plugin API, and this scalebench has "
                f"{api.VERSION}: upgrade scalebench, or install an earlier {origin}"
            )
    return None


def load(target: str, what: str) -> Any:
    """The object "module:name", imported under guard. PluginError, with the traceback as its log, where that fails.

    `what` stands before the reason: "strategy 'mine' of my-plugin".
    """
    module_name, _, name = target.partition(":")
    try:
        with guarded(what):
            return getattr(importlib.import_module(module_name), name)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{what} cannot be loaded from {target}: {said(error)}"
        raise PluginError(reason, traceback.format_exc()) from error


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Around code of others in this process: what it prints goes to the error output, where it spoils no table."""
    with redirect_stdout(sys.stderr):
        yield


def said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, (ImportError, AttributeError)) and text else f"{type(error).__name__}: {text}"


def _point(kind: str, point: EntryPoint) -> Point:
    version = point.dist.version if point.dist is not None else ""
    return Point(kind, point.name, point.value, _origin(point), version)


def _origin(point: EntryPoint) -> str:
    """The distribution that an entry point comes from."""
    return point.dist.name if point.dist is not None else point.module


def _allowed(point: EntryPoint) -> bool:
    chosen = os.environ.get("SCALEBENCH_PLUGINS")
    return chosen is None or _origin(point) in chosen.split(",")
