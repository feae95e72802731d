"""Entry points of other packages: which are enabled, and imports that fail."""

import io
import sys

import pytest

from scalebench.core import plugins
from scalebench.core.errors import PluginError
from scalebench.core.plugins import PluginEntry
from tests.builders.plugins import dists as dists


def test_entries_of_a_kind_are_in_order_and_imported_by_none(dists):
    dists.add("b-dist", {"b.py": "raise SystemExit"}, {"models": {"z": "b:z", "a": "b : a [extra]"}}, version="3.1")
    dists.add("a-dist", {"a.py": "raise SystemExit"}, {"models": {"z": "a:z"}, "datasets": {"d": "a:d"}})
    assert plugins.plugin_entries("models") == (
        PluginEntry("models", "a", "b:a", "b-dist", "3.1"),
        PluginEntry("models", "z", "a:z", "a-dist", "1.0"),
        PluginEntry("models", "z", "b:z", "b-dist", "3.1"),
    )
    assert [entry.name for entry in plugins.plugin_entries("datasets")] == ["d"]
    assert plugins.plugin_entries("strategies") == ()
    assert plugins.installed_plugins()["b-dist"] == "3.1"
    assert not {"a", "b"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, {"x", "y"}),
        ("", set()),
        ("one-plugin", {"x"}),
        (" One_Plugin , two.plugin ", {"x", "y"}),
        ("one", set()),
        ("one-plugin-too,two-plugin", {"y"}),
    ],
)
def test_the_variable_enables_plugins(dists, monkeypatch, variable, names):
    dists.add("one-plugin", points={"models": {"x": "m:x"}})
    dists.add("two-plugin", points={"models": {"y": "m:y"}})
    if variable is None:
        monkeypatch.delenv("SCALEBENCH_PLUGINS")
    else:
        monkeypatch.setenv("SCALEBENCH_PLUGINS", variable)
    added = {"one-plugin": "x", "two-plugin": "y"}
    assert {entry.name for entry in plugins.plugin_entries("models") if entry.origin in added} == names
    assert {name for origin, name in added.items() if origin not in plugins.disabled_plugins()} == names


def test_names_in_the_variable_without_a_plugin(dists, monkeypatch):
    dists.add("one-plugin", points={"models": {"x": "m:x"}})
    assert plugins.missing_plugins() == []
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "one_plugin,Other.One")
    assert plugins.missing_plugins() == ["other-one"]


LATER = plugins.API_VERSION + 1


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (None, None),
        (0, None),
        (plugins.API_VERSION, None),
        (
            LATER,
            f"my-plugin is written for version {LATER} of the plugin API, and this scalebench has "
            f"{plugins.API_VERSION}: upgrade scalebench, or install an earlier my-plugin",
        ),
        ("one", "my-plugin says that it is written for version 'one' of the plugin API, which is no number"),
    ],
)
def test_the_version_that_a_plugin_is_written_for(dists, version, problem):
    dists.add(points={"models": {"x": "m:x"}} | ({} if version is None else {"api": {str(version): "m"}}))
    assert plugins.requested_api_version("my-plugin") == (None if version is None else str(version))
    assert plugins.api_problem("my-plugin") == problem
    assert plugins.api_problem("another-plugin") is None


def load_error(dists, code, target="mod:x"):
    dists.add(files={"mod.py": code})
    with pytest.raises(PluginError) as caught:
        plugins.load_object(target, "model 'x' of my-plugin")
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module_x\nx = 1", "No module named 'no_such_module_x'"),
        ("y = 1", "module 'mod' has no attribute 'x'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\n  lines')", "ValueError: two lines"),
        (
            "import sys\nsys.exit('bye')",
            "mod ends the program when it is imported (SystemExit: bye); what it runs, or reads from the command line, "
            'should be under `if __name__ == "__main__":`',
        ),
        ("import pytest\npytest.skip('not here', allow_module_level=True)", "Skipped: not here"),
        ("x = (", "SyntaxError: '(' was never closed (mod.py, line 1)"),
        ("raise RuntimeError('long ' * 1000)", f"RuntimeError: {'long ' * 60}"),
    ],
)
def test_a_failed_import_is_one_line_with_its_traceback(dists, code, reason):
    error = load_error(dists, code)
    assert str(error) == f"model 'x' of my-plugin cannot be loaded from mod:x: {reason}"
    assert (error.log.startswith("Traceback") and "mod.py" in error.log) or "no attribute" in reason


def test_a_target_without_a_name(dists):
    assert str(load_error(dists, "", "mod")) == (
        "model 'x' of my-plugin cannot be loaded from mod: it should be MODULE:NAME"
    )


def test_ctrl_c_is_no_fault_of_a_plugin(dists):
    dists.add(files={"mod.py": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        plugins.load_object("mod:x", "model 'x'")


def test_output_of_an_import_goes_to_standard_error_or_elsewhere(dists, capsys):
    dists.add(files={"mod.py": "print('hello')\nx = 1\n"})
    assert plugins.load_object("mod:x", "model 'x'") == 1
    assert capsys.readouterr() == ("", "hello\n")
    dists.forget_modules()
    output = io.StringIO()
    plugins.load_object("mod:x", "model 'x'", output)
    assert (output.getvalue(), capsys.readouterr()) == ("hello\n", ("", ""))
