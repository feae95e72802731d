"""Entry points of other packages: which count, and what becomes of imports that fail."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from scalebench.core import plugins
from scalebench.core.plugins import PluginError, Point
from tests.builders.plugins import Dists
from tests.builders.plugins import dists as dists


def test_points_are_those_of_the_kind_in_order_and_import_nothing(dists: Dists) -> None:
    dists.add("b-dist", {"b.py": "raise SystemExit"}, {"models": {"z": "b:z", "a": "b : a [extra]"}}, version="3.1")
    dists.add("a-dist", {"a.py": "raise SystemExit"}, {"models": {"z": "a:z"}, "datasets": {"d": "a:d"}})
    assert plugins.points("models") == (
        Point("models", "a", "b:a", "b-dist", "3.1"),
        Point("models", "z", "a:z", "a-dist", "1.0"),
        Point("models", "z", "b:z", "b-dist", "3.1"),
    )
    assert [point.name for point in plugins.points("datasets")] == ["d"]
    assert plugins.points("strategies") == ()
    assert plugins.installed()["b-dist"] == "3.1"
    assert not {"a", "b"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("told", "names"),
    [
        (None, {"x", "y"}),
        ("", set()),
        ("one-plugin", {"x"}),
        (" One_Plugin , two.plugin ", {"x", "y"}),
        ("one", set()),
        ("one-plugin-too,two-plugin", {"y"}),
    ],
)
def test_the_variable_lets_in(dists: Dists, monkeypatch: pytest.MonkeyPatch, told: str | None, names: set[str]) -> None:
    dists.add("one-plugin", points={"models": {"x": "m:x"}})
    dists.add("two-plugin", points={"models": {"y": "m:y"}})
    if told is None:
        monkeypatch.delenv("SCALEBENCH_PLUGINS")
    else:
        monkeypatch.setenv("SCALEBENCH_PLUGINS", told)
    ours = {"one-plugin": "x", "two-plugin": "y"}
    assert {point.name for point in plugins.points("models") if point.origin in ours} == names
    assert {name for origin, name in ours.items() if origin not in plugins.left_out()} == names


def test_names_in_the_variable_that_nobody_has(dists: Dists, monkeypatch: pytest.MonkeyPatch) -> None:
    dists.add("one-plugin", points={"models": {"x": "m:x"}})
    assert plugins.not_installed() == []
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "one_plugin,Other.One")
    assert plugins.not_installed() == ["other-one"]


@pytest.mark.parametrize("version", [None, 0, plugins.API_VERSION])
def test_a_plugin_for_this_version_or_an_earlier_one(dists: Dists, version: int | None) -> None:
    dists.strategy(api=version)
    assert plugins.api_version("my-plugin") == (None if version is None else str(version))
    assert plugins.api_problem("my-plugin") is None


def test_a_plugin_for_a_later_version(dists: Dists) -> None:
    later = plugins.API_VERSION + 1
    dists.strategy(api=later)
    assert plugins.api_problem("my-plugin") == (
        f"my-plugin is written for version {later} of the plugin API, and this scalebench has {plugins.API_VERSION}: "
        "upgrade scalebench, or install an earlier my-plugin"
    )
    assert plugins.api_problem("another-plugin") is None


def test_a_version_that_is_no_number(dists: Dists) -> None:
    dists.add(points={"models": {"x": "m:x"}, "api": {"one": "m"}})
    assert plugins.api_problem("my-plugin") == (
        "my-plugin says that it is written for version 'one' of the plugin API, which is no number"
    )


def refused(dists: Dists, code: str, target: str = "mod:x") -> PluginError:
    dists.add(files={"mod.py": code})
    with pytest.raises(PluginError) as caught:
        plugins.load(target, "model 'x' of my-plugin")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module_x\nx = 1", "No module named 'no_such_module_x'"),
        ("y = 1", "module 'mod' has no attribute 'x'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\n  lines')", "ValueError: two lines"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
        ("import pytest\npytest.skip('not here', allow_module_level=True)", "Skipped: not here"),
        ("x = (", "SyntaxError: '(' was never closed (mod.py, line 1)"),
        ("raise RuntimeError('long ' * 1000)", f"RuntimeError: {'long ' * 60}"),
    ],
)
def test_what_cannot_be_loaded_is_one_line_with_its_traceback(dists: Dists, code: str, reason: str) -> None:
    error = refused(dists, code)
    assert str(error) == f"model 'x' of my-plugin cannot be loaded from mod:x: {reason}"
    assert (error.log.startswith("Traceback") and "mod.py" in error.log) or "no attribute" in reason


def test_a_target_without_a_name(dists: Dists) -> None:
    assert str(refused(dists, "", "mod")) == (
        "model 'x' of my-plugin cannot be loaded from mod: it should be MODULE:NAME"
    )


def test_somebody_who_presses_ctrl_c_is_no_fault_of_a_plugin(dists: Dists) -> None:
    dists.add(files={"mod.py": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        plugins.load("mod:x", "model 'x'")


def test_prints_go_to_the_error_output_or_where_asked(dists: Dists, capsys: pytest.CaptureFixture[str]) -> None:
    dists.add(files={"mod.py": "print('hello')\nx = 1\n"})
    assert plugins.load("mod:x", "model 'x'") == 1
    assert capsys.readouterr() == ("", "hello\n")
    dists.forget_modules()
    output = io.StringIO()
    plugins.load("mod:x", "model 'x'", output)
    assert (output.getvalue(), capsys.readouterr()) == ("hello\n", ("", ""))


def test_children_know_the_distributions_too(dists: Dists) -> None:
    dists.strategy()
    code = "from scalebench.strategies import registry\nprint(registry.load('mine').__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("my_plugin.code\n", "")
