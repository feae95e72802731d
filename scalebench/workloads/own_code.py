"""A user's own functions by reference, "module:function", from the current folder or what is installed. Layer 1.

The parent only looks where they are; they are loaded in processes of their own: ranks, and the maker of a data set.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench import plugins
from scalebench.spec import InputError


def digest(reference: str, key: str) -> str | None:
    """16 hex digits of the file that a reference names, so that an edited function makes another run.

    `key` (model.torch) is named by the InputError for a reference that is no "module:function", or whose module is
    not there. None where the module is no file of Python. Imports nothing.
    """
    path = _file(reference, key)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def load(reference: str, key: str) -> Callable[..., Any]:
    """The function. PluginError, with the traceback as its log, where it cannot be loaded."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    function: Callable[..., Any] = plugins.load(reference, f"{key}={reference}")
    return function


def _file(reference: str, key: str) -> Path | None:
    module, colon, function = reference.partition(":")
    names = module.split(".")
    if not colon or not function.isidentifier() or not all(name.isidentifier() for name in names):
        raise InputError(f"{key}={reference} should be MODULE:FUNCTION, such as my.module:build")
    places = [os.getcwd(), *sys.path]
    spec = importlib.machinery.PathFinder.find_spec(names[0], places) or importlib.util.find_spec(names[0])
    if spec is None:
        raise InputError(f"{key}={reference}: no module '{names[0]}' in {os.getcwd()} or among what is installed")
    folders = list(spec.submodule_search_locations or [])
    for number, name in enumerate(names[1:], start=2):
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
        if spec is None:
            raise InputError(f"{key}={reference}: no module '{'.'.join(names[:number])}'")
        folders = list(spec.submodule_search_locations or [])
    path = Path(spec.origin) if spec.origin else None
    return path if path is not None and path.is_file() else None
