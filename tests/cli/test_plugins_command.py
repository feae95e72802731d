"""`scalebench plugins`: which plugins are installed, and whether they load."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.__main__ import main
from scalebench.cli.commands import plugins as plugins_command
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core import plugins
from scalebench.core.errors import InputError
from tests.builders.plugins import CODE
from tests.builders.plugins import dists as dists

ODD = """\
print("hello", "world")
def build(network, outputs): ...
"""


@pytest.fixture
def list_plugins(capsys, monkeypatch, dists, tmp_path):
    """Return the command's status, and the cells of its lines; plugins of the environment itself are hidden."""

    def select(group):
        points = metadata.entry_points(group=group)
        return [point for point in points if Path(str(point.dist.locate_file(""))).is_relative_to(tmp_path)]

    monkeypatch.setattr(plugins, "entry_points", lambda: SimpleNamespace(select=select))

    def call():
        status = main(["plugins"])
        out, err = capsys.readouterr()
        assert err == ""
        lines = [line for line in out.splitlines() if line.strip() and not line.strip().startswith("─")]
        return status, [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]

    return call


def test_without_plugins_a_line_explains_how_to_make_one(dists, list_plugins):
    status, lines = list_plugins()
    assert (status, lines) == (
        0, [["no plugins are installed; `scalebench new strategy NAME` makes one: docs/guides/plugins.md"]]
    )  # fmt: skip


def test_disabled_plugins_are_named_and_not_loaded(dists, list_plugins, monkeypatch):
    dists.strategy(code="open('loaded', 'w').close()\n")
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
    assert list_plugins() == (0, [["left out by SCALEBENCH_PLUGINS: my-plugin"]])
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "no-such,  ")
    status, lines = list_plugins()
    assert (status, lines[-1]) == (1, ["SCALEBENCH_PLUGINS names no-such, and no plugin of that name is installed"])
    assert not Path("loaded").exists()


def test_each_entry_point_has_a_line(dists, list_plugins):
    dists.strategy(api=1)
    dists.add(
        "odd-plugin",
        {"odd/__init__.py": "", "odd/nets.py": ODD, "odd/conf/model/odd_net.yaml": "name: odd_net\n"},
        {"models": {"odd_net": "odd.nets:build"}, "configs": {"odd": "odd.conf"}},
        version="2.5",
    )
    dists.strategy("broken", "broken-plugin", code=f"1 / 0\n{CODE}")
    status, lines = list_plugins()
    assert status == 1
    assert lines[0] == ["plugin", "version", "API", "adds", "name", "from", "loads", "import s"]
    by = {(line[0], line[3]): line for line in lines[1:]}
    assert len(by) == len(lines) - 1 == 6
    assert by["my-plugin", "strategy"][:7] == ["my-plugin", "1.0", "1", "strategy", "mine", "my_plugin.code:Mine", "ok"]
    assert by["my-plugin", "YAML files"][4:] == ["my_plugin", "my_plugin.conf", "ok; strategy/mine.yaml"]
    assert by["odd-plugin", "model"][1:7] == [
        *("2.5", "1 (not stated)", "model", "odd_net", "odd.nets:build"),
        "ok; prints while it is imported: hello world",
    ]
    assert float(by["odd-plugin", "model"][7]) >= 0
    assert by["broken-plugin", "strategy"][6] == (
        "strategy 'broken' of broken-plugin cannot be loaded from broken_plugin.code:Mine: "
        "ZeroDivisionError: division by zero"
    )


def test_a_framework_that_a_model_imports_is_reported(dists):
    dists.add(files={"m.py": "import jax\ndef f(): ...\n", "jax.py": ""}, points={"models": {"f": "m:f"}})
    (point,) = plugins_command.list_allowed_points()
    results = plugins_command.check_entry_point(point)
    assert results.notes == ["imports jax, which each start of a sweep then waits for"]
    assert results.fault is not None and "brings no model/f.yaml" in results.fault


@pytest.mark.parametrize(
    ("yaml", "fault"),
    [
        ("name: [", "cannot be read: "),
        ("- 1", "cannot be read: it should have keys with values"),
        ("nam: mine", "strategy/mine.yaml of my-plugin cannot be read: Key 'nam' not in 'StrategySpec'"),
        ("name: mine\noptions: {y: 1}", "y only in strategy/mine.yaml"),
    ],
)
def test_yaml_files_with_faults(dists, yaml, fault):
    dists.strategy(yaml=yaml)
    results = [plugins_command.check_entry_point(point).fault for point in plugins_command.list_allowed_points()]
    assert any(fault in (line or "") for line in results)


def test_a_data_set_that_nothing_makes_is_a_fault(dists, list_plugins):
    """Its package has forgotten the entry point; one whose file names a function needs none."""
    files = {"a/__init__.py": "", "a/conf/dataset/mine.yaml": "name: mine\n"}
    files["a/conf/dataset/other.yaml"] = "name: other\nbuilder: a:make\n"
    dists.add(files=files, points={"configs": {"a": "a.conf"}})
    status, lines = list_plugins()
    text = " ".join(" ".join(line) for line in lines)
    assert status == 1 and "nothing makes mine" in text and "nothing makes other" not in text
    with pytest.raises(
        InputError, match=r"brings dataset/mine.yaml and no entry point scalebench.datasets of that name"
    ):
        resolve(compose_config(["dataset=mine"]))
