"""YAML files, built-in and of plugins, and which can be used; entry points of other packages, and failed imports."""

import dataclasses
import sys

import pytest

from scalebench.config.compose import compose_config
from scalebench.config.error_messages import EXPECTED_ERRORS, explain_error
from scalebench.config.resolve import resolve
from scalebench.core import config_files, plugins
from scalebench.core.errors import PluginError
from scalebench.strategies import registry
from tests.builders.plugins import clear_plugin_caches, strategy_yaml
from tests.builders.plugins import dists as dists
from tests.fuzz.command_line import run_line

FOLDER = {"configs": {"a": "a.conf"}}


def test_the_yaml_of_an_enabled_plugin_is_found(dists, monkeypatch):
    files = config_files.find_config_files()
    assert (files.folders, files.warnings) == ([], [])
    assert config_files.list_groups() == ["dataset", "hardware", "measure", "model", "strategy", "sweep", "train"]
    assert config_files.strategy_option_defaults("simulated")["step_s"] == 0.001
    root = dists.strategy(options={"step_s": 0.25, "mode": "fast"})
    assert config_files.plugin_folders() == [("my-plugin", root / "my_plugin" / "conf")]
    assert config_files.list_options("strategy")["mine"] == root / "my_plugin/conf/strategy/mine.yaml"
    assert config_files.strategy_option_defaults("mine") == {"step_s": 0.25, "mode": "fast"}
    origins = [config_files.file_origin("strategy", name) for name in ("mine", "ddp", "other")]
    assert origins == ["my-plugin", "scalebench", None]
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
    config_files.find_config_files.cache_clear()
    assert config_files.plugin_folders() == []


def test_folders_are_found_without_importing_anything(dists):
    """Also below packages with side effects, and in one without __init__.py."""
    deep = {"big/__init__.py": "raise SystemExit\n", "big/part/__init__.py": "raise SystemExit\n"}
    files = {**deep, "big/part/conf/sweep/s.yaml": "", "spaced/conf/sweep/t.yaml": ""}
    root = dists.add("a-dist", files, {"configs": {"a": "big.part.conf", "b": "spaced.conf", "c": "spaced.conf"}})
    assert config_files.plugin_folders() == [("a-dist", root / "big/part/conf"), ("a-dist", root / "spaced/conf")]
    assert {"s", "t"} < config_files.list_options("sweep").keys()
    assert "big" not in sys.modules and config_files.find_config_files().warnings == []


def test_a_plugin_without_its_folder(dists):
    packages = ["not_there", "p.not_there", "not_there.conf", "p.code", "p..conf", "p:conf", ""]
    points = {"configs": {f"p{number}": package for number, package in enumerate(packages)}}
    dists.add("my-plugin", {"p/__init__.py": "", "p/code.py": "", "p/conf/x.txt": ""}, points)
    assert config_files.plugin_folders() == []
    assert sorted(config_files.find_config_files().warnings) == sorted(
        f"plugin my-plugin registers the config package '{package}', which is not there: its YAML files are left out"
        for package in packages
    )


def test_a_built_in_yaml_cannot_be_shadowed(dists):
    named = ["strategy/ddp", "hardware/local", "model/resnet50", "dataset/materials"]
    others = ["config", "measure/quick", "sweep/demo", "train/default"]
    files = {f"a/conf/{name}.yaml": strategy_yaml(name.partition("/")[2]) for name in named}
    dists.add("a", {"a/__init__.py": "", **files, **{f"a/conf/{name}.yaml": "" for name in others}}, FOLDER)
    both = "{}.yaml comes from both scalebench and a; uninstall one of them or set SCALEBENCH_PLUGINS"
    found = config_files.find_config_files()
    assert [config_files.find_conflict(*name.split("/")) for name in named] == [both.format(name) for name in named]
    assert config_files.find_conflict("strategy", "ddp_gloo") is config_files.find_conflict("strategy", "none") is None
    until = "; until then the one of scalebench counts"
    assert sorted(found.warnings) == [f"{both.format(name)}{until}" for name in others]
    for name in named:
        group, stem = name.split("/")
        assert config_files.list_options(group)[stem] == config_files.conf_dir() / f"{name}.yaml"
    for dist in ("first", "second"):
        dists.add(dist, {f"{dist}/conf/hardware/h.yaml": "# a comment\nname: h\n"}, {"configs": {dist: f"{dist}.conf"}})
    line = "hardware/h.yaml comes from both first and second; uninstall one of them or set SCALEBENCH_PLUGINS"
    assert config_files.find_conflict("hardware", "h") == line


