"""docs/reference is current and complete, and the API of plugins is as listed, and enough for our own plugins."""

import ast
import dataclasses
import importlib
import inspect
import re

import pytest

from scalebench import plugin_api, testing
from scalebench.cli.commands import new
from scalebench.core import plugins
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.spec import Config, HardwareSpec, KubernetesSpec, MeasureSpec, SlurmSpec, StopSpec, TrainSpec
from scalebench.strategies.base import Probes, Strategy
from scalebench.strategies.registry import built_in_strategies
from scripts import docs
from tests.conftest import ROOT

PAGES = sorted(docs.PAGES.glob("*.md"))
SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def read(page):
    return (docs.PAGES / page).read_text(encoding="utf-8")


def names_of(table):
    return [name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)]


def test_pages_are_current_and_each_generated_part_is_in_one():
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for name, text in texts.items():
        assert docs.update_page(text) == text, f"{name} is of other code: python -m scripts.docs writes it anew"
    names = [name for text in texts.values() for _, name, _ in docs.PART.findall(text)]
    assert sorted(names) == sorted(docs.FORMATS)


def test_strategies_stand_once_with_the_options_of_their_section():
    tables = re.findall(r"^\| strategy \|.*?\n\n", read("strategies.md"), re.MULTILINE | re.DOTALL)
    named = [name for table in tables for name in names_of(table)]
    assert len(named) == len(set(named))
    assert set(named) == set(built_in_strategies())
    sections = dict(SECTION.findall(read("strategies.md")))
    assert len(sections) > 5
    for heading, text in sections.items():
        strategies, _, options = text.partition("| `strategy.options.` |")
        names = set(names_of(strategies)) - {"simulated"}
        expected = {option for name in names for option in strategy_option_defaults(name)}
        assert set(names_of(options)) == expected, heading


def test_every_key_is_in_the_config_page():
    page = read("config.md")
    sections = {"": page.partition("\n## ")[0], **dict(SECTION.findall(page))}
    groups = set("model dataset strategy hardware measure train script".split())  # of Config, with their own sections
    kinds = {Config: "", TrainSpec: "Training", StopSpec: "Training", MeasureSpec: "Measuring"}
    for kind, section in (kinds | dict.fromkeys((HardwareSpec, SlurmSpec, KubernetesSpec), "Hardware")).items():
        cells = re.findall(r"`([\w.]+)`", sections[section])
        named = {name for cell in cells for name in (cell, cell.partition(".")[0])}
        prefix = "stop." if kind is StopSpec else ""
        fields = {f"{prefix}{field.name}" for field in dataclasses.fields(kind)}
        assert fields - groups - docs.SKIPPED <= named, kind


def test_every_variable_of_a_user_and_every_column_is_described():
    ours = set(
        "PARENT_PID LAUNCHER ADDRESSES RUN_ID LISTEN_ADDRESS CPUS CXX PYTHON USER_FOLDERS CLAIM PROGRAM HOROVOD "
        "AGENT_KEY JOBSET PODS".split()
    )  # processes', and of make
    folders = [ROOT / name for name in ("scalebench", "conf")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".yaml", ".sh")]
    files.append(ROOT / "scripts/install.sh")
    read_names = {name for path in files for name in re.findall(r"SCALEBENCH_([A-Z0-9_]+)\b", path.read_text())}
    assert read_names - ours == set(re.findall(r"`SCALEBENCH_([A-Z0-9_]+)`", read("config.md")))


def test_cells_are_text_and_a_key_that_holds_others_stands_before_them(tmp_path):
    assert docs.format_table(["a"], [["x | <k>"]]).endswith("| x \\| &lt;k> |")
    assert docs.format_table(["a"], [["(docs/guides/cluster.md)"]]).endswith("| ([cluster](../guides/cluster.md)) |")
    path = tmp_path / "some.yaml"
    path.write_text("# Header.\nkind: a # a or b\nstop: # half\n  seconds: null # minute\n  steps: 1\n")
    assert docs.read_keys(path) == [
        ("kind", "a", "a or b"), ("stop", "", "half"), ("stop.seconds", "null", "minute"), ("stop.steps", "1", ""),
    ]  # fmt: skip


API_PAGE = (ROOT / "docs/reference/plugin-api.md").read_text(encoding="utf-8")
TORCH, TENSORFLOW = "scalebench.strategies.torch", "scalebench.strategies.tensorflow"
PACKAGES = ("scalebench.plugin_api", TORCH, TENSORFLOW, "scalebench.testing")


EXPORTED = {package: set(docs.exported_names(package)) for package in PACKAGES}


def listed(section):
    return set(re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE))


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


def test_the_page_lists_what_is_exported_and_the_groups():
    sections = re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", API_PAGE, re.MULTILINE | re.DOTALL)
    assert {package: listed(section) for package, section in sections} == EXPORTED
    for package in (plugin_api, testing, importlib.import_module(TORCH)):
        assert all(hasattr(package, name) for name in package.__all__), package.__name__
    groups = set(re.findall(r"^\| `(scalebench\.\w+)` \| (?:of|any|the)", API_PAGE, re.MULTILINE))
    assert groups == {f"scalebench.{kind}" for kind in plugins.KINDS}


@pytest.mark.parametrize("kind", [Strategy, Probes])
def test_the_page_names_every_method(kind):
    """Those that a subclass has to define in bold."""
    section = API_PAGE.split(f"| method of `{kind.__name__}` |")[1].split("\n\n")[0]
    methods = [name for name, method in vars(kind).items() if inspect.isfunction(method) and not name.startswith("_")]
    assert re.findall(r"^\| (?:\*\*)?`(\w+)`", section, re.MULTILINE) == methods
    assert set(re.findall(r"^\| \*\*`(\w+)`\*\*", section, re.MULTILINE)) == set(
        getattr(kind, "__abstractmethods__", ())
    )


def test_the_template_and_our_own_plugins_keep_to_the_api():
    """But for scalebench-search, a part of the program that is installed apart and runs sweeps."""
    texts = {str(path): text for path, text in new.render("strategy", "mine").items() if path.suffix == ".py"}
    assert len(texts) == 3
    for folder in set(ROOT.glob("plugins/*/src")) - {ROOT / "plugins/scalebench-search/src"}:
        texts |= {str(path): path.read_text() for path in folder.rglob("*.py")}
    assert len(texts) > 5
    assert {path: names for path, text in texts.items() if (names := private_imports(ast.parse(text)))} == {}
