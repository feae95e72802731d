"""Entry points that other packages register: which there are, what is wrong with them, and their import.

Nothing of a plugin runs until a run needs it. A fault in one fails the runs that use it, and no others.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from scalebench.core.errors import InputError, PluginError, describe_exception

KINDS = ("models", "datasets", "configs")
BUILT_IN = "scalebench"
PLUGINS_VARIABLE = "SCALEBENCH_PLUGINS"


@dataclass(frozen=True)
class PluginEntry:
    """One entry point: what a package adds under a name."""

    kind: str  # of KINDS
    name: str
    target: str  # "module:object"; for configs the package that is the folder
    origin: str  # the distribution
    version: str


def plugin_entries(kind: str) -> tuple[PluginEntry, ...]:
    """Return the entry points `scalebench.<kind>` of the enabled packages, by name and origin; import none of them.

    SCALEBENCH_PLUGINS, when set, lists the distributions that are enabled; empty means none.
    """
    return tuple(entry for entry in _all_entries() if entry.kind == kind and _is_enabled(entry.origin))


def installed_plugins() -> dict[str, str]:
    """Return the version of each distribution with plugins, also of those that SCALEBENCH_PLUGINS disables."""
    return dict(sorted({entry.origin: entry.version for entry in _all_entries()}.items()))


def disabled_plugins() -> list[str]:
    """Return the distributions with plugins that SCALEBENCH_PLUGINS disables."""
    return [origin for origin in installed_plugins() if not _is_enabled(origin)]


def missing_plugins() -> list[str]:
    """Return the names in SCALEBENCH_PLUGINS that no installed plugin has."""
    installed = {_normalize_name(origin) for origin in installed_plugins()}
    return [name for name in _enabled_names() or [] if name not in installed]


def load_object(target: str, label: str) -> Any:
    """Import the object "module:name". Raise PluginError, with the traceback as its log, where that fails.

    The error line begins with `label`: "strategy 'mine' of my-plugin". What the import prints goes to standard error,
    where it spoils no table.
    """
    module_name, _, name = target.partition(":")
    if not name:
        raise PluginError(f"{label} cannot be loaded from {target}: it should be MODULE:NAME")
    gc.disable()  # an import leaves hardly any garbage, and looking for it takes a sixth of TensorFlow's
    try:
        with redirect_stdout(sys.stderr):
            return getattr(importlib.import_module(module_name), name)
    except (PluginError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise PluginError(
            f"{label} cannot be loaded from {target}: {module_name} ends the program when it is imported "
            f"({describe_exception(error)}); what it runs, or reads from the command line, should be under "
            '`if __name__ == "__main__":`',
            traceback.format_exc(),
        ) from error
    except BaseException as error:  # also SystemExit, and what pytest.skip raises
        reason = f"{label} cannot be loaded from {target}: {describe_exception(error)}"
        raise PluginError(reason, traceback.format_exc()) from error
    finally:
        gc.enable()


class UserProblem(Exception):
    """A reason why what code of the user's makes cannot be used; reported after the name of its function."""


@contextlib.contextmanager
def attribute_errors(
    label: str, *unchanged: type[Exception], describe: Callable[[BaseException], str] = describe_exception
) -> Iterator[None]:
    """Turn errors of code of the user's or of a plugin in the block into a PluginError of one line that begins with
    `label`. Errors that are InputError or `unchanged` are raised as they are."""
    try:
        yield
    except UserProblem as problem:
        raise PluginError(f"{label} {problem}", traceback.format_exc()) from problem
    except (Exception, SystemExit) as error:
        if isinstance(error, (InputError, *unchanged)):
            raise
        raise PluginError(f"{label} fails: {describe(error)}", traceback.format_exc()) from error


@functools.lru_cache(maxsize=1)
def _all_entries() -> tuple[PluginEntry, ...]:
    """Return all entry points meant for scalebench, by name and origin."""
    points = entry_points()  # of all packages: each call reads the files of all of them
    entries = [_to_plugin_entry(kind, point) for kind in KINDS for point in points.select(group=f"{BUILT_IN}.{kind}")]
    return tuple(sorted(entries, key=lambda entry: (entry.name, entry.origin, entry.target)))


def _to_plugin_entry(kind: str, point: EntryPoint) -> PluginEntry:
    target = "".join(point.value.partition("[")[0].split())  # without extras, which cannot be checked here
    origin, version = (None, None) if point.dist is None else (point.dist.name, point.dist.version)
    return PluginEntry(kind, point.name, target, origin or target.partition(":")[0], version or "")


def _is_enabled(origin: str) -> bool:
    enabled = _enabled_names()
    return enabled is None or _normalize_name(origin) in enabled


def _enabled_names() -> list[str] | None:
    text = os.environ.get(PLUGINS_VARIABLE)
    return None if text is None else [_normalize_name(name.strip()) for name in text.split(",") if name.strip()]


def _normalize_name(name: str) -> str:
    """Return the name of a distribution in the form in which pip compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