def test_a_plugins_yaml_inherits_from_ours_and_states_what_differs(dists):
    yaml = "defaults: [ddp_gloo]\nname: mine\noptions: {share: 0.1}\nat_least: {share: 0}\ndevices: [cpu]\n"
    path = dists.strategy(yaml=yaml) / "my_plugin/conf/strategy/mine.yaml"
    composed = compose_config(["strategy=mine"]).strategy
    assert dataclasses.asdict(composed) == config_files.read_strategy_config("mine")
    assert (composed.backend, composed.requires, composed.devices) == ("gloo", ["torch"], ["cpu"])
    assert composed.options == {"share": 0.1, **config_files.strategy_option_defaults("ddp")}
    assert "buckets of this size" in config_files.read_key_comments("strategy", path)["options.bucket_cap_mb"]
    for broken in ("[mine, _self_]", "[absent, _self_]", "ddp", "{ddp: 1}"):  # Hydra says what is wrong
        path.write_text(yaml.replace("[ddp_gloo]", broken))
        assert config_files.read_composed("strategy", path)["options"] == {"share": 0.1}


def test_the_name_in_a_file_and_an_invalid_one_is_named(dists):
    path = dists.add(files={"x.yaml": ""}) / "x.yaml"
    for text, name in {
        "name: mine\n": "mine",
        "# name: other\ndefaults: [x]\nname: 'mine' # so\n": "mine",
        '{\n "name": "mine"}': "mine",
        '{"name": "mine"}': "mine",
        "filename: x": None,
        "": None,
    }.items():
        path.write_text(text)
        assert config_files.read_name(path) == name
    for text in ("a: [", "- 1", "\0", "a: ${", "a: " + "[" * 1000):
        path.write_text(text)
        with pytest.raises(PluginError, match=rf"^{path} cannot be read: [^\n]+$"):
            config_files.read_yaml(path)


def test_a_conflict_fails_only_its_runs_and_warnings_appear_once(dists):
    dists.add("a", {"a/conf/strategy/ddp.yaml": strategy_yaml("ddp"), "a/conf/sweep/demo.yaml": ""}, FOLDER)
    clear_plugin_caches()
    first, second = (run_line([f"strategy={name}", "gpus=1", "dry_run=true"]) for name in ("simulated", "ddp"))
    problem = "strategy/ddp.yaml comes from both scalebench and a; uninstall one of them or set SCALEBENCH_PLUGINS"
    assert f"[1/1] ddp gpus=1: will fail: {problem}" in second.out.splitlines() and "will fail" not in first.out
    assert (first.status, second.status, second.err) == (0, 1, "")
    assert first.err == (
        "scalebench: sweep/demo.yaml comes from both scalebench and a; uninstall one of them or "
        "set SCALEBENCH_PLUGINS; until then the one of scalebench counts\n"
    )


def test_only_runs_of_a_broken_file_are_refused_until_it_is_repaired(dists):
    root = dists.strategy()
    file, overrides = root / "my_plugin/conf/strategy/mine.yaml", ["strategy=mine", "gpus=1", "hardware=cpu"]
    for text in ("a: [", "- 1", "name: mine\nnamex: 1", "name: [1]"):
        file.write_text(text)
        clear_plugin_caches()
        with pytest.raises(EXPECTED_ERRORS) as caught:
            compose_config(overrides)
        assert "mine.yaml" in explain_error(caught.value, overrides)
        assert resolve(compose_config(["strategy=simulated", *overrides[1:]])).plugin_error is None
        assert "mine" in registry.strategy_entries()
    file.write_text(strategy_yaml("mine"))
    clear_plugin_caches()
    assert resolve(compose_config(overrides)).config.strategy.description == "a plugin's own"


def test_entries_of_a_kind_are_in_order_and_imported_by_none(dists):
    dists.add("b-dist", {"b.py": "raise SystemExit"}, {"models": {"z": "b:z", "a": "b : a [extra]"}}, version="3.1")
    dists.add("a-dist", {"a.py": "raise SystemExit"}, {"models": {"z": "a:z"}, "datasets": {"d": "a:d"}})
    assert plugins.plugin_entries("models") == (
        plugins.PluginEntry("models", "a", "b:a", "b-dist", "3.1"),
        plugins.PluginEntry("models", "z", "a:z", "a-dist", "1.0"),
        plugins.PluginEntry("models", "z", "b:z", "b-dist", "3.1"),
    )
    assert [entry.name for entry in plugins.plugin_entries("datasets")] == ["d"]
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


def test_output_of_an_import_goes_to_standard_error(dists, capsys):
    dists.add(files={"mod.py": "print('hello')\nx = 1\n"})
    assert plugins.load_object("mod:x", "model 'x'") == 1
    assert capsys.readouterr() == ("", "hello\n")
