"""Identifiers are plain English: words that do not say what a name holds may not be part of it."""

import ast
import re
from pathlib import Path

import scalebench

PACKAGE = Path(scalebench.__file__).parent
# Not in any identifier, nor as a part of one such as `not_asked`.
FORBIDDEN_WORDS = frozenset(
    "told tell tells telling said says asked asks given mine theirs towards alike whoever whatever heard hearsay "
    "sooner elsewhere nowhere somebody nobody everybody anybody crew keeper leash rung rungs mend mended surroundings "
    "obstacle obstacles outlook".split()
)
# Not as a whole identifier; `is_known` and `NOT_FOUND` are plain English.
FORBIDDEN_NAMES = frozenset("found known whole worth here there one".split())
BASELINE_NAMES = frozenset({"given", "GIVEN", "_start_from_given"})  # the baseline that a user names


def find_names(source):
    """Yield (line, name) of every definition, parameter, variable and assigned attribute of a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def is_forbidden(name):
    if name in BASELINE_NAMES:
        return False
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return name.strip("_").lower() in FORBIDDEN_NAMES or any(word.lower() in FORBIDDEN_WORDS for word in words)


def test_no_identifier_has_a_forbidden_word():
    places = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name in find_names(path.read_text(encoding="utf-8"))
        if is_forbidden(name)
    ]
    assert not places, "rename, since these words do not say what a name holds:\n" + "\n".join(places)


def test_every_kind_of_name_is_checked():
    source = (
        "import a as told\nclass Asked: said = 1\ndef mine(theirs, *, found=1):\n    self.given_by = lambda known: 1\n"
        "    for whole in ():\n        pass\n    try:\n        pass\n    except E as heard:\n        pass\n"
    )
    names = {name for _, name in find_names(source) if is_forbidden(name)}
    assert names == {"told", "Asked", "said", "mine", "theirs", "found", "given_by", "known", "whole", "heard"}
    assert not any(map(is_forbidden, ("is_known", "NOT_FOUND", "given", "untold", "tower", "onset", "alone")))
