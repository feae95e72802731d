"""`scalebench new strategy NAME`: what it writes, and what it refuses in one line."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import run_command
from scalebench.cli.commands import new
from scalebench.core import plugins
from scalebench.core.errors import InputError
from scalebench.core.spec import StrategySpec
from tests.builders.plugins import dists as dists  # a fixture
from tests.conftest import ROOT

STRATEGY = Path("src/scalebench_my_ring/strategy.py")
YAML = Path("src/scalebench_my_ring/conf/strategy/my_ring.yaml")


@pytest.fixture(scope="module")
def texts():
    return new.render("my_ring")


def refused(*words):
    with pytest.raises(InputError) as caught:
        run_command("new", list(words))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_and_next_steps(capsys, texts):
    home = Path("my plugins")
    home.mkdir()
    assert run_command("new", ["strategy", "my_ring", "--into", str(home)]) == 0
    folder = home / "scalebench-my-ring"
    written = {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert written == texts and {STRATEGY, YAML, Path("tests/test_my_ring.py")} < set(written)
    out = capsys.readouterr().out
    assert all(f"\n  {path}\n" in out for path in written)
    assert "pip install -e 'my plugins/scalebench-my-ring[test]'\n" in out and "scalebench check my_ring\n" in out


def test_entry_points_name_existing_objects(texts):
    project = tomllib.loads(texts[Path("pyproject.toml")])["project"]
    points = project["entry-points"]
    module, _, kind = points["scalebench.strategies"]["my_ring"].partition(":")
    assert Path("src", *module.split(".")).with_suffix(".py") == STRATEGY
    assert kind in {node.name for node in ast.parse(texts[STRATEGY]).body if isinstance(node, ast.ClassDef)}
    (folder,) = points["scalebench.configs"].values()
    assert YAML.is_relative_to(Path("src", *folder.split(".")))
    assert points["scalebench.api"] == {str(plugins.API_VERSION): "scalebench_my_ring"}
    assert project["name"] == "scalebench-my-ring"


def test_its_yaml_has_the_options_of_its_class(texts):
    message = OmegaConf.to_container(OmegaConf.create(texts[YAML]))
    assert isinstance(message, dict) and message["name"] == "my_ring"
    StrategySpec(**message)  # no key that there is none of
    classes = {node.name: node for node in ast.parse(texts[STRATEGY]).body if isinstance(node, ast.ClassDef)}
    fields = {
        node.target.id: ast.literal_eval(node.value)
        for node in classes["MyRingOptions"].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
    assert fields == message["options"] != {}


def test_it_is_clean(texts, tmp_path):
    """By the rules of this project, and with nothing left of the template's own language."""
    run_command("new", ["strategy", "my_ring"])
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    passed = ["--isolated", "--line-length", str(rules["line-length"]), "."]
    for words in (["check", "--no-cache", "--select", ",".join(rules["lint"]["select"])], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, *passed]
        done = subprocess.run(command, cwd=tmp_path / "scalebench-my-ring", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not [path for path, text in texts.items() if re.search(r"\{[{%]|[%}]\}", text) or "NAME" in f"{path}{text}"]
    assert max(len(text.splitlines()) for text in texts.values()) < 120


def test_no_tool_takes_the_template_for_code():
    files = [path for path in new.TEMPLATE_FOLDER.rglob("*") if path.is_file()]
    assert files and {path.suffix for path in files} == {new.TEMPLATE_SUFFIX}


def test_names_that_cannot_be(tmp_path):
    for name in ("", "My", "my-ring", "2d", "a__b", "a_", "_a", "none", "on", "inf", "ä", "a.b", "a/b"):
        assert refused("strategy", name) == (
            f"'{name}' cannot be both strategy={name} and a Python module: use small letters, digits and "
            "single underscores, such as my_ring"
        )
    assert not list(tmp_path.iterdir())


def test_classes_that_the_template_imports_cannot_be(texts):
    """Of the module and of the tests."""
    imports = [line for text in texts.values() for line in re.findall(r"^from .* import (.*)$", text, re.MULTILINE)]
    classes = {word for line in imports for word in re.findall(r"\b[A-Z]\w*", line)}
    assert {re.sub(r"(?<!^)(?=[A-Z])", "_", word).lower() for word in classes} == new.TEMPLATE_CLASSES
    assert "has a class of that name" in refused("strategy", "input_error")


def test_names_that_are_taken(dists):
    dists.strategy("theirs", "their-plugin")
    assert refused("strategy", "ddp") == "strategy 'ddp' is there already, from scalebench; take another name"
    assert "from scalebench;" in refused("strategy", "hybrid")  # announced
    assert "from their-plugin;" in refused("strategy", "theirs")
    dists.add("scalebench-hidden", {"scalebench_hidden/__init__.py": ""})
    assert refused("strategy", "hidden").startswith("a package scalebench_hidden is there already")


def test_folders(tmp_path):
    assert refused("strategy", "mine", "--into", "nowhere") == "--into=nowhere is no folder; make it first"
    run_command("new", ["strategy", "mine"])
    kept = (tmp_path / "scalebench-mine/README.md").read_text()
    assert refused("strategy", "mine").startswith("scalebench-mine is there already; take another name")
    assert (tmp_path / "scalebench-mine/README.md").read_text() == kept
    assert refused("model", "mine").startswith("new makes a strategy or hardware, not 'model'")
    assert "the following arguments are required: NAME; usage: scalebench new [-h] [--into FOLDER]" in refused(
        "strategy"
    )
    assert refused("strategy", "a" * 300).endswith("File name too long; take another place with --into=FOLDER")


def test_nothing_is_left_of_an_unwritable_distribution(monkeypatch, tmp_path):
    write = Path.write_text

    def full(path, *args, **kwargs):
        if path.suffix == ".yaml":
            raise OSError(28, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    assert refused("strategy", "mine") == (
        "scalebench-mine cannot be written: No space left on device; take another place with --into=FOLDER"
    )
    assert not list(tmp_path.iterdir())
