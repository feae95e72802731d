"""Entry points of other packages: which are enabled, and imports that fail."""

import io
import sys

import pytest

from scalebench.core import plugins
from scalebench.core.errors import PluginError
from scalebench.core.plugins import PluginEntry
from tests.builders.plugins import clear_plugin_caches
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


def test_the_variable_enables_plugins(dists, monkeypatch):
    added = {"one-plugin": "x", "two-plugin": "y"}
    for dist, name in added.items():
        dists.add(dist, points={"models": {name: f"m:{name}"}})
    monkeypatch.delenv("SCALEBENCH_PLUGINS")
    for variable, names in {
        None: {"x", "y"}, "": set(), "one-plugin": {"x"}, " One_Plugin , two.plugin ": {"x", "y"}, "one": set(),
        "one-plugin-too,two-plugin": {"y"},
    }.items():  # fmt: skip
        if variable is not None:
            monkeypatch.setenv("SCALEBENCH_PLUGINS", variable)
        clear_plugin_caches()
        assert {entry.name for entry in plugins.plugin_entries("models") if entry.origin in added} == names
        assert {name for origin, name in added.items() if origin not in plugins.disabled_plugins()} == names
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "one_plugin,Other.One")
    assert plugins.missing_plugins() == ["other-one"]


def test_the_version_that_a_plugin_is_written_for(dists):
    now, later = plugins.API_VERSION, plugins.API_VERSION + 1
    for number, (version, problem) in enumerate({
        None: None, 0: None, now: None,
        later: f" is written for version {later} of the plugin API, and this scalebench has {now}: upgrade scalebench, "
               "or install an earlier ",
        "one": " says that it is written for version 'one' of the plugin API, which is no number",
    }.items()):  # fmt: skip
        name = f"plugin{number}"
        points = {"models": {"x": "m:x"}} | ({} if version is None else {"api": {str(version): "m"}})
        dists.add(name, points=points)
        assert plugins.requested_api_version(name) == (None if version is None else str(version))
        expected = problem and f"{name}{problem}" + (name if version == later else "")
        assert plugins.api_problem(name) == expected
    assert plugins.api_problem("another-plugin") is None


def test_a_failed_import_is_one_line_with_its_traceback(dists, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file changes within the tick of a clock
    ends = (
        "mod ends the program when it is imported (SystemExit: bye); what it runs, or reads from the command line, "
        'should be under `if __name__ == "__main__":`'
    )
    file = dists.add(files={"mod.py": ""}) / "mod.py"
    for code, reason in {
        "import no_such_module_x\nx = 1": "No module named 'no_such_module_x'",
        "y = 1": "module 'mod' has no attribute 'x'",
        "1 / 0": "ZeroDivisionError: division by zero",
        "raise ValueError('two\\n  lines')": "ValueError: two lines",
        "import sys\nsys.exit('bye')": ends,
        "import pytest\npytest.skip('not here', allow_module_level=True)": "Skipped: not here",
        "x = (": "SyntaxError: '(' was never closed (mod.py, line 1)",
        "raise RuntimeError('long ' * 1000)": f"RuntimeError: {'long ' * 60}",
    }.items():
        file.write_text(code)
        dists.forget_modules()
        with pytest.raises(PluginError) as caught:
            plugins.load_object("mod:x", "model 'x' of my-plugin")
        assert str(caught.value) == f"model 'x' of my-plugin cannot be loaded from mod:x: {reason}"
        log = caught.value.log
        assert (log.startswith("Traceback") and "mod.py" in log) or "no attribute" in reason
    with pytest.raises(PluginError, match=r"^model 'x' cannot be loaded from mod: it should be MODULE:NAME$"):
        plugins.load_object("mod", "model 'x'")
    file.write_text("raise KeyboardInterrupt")
    dists.forget_modules()
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
