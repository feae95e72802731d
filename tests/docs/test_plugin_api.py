"""What plugins may use: exported, listed in the reference, and enough for the plugins of this repository."""

import ast
import importlib
import inspect
import re

import pytest

from scalebench import plugin_api, testing
from scalebench.cli.commands import new
from scalebench.core import plugins
from scalebench.strategies.base import Probes, Strategy
from tests.conftest import ROOT

PAGE = (ROOT / "docs/reference/plugin-api.md").read_text(encoding="utf-8")
TORCH, TENSORFLOW = "scalebench.strategies.torch", "scalebench.strategies.tensorflow"
PACKAGES = ("scalebench.plugin_api", TORCH, TENSORFLOW, "scalebench.testing")


def exported(package):
    """The names in `__all__` of a package of a framework, without importing it."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    (names,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return set(ast.literal_eval(names))


EXPORTED = {package: exported(package) for package in PACKAGES[1:]} | {PACKAGES[0]: set(plugin_api.__all__)}


def listed(section):
    return set(re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE))


def private_imports(tree):
    """The names of scalebench that a file imports and that are no part of the API."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "scalebench"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scalebench":
            exports = EXPORTED.get(node.module or "", set())
            names |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name not in exports}
    return names


def test_the_page_lists_what_is_exported_and_nothing_else():
    sections = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert {package: listed(section) for package, section in sections} == EXPORTED
    for package in (plugin_api, testing, importlib.import_module(TORCH)):
        assert all(hasattr(package, name) for name in package.__all__), package.__name__


@pytest.mark.parametrize("kind", [Strategy, Probes])
def test_the_page_names_every_method(kind):
    """Those that a subclass has to define in bold."""
    section = PAGE.split(f"| method of `{kind.__name__}` |")[1].split("\n\n")[0]
    methods = [name for name, method in vars(kind).items() if inspect.isfunction(method) and not name.startswith("_")]
    assert re.findall(r"^\| (?:\*\*)?`(\w+)`", section, re.MULTILINE) == methods
    assert set(re.findall(r"^\| \*\*`(\w+)`\*\*", section, re.MULTILINE)) == set(
        getattr(kind, "__abstractmethods__", ())
    )


def test_the_page_names_the_groups_and_the_version():
    groups = set(re.findall(r"^\| `(scalebench\.\w+)` \| (?:of|any|the)", PAGE, re.MULTILINE))
    assert groups == {f"scalebench.{kind}" for kind in (*plugins.KINDS, plugins.API_KIND)}
    assert f"now **{plugins.API_VERSION}**" in PAGE


def test_the_template_and_our_own_plugins_keep_to_the_api():
    """But for scalebench-search, a part of the program that is installed apart and runs sweeps."""
    texts = {str(path): text for path, text in new.render("mine").items() if path.suffix == ".py"}
    assert len(texts) == 3
    for folder in set(ROOT.glob("plugins/*/src")) - {ROOT / "plugins/scalebench-search/src"}:
        texts |= {str(path): path.read_text() for path in folder.rglob("*.py")}
    assert len(texts) > 5
    assert {path: names for path, text in texts.items() if (names := private_imports(ast.parse(text)))} == {}
