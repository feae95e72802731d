"""Mutants: small changes of one place in a function, each of which a good test notices. See scripts/kill_matrix.py.

All names of a function, its lines and the functions inside it stay, so that the code of a mutant fits a live function.
"""

from __future__ import annotations

import ast
import re
from types import CodeType
from typing import NamedTuple

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: (r"\*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"), ast.BitOr: (r"\|", "&"), ast.BitAnd: ("&", "|"),
}  # fmt: skip
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


class Mutant(NamedTuple):
    """A change of one place in a file."""

    kind: str  # operator, number, flag, text, return, condition or call
    line: int
    lines: tuple[int, int]  # those that run where the place does, the first and the last
    start: int  # bytes of the file that are replaced
    end: int
    new: str
    change: str  # before -> after, for people

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new.encode() + text[self.end :]


def find_mutants(text: bytes) -> list[Mutant]:
    """Return all mutants of a module's functions, in the order of their places."""
    finder = _Finder(text)
    finder.visit(ast.parse(text))
    return sorted(set(finder.found), key=lambda mutant: (mutant.start, mutant.kind))


def pair_code(old: bytes, new: bytes, path: str) -> dict[CodeType, CodeType]:
    """Return the code of each function of a module that a change has altered, with what it is now."""
    before, after = (_walk_code(compile(text, path, "exec", dont_inherit=True)) for text in (old, new))
    return {one: other for one, other in zip(before, after, strict=True) if one != other}


def _walk_code(code: CodeType) -> list[CodeType]:
    return [code, *(each for const in code.co_consts if isinstance(const, CodeType) for each in _walk_code(const))]


class _Finder(ast.NodeVisitor):
    def __init__(self, text: bytes) -> None:
        self.found: list[Mutant] = []
        self._text = text
        self._line_starts = [0, *(match.end() for match in re.finditer(b"\n", text))]
        self._depth = 0  # functions around the place
        self._statement: ast.stmt | None = None

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement = node
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        for statement in body:  # not its decorators, defaults and annotations, which were evaluated at its import
            self.visit(statement)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip it: Python 3.11 does not know the places of what is in it."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: it shows defects and has no other effect
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        old = ast.unparse(node)
        if isinstance(node.value, bool):
            self._replace("flag", node, str(not node.value), f"{old} -> {not node.value}")
        elif isinstance(node.value, int | float):
            self._replace("number", node, repr(node.value + 1), f"{old} -> {node.value + 1}")
        elif isinstance(node.value, str) and node.lineno == node.end_lineno:
            self._replace("text", node, repr(node.value + "~"), f"{_shorten(old)} -> + '~'")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._wrap("return", node.value, "({}, None)[1]", f"return {_shorten(ast.unparse(node.value))} -> None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._wrap("call", node.value, "([] and {})", f"{_shorten(ast.unparse(node.value))} -> no call")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._wrap("condition", node.operand, "(not {})", f"{_shorten(ast.unparse(node))} -> without not")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)):
            self._swap(node, node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap(node, node.op, left, right)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            self._swap(node, operator, left, right)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Swap the branches of a condition, unless another operator does the same."""
        opposite = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
        if not opposite and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._wrap("condition", test, "(not {})", f"if {_shorten(ast.unparse(test))} -> if not")

    def _swap(self, node: ast.expr, operator: ast.AST, left: ast.expr, right: ast.expr) -> None:
        """Replace the operator between two operands, where nothing else but brackets is between them."""
        if type(operator) not in OPERATORS:
            return
        old, new = OPERATORS[type(operator)]
        start, end = self._end(left), self._start(right)
        match = re.fullmatch(rf"[\s()\\]*?({old})[\s()\\]*", self._text[start:end].decode())
        if match:
            self._add(
                "operator", node, start + match.start(1), start + match.end(1), new,
                f"{_shorten(ast.unparse(left), 24)} {match[1]} {_shorten(ast.unparse(right), 24)} -> {new}",
            )  # fmt: skip

    def _wrap(self, kind: str, node: ast.expr, around: str, change: str) -> None:
        """Put code around an expression, none of which a compiler leaves out with the functions inside."""
        old = self._text[self._start(node) : self._end(node)].decode()
        self._replace(kind, node, around.replace("{}", f"({old})"), change)

    def _replace(self, kind: str, node: ast.expr, new: str, change: str) -> None:
        self._add(kind, node, self._start(node), self._end(node), new, change)

    def _add(self, kind: str, node: ast.expr, start: int, end: int, new: str, change: str) -> None:
        if self._depth and self._statement is not None:
            simple = not hasattr(self._statement, "body")  # a compound one runs its first line without this place
            first = min(self._statement.lineno, node.lineno) if simple else node.lineno
            lines = (first, node.end_lineno or node.lineno)
            self.found.append(Mutant(kind, node.lineno, lines, start, end, new, change))

    def _start(self, node: ast.expr) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr) -> int:
        return self._line_starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _shorten(text: str, length: int = 48) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"
