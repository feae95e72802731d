"""What plugins may use: marked in the code, listed in docs/plugin-api.md, and enough for our own plugins."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from scalebench import api, plugins
from scalebench.strategy import Strategy
from scalebench.verbs import new
from tests.conftest import ROOT

PAGE = (ROOT / "docs/plugin-api.md").read_text(encoding="utf-8")
LISTED = {name: int(since) for name, since in re.findall(r"^\| `(scalebench\.[\w.]+)` \| (\d+) \|", PAGE, re.MULTILINE)}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
    for path in sorted((ROOT / "scalebench").rglob("*.py"))
}


def marks() -> dict[str, int]:
    """Name -> since, of every `@api(since=N)` in the code; imports none of it."""
    found = {}
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            for mark in getattr(node, "decorator_list", []):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "api":
                    found[f"{module}.{getattr(node, 'name', '')}"] = int(ast.unparse(mark.keywords[0].value))
    return found


MARKED = marks()
USABLE = MARKED | api.CONSTANTS


def foreign(tree: ast.Module) -> set[str]:
    """What a file takes of scalebench that is no part of the API."""
    names, modules = set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "scalebench"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scalebench":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in MODULES:
                    modules[alias.asname or alias.name] = name
                else:
                    names.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(f"{modules[node.value.id]}.{node.attr}")
    contracts = {f"scalebench.testing.{name.rpartition('.')[2]}" for name in MARKED if ".testing." in name}
    return names - USABLE.keys() - contracts


def test_the_page_lists_what_is_marked_and_nothing_else() -> None:
    assert LISTED == USABLE
    assert len(MARKED) > 30 and {1} <= set(USABLE.values()) <= set(range(1, api.VERSION + 1))


def test_constants_are_there() -> None:
    for name in api.CONSTANTS:
        module, _, constant = name.rpartition(".")
        assigned = {n.id for n in ast.walk(MODULES[module]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert constant in assigned, name


def test_the_page_names_every_method_of_a_strategy() -> None:
    """Those that a subclass has to bring in bold."""
    section = PAGE.split("Methods of `Strategy`")[1].split("\n\n")[0]
    methods = [name for name, thing in vars(Strategy).items() if callable(thing) and not name.startswith("_")]
    methods.remove("Options")
    assert re.findall(r"`(\w+)`", section) == methods
    assert set(re.findall(r"\*\*`(\w+)`\*\*", section)) == Strategy.__abstractmethods__


def test_the_page_names_the_groups_and_the_version() -> None:
    groups = set(re.findall(r"^\| `(scalebench\.\w+)` \| (?:of|any|the)", PAGE, re.MULTILINE))
    assert groups == {f"scalebench.{kind}" for kind in (*plugins.KINDS, "api")}
    assert f"now **{api.VERSION}**" in PAGE


def test_a_mark_leaves_things_as_they_are() -> None:
    def thing() -> None: ...

    assert api.api(since=3)(thing) is thing
    assert vars(thing)["__scalebench_api__"] == 3
    assert vars(Strategy)["__scalebench_api__"] == MARKED["scalebench.strategy.Strategy"]


@pytest.mark.parametrize("name", sorted(name for name in MARKED if ".testing." in name))
def test_contracts_come_from_one_package(name: str) -> None:
    assert name.rpartition(".")[2] in importlib.import_module("scalebench.testing").__all__


def test_the_template_keeps_to_the_api() -> None:
    texts = {path: text for path, text in new.rendered("strategy", "mine").items() if path.suffix == ".py"}
    assert len(texts) == 3
    assert {path: taken for path, text in texts.items() if (taken := foreign(ast.parse(text)))} == {}
    assert foreign(ast.parse("from scalebench import run\nrun.run()")) == {"scalebench.run.run"}


# scalebench-search is a part of the program that is installed apart: it runs sweeps, which plugins do not.
PLUGINS = sorted(set(ROOT.glob("plugins/*/src")) - {ROOT / "plugins/scalebench-search/src"})


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.parent.name)
def test_our_own_plugins_keep_to_the_api(folder: Path) -> None:
    files = sorted(folder.rglob("*.py"))
    assert files
    taken = {str(path.relative_to(folder)): foreign(ast.parse(path.read_text())) for path in files}
    assert {path: names for path, names in taken.items() if names} == {}
