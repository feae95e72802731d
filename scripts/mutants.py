"""`python -m scripts.mutants FILE TESTS...` breaks FILE in one place after the other, and says which the tests miss.

    python -m scripts.mutants scalebench/report/tables.py tests/report --mutants 40

A test may go where the tests that stay kill every mutant that it kills: `--without` runs each mutant that TESTS kill
again, without the tests named there. A test that comes from a corrected defect stays, whatever this says. All happens
in a copy of the checkout; a mutant whose tests take more than --limit seconds counts as killed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OPPOSITES: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


class Mutant(NamedTuple):
    """A module with a change of one place, for people as before -> after."""

    line: int
    change: str
    text: str


def find_mutants(text: str) -> list[Mutant]:
    """Return all mutants of a module's functions."""
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    places = {id(node): node for function in functions for part in function.body for node in ast.walk(part)}
    mutants = []
    for node in places.values():
        for change in _change(node):
            mutated = _Replace(node, change).visit(copy.deepcopy(tree, {id(node): node}))
            words = (" ".join(ast.unparse(each).split())[:52].strip() for each in (node, change))
            mutants.append(Mutant(getattr(node, "lineno", 0), " -> ".join(words), ast.unparse(mutated)))
    return mutants


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)


def _change(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in the place of a node."""
    match node:
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                operators = [*node.ops[:at], OPPOSITES[type(operator)](), *node.ops[at + 1 :]]
                yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(OPPOSITES[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in OPPOSITES:
            yield ast.BinOp(node.left, OPPOSITES[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.If():
            yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEST")
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0)
    options = parser.parse_args(arguments)
    mutants = find_mutants(options.file.read_text(encoding="utf-8"))
    random.Random(options.seed).shuffle(mutants)
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "checkout"
        shutil.copytree(ROOT, copied, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "multirun"))
        for mutant in mutants[: options.mutants]:
            (copied / options.file).write_text(mutant.text, encoding="utf-8")
            fate = "killed" if _fails(copied, options.tests, options.limit) else "survives"
            left_out = [f"--deselect={test}" for test in options.without]
            if fate == "killed" and left_out and not _fails(copied, [*options.tests, *left_out], options.limit):
                fate = "survives without these tests"
            print(f"{options.file}:{mutant.line} {mutant.change}: {fate}", flush=True)
    return 0


def _fails(folder: Path, arguments: Sequence[str], limit_s: float) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *arguments]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=limit_s).returncode != 0
    except subprocess.TimeoutExpired:
        return True


if __name__ == "__main__":
    sys.exit(main())
