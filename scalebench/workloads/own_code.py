"""A user's own functions by reference, "module:function", from the current folder or what is installed. Layer 1.

The parent only looks where they are; they are loaded in processes of their own: ranks, and the maker of a data set.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scalebench import plugins
from scalebench.spec import InputError
from scalebench.suggest import no_such


def digest(reference: str, key: str) -> str | None:
    """16 hex digits of the file that a reference names, so that an edited function makes another run.

    `key` (model.torch) is named by the InputError for a reference that is no "module:function", whose module is not
    there or no Python, or has nothing of that name. None where the module is no file of Python. Imports nothing.
    """
    path = _file(reference, key)
    if path is None or path.suffix != ".py":
        return None
    content = path.read_bytes()
    _check_defined(content, path, reference, key)
    return hashlib.sha256(content).hexdigest()[:16]


def load(reference: str, key: str) -> Callable[..., Any]:
    """The function. PluginError, with the traceback as its log, where it cannot be loaded."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    function: Callable[..., Any] = plugins.load(reference, f"{key}={reference}")
    return function


def _check_defined(content: bytes, path: Path, reference: str, key: str) -> None:
    """InputError where the file cannot be parsed, or binds no such name; it may still bind it to something else."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"{key}={reference}: {path}{where} is no Python: {said}") from None
    function, names = reference.partition(":")[2], set(_bound(tree))
    if function not in names and not names & {"*", "__getattr__"}:
        public = [name for name in names if not name.startswith("_")]
        raise InputError(f"{key}={reference}: {no_such(f'function in {path}', function, public)}")


def _bound(tree: ast.AST) -> Iterator[str]:
    """Names that a module binds, in whatever branches."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
            yield from _bound(node)


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
