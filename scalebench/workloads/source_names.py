"""What a function of the user builds, as far as its source tells: the classes that are reached from it by their names.

Files are read and not imported, so a class that is found at run time alone is missed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from scalebench.core.errors import InputError

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages


FindFile = Callable[[str, str], Path | None]  # returns the file of a reference "module:function", for a key in messages


def reaches_method(reference: str, method: str, find_file: FindFile) -> bool:
    """Return whether the function names a class that has the method or inherits it, directly or through assignments,
    imports and base classes in the user's files."""
    files: dict[str, SourceFile | None] = {}  # by module
    waiting, visited = [reference], set()
    while waiting:
        target = waiting.pop()
        module, _, name = target.partition(":")
        if module not in files:
            files[module] = _read(module, find_file, is_named=target == reference)
        file = files[module]
        if file is None or target in visited:
            continue
        visited.add(target)
        node = file.definitions.get(name)
        parts = [] if node is None else [node]
        if isinstance(node, ast.ClassDef):
            if any(method in _list_bound_names(statement) for statement in node.body):
                return True
            parts = list(node.bases)
        names = {each for part in parts for each in _list_names(part)} if node is not None else {name}
        waiting += [origin for each in names for origin in file.find_targets(each)]
    return False


def _read(module: str, find_file: FindFile, is_named: bool) -> SourceFile | None:
    """Return a file of the user's, or the one that the config names; None for others, which are not followed."""
    try:
        path = None if module.partition(".")[0] in sys.stdlib_module_names else find_file(f"{module}:_", "model.torch")
        is_read = path is not None and path.suffix == ".py" and (is_named or INSTALLED.isdisjoint(path.parts))
        return SourceFile(module, path) if path is not None and is_read else None
    except (InputError, SyntaxError, ValueError, OSError):
        return None


class SourceFile:
    """The definitions of a file, and the modules from which its other names are imported. Raises SyntaxError or
    ValueError for a file that is not valid Python."""

    def __init__(self, module: str, path: Path) -> None:
        self._module = module
        self.content = path.read_bytes()
        self.definitions: dict[str, ast.AST] = {}
        self._imports: dict[str, str] = {}  # local name -> "package.module" or "package.module.name"
        self._star_imports: list[str] = []
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        for node in ast.walk(ast.parse(self.content, path.name)):  # from the outside inwards
            for name in _list_bound_names(node):
                self.definitions.setdefault(name, node)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    self._imports[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                origin = ".".join([*parents, *([node.module] if node.module else [])])
                for alias in node.names:
                    self._imports[alias.asname or alias.name] = f"{origin}.{alias.name}"
                self._star_imports += [origin] if any(alias.name == "*" for alias in node.names) else []

    def list_names(self) -> list[str] | None:
        """Return all names that the file defines, assigns or imports; None: a star import may define any."""
        return None if self._star_imports else [*self.definitions, *self._imports]

    def find_targets(self, dotted: str) -> Iterator[str]:
        """Yield the references that a name, such as "nets.Net", may stand for."""
        first, dot, rest = dotted.partition(".")
        if first in self._imports:
            module, _, name = f"{self._imports[first]}{dot}{rest}".rpartition(".")
            yield f"{module}:{name}"
        elif first in self.definitions:
            yield f"{self._module}:{first}"
        else:
            yield from (f"{module}:{first}" for module in self._star_imports)


def _list_bound_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return [target.id for target in targets if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)]


def _list_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read, with their attributes where these follow a name directly."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
            text = ast.unparse(part)
            if all(name.isidentifier() for name in text.split(".")):
                yield text
