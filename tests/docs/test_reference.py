"""docs/reference is current and complete, and the API of plugins is as listed, and enough for our own plugins."""

import ast
import importlib
import re

from scalebench.cli.commands import new
from scripts import docs
from tests.conftest import ROOT

PAGES = sorted(docs.PAGES.glob("*.md"))
# Imported before any test: TensorFlow sets variables then.
EXPORTED = {package: set(importlib.import_module(package).__all__) for package in docs.PACKAGES}


def test_pages_are_current_and_each_generated_part_is_in_one():
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for name, text in texts.items():
        assert docs.update_page(text) == text, f"{name} is of other code: python -m scripts.docs writes it anew"
    names = [name for text in texts.values() for _, name, _ in docs.PART.findall(text)]
    assert sorted(names) == sorted(docs.FORMATS)


def test_every_variable_of_a_user_and_every_column_is_described():
    ours = set(
        "PARENT_PID LAUNCHER ADDRESSES RUN_ID LISTEN_ADDRESS CPUS CXX PYTHON USER_FOLDERS CLAIM PROGRAM HOROVOD "
        "AGENT_KEY JOBSET PODS".split()
    )  # processes', and of make
    folders = [ROOT / name for name in ("scalebench", "conf")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml", ".sh")]
    files.append(ROOT / "scripts/install.sh")
    read_names = {name for path in files for name in re.findall(r"SCALEBENCH_([A-Z0-9_]+)\b", path.read_text())}
    assert read_names - ours == set(
        re.findall(r"`SCALEBENCH_([A-Z0-9_]+)`", (docs.PAGES / "config.md").read_text(encoding="utf-8"))
    )


def private_imports(tree):
    """The names of scalebench that a file imports and that are not part of the API."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "scalebench"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "scalebench":
            exports = EXPORTED.get(node.module or "", set())
            names |= {f"{node.module}.{alias.name}" for alias in node.names if alias.name not in exports}
    return names


def test_the_template_and_our_own_plugins_keep_to_the_api():
    """But for scalebench-search, a part of the program that is installed apart and runs sweeps."""
    texts = {str(path): text for path, text in new.render("strategy", "mine").items() if path.suffix == ".py"}
    assert len(texts) == 3
    for folder in set(ROOT.glob("plugins/*/src")) - {ROOT / "plugins/scalebench-search/src"}:
        texts |= {str(path): path.read_text() for path in folder.rglob("*.py")}
    assert len(texts) > 5
    assert {path: names for path, text in texts.items() if (names := private_imports(ast.parse(text)))} == {}
