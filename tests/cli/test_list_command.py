"""`scalebench list` and `scalebench plugins`: what can be named, whether it runs here, and whether plugins load."""

import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.__main__ import main
from scalebench.cli.commands import list as list_command
from scalebench.cli.commands import plugins as plugins_command
from scalebench.config import horovod_build
from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core import config_files, plugins
from scalebench.core.config_files import LIST_KINDS
from scalebench.core.machine import machine
from scalebench.strategies import registry
from tests.builders.plugins import CODE, strategy_yaml
from tests.builders.plugins import dists as dists


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """A machine without a GPU where every package is installed, and Horovod is built for all."""
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    monkeypatch.setattr(horovod_build, "find_horovod_problem", lambda *message: None)
    monkeypatch.setattr(shutil, "which", lambda name, **where: f"/usr/bin/{name}")
    registry.strategy_entries.cache_clear()


def read_list(capsys, *arguments):
    """(all lines, what follows each name) of `scalebench list ARGUMENTS`."""
    assert main(["list", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines, {line.split()[0]: line.strip().partition(" ")[2].strip() for line in lines if line.startswith("  ")}


def test_every_strategy_is_listed_once_and_the_common_ones_first(capsys):
    lines, entries = read_list(capsys, "strategies", "--all")
    assert sorted(entries) == sorted(registry.strategy_entries())
    assert lines[0] == "your own program" and list(entries)[:3] == ["script", "ddp", "lightning_ddp"]
    assert list_command.OTHERS not in lines, "each built-in strategy has a group"
    hidden = entries.keys() - read_list(capsys, "strategies")[1].keys()
    assert {"kuza55_ps_cpu", "avolkov1_ps_gpu", "multi_gpu_model", "simulated"} <= hidden and "ddp" not in hidden
    # A comment below its key belongs to it.
    custom = config_files.list_options("dataset")["custom"]
    assert config_files.read_comments(custom)[0].startswith("Samples of your own, ")
    beside = config_files.read_key_comments("dataset", custom)
    assert "fixed: the same batch in every step" in beside["feed"], "which is on the next line"
    beside = config_files.read_key_comments("strategy", config_files.list_options("strategy")["pipeline_1f1b"])
    assert beside["options.micro_batches"].startswith("number of equal parts"), "which is on the line above"
    assert beside["options.split"].endswith("or bytes of weights"), "which is on the next line, indented"


@pytest.mark.parametrize("kind", LIST_KINDS)
def test_each_kind_and_each_entry_of_it(capsys, kind):
    _, entries = read_list(capsys, kind, "--all")
    group = LIST_KINDS[kind]
    assert set(config_files.list_options(group)) == set(entries)
    assert all(entries.values()), "each has a description"
    for name in entries:
        detail, _ = read_list(capsys, kind, name)
        assert detail[0] == f"{group}={name}" and detail[-1].endswith(f"{name}.yaml")
    overview, _ = read_list(capsys)
    (line,) = [line for line in overview if line.startswith(f"{kind} ")]
    assert int(line.split()[1]) == len(entries)


def test_an_entry_has_its_options_with_defaults_and_remarks(capsys):
    lines, _ = read_list(capsys, "strategies", "ddp")
    assert "here: yes" in lines
    settings = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.startswith("strategy.")}
    remark = "25.0 gradients are synchronized in buckets of this size; at least 0"
    assert settings["strategy.options.bucket_cap_mb"] == remark
    assert settings["strategy.options.static_graph"].startswith("false true: ")
    assert settings["strategy.baseline"] == "bare_torch"
    assert "strategy.launcher" not in settings, "as every other"
    lines, _ = read_list(capsys, "sweeps", "batch_size")
    assert lines[1].startswith("From which batch on a larger one gains nothing: ") and lines[2] == ""
    assert any(line.startswith("train.batch_per_device") for line in lines)
    lines, _ = read_list(capsys, "models", "vgg16")
    assert "dataset                 imagenet_synthetic" in [line.strip() for line in lines]


def test_broken_plugins_have_their_line_and_hide_no_other(dists, capsys):
    title = strategy_yaml("sound", description="a \x1b]0;title\x07 of a terminal")
    dists.strategy("sound", "sound-plugin", yaml=title, code="raise SystemExit")  # which nobody imports here
    dists.strategy("unreadable", "u-plugin", yaml="a: [")
    dists.add("l-plugin", points={"models": {"lonely": "l:build"}})
    dists.strategy("ddp", "d-plugin")
    lines, entries = read_list(capsys, "strategies")
    assert lines.index("from sound-plugin") == next(i for i, line in enumerate(lines) if line.startswith("  sound")) - 1
    assert "a \N{REPLACEMENT CHARACTER}]0;title" in entries["sound"] and not {"\x1b", "\x07"} & set("".join(lines))
    assert entries["sound"].startswith("yes") and entries["bare_torch"].startswith("yes")
    notes = dict(line.split(": ", 1) for line in lines if line.startswith("no ("))
    reasons = {name: notes[entries[name][: len("no (1)")]] for name in ("ddp", "unreadable")}
    assert "strategy/ddp.yaml comes from both scalebench and d-plugin; " in reasons["ddp"]
    assert "unreadable.yaml cannot be read: " in reasons["unreadable"]
    assert main(["list", "models", "lonely"]) == 2
    assert "brings no model/lonely.yaml" in capsys.readouterr().err
    dists.strategy("listed", "s-plugin", yaml="- 1")
    faults = [plugins_command.find_fault(point) for point in plugins_command.list_allowed_points()]
    for part in ("unreadable.yaml cannot be read: ", "it should have keys with values"):
        assert any(part in (fault or "") for fault in faults), faults


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name == "torch"])
    lines, entries = read_list(capsys, "strategies")
    names = config_files.list_options("strategy")
    need_it = [name for name in names if "torch" in config_files.read_strategy_config(name)["requires"]]
    assert len(need_it) > 8
    assert sorted(name for name, text in entries.items() if text.startswith("needs torch ")) == sorted(need_it)
    assert f"needs torch: {registry.INSTALL_HINTS['torch']}" in lines
    assert entries["ddp_nccl"].startswith("needs torch"), "before the GPU that is missing, too"


NO_TENSORFLOW = "Horovod 0.28.1 was built without TensorFlow"
NO_MPIRUN = "horovod_mpi is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"


@pytest.mark.parametrize(("gpus", "nccl"), [(0, "needs GPUs"), (2, "yes")])
def test_strategies_of_horovod_depend_on_its_build(monkeypatch, capsys, gpus, nccl):
    """Horovod 0.28.1 for PyTorch, and no mpirun."""
    monkeypatch.undo()
    monkeypatch.setattr(horovod_build, "find_build_problem", {"torch": None, "tensorflow": NO_TENSORFLOW}.get)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    lines, entries = read_list(capsys, "strategies")
    notes = dict(line.split(": ", 1) for line in lines if line.startswith("no ("))
    for name, message in {
        "horovod_gloo": "yes", "horovod_mpi": NO_MPIRUN, "horovod_nccl": nccl, "lightning_horovod": "yes",
        "horovod_tensorflow_gloo": NO_TENSORFLOW, "ddp_nccl": "yes" if gpus else "needs GPUs",
    }.items():  # fmt: skip
        label = entries[name].partition("  ")[0]
        assert notes.get(label, label).startswith(message), name


# `scalebench plugins`: which plugins are installed, and whether they load.
ODD = "def build(network, outputs): ...\n"


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


def test_disabled_plugins_are_named_and_not_loaded(dists, list_plugins, monkeypatch):
    # Without plugins a line explains how to make one.
    status, lines = list_plugins()
    assert (status, lines) == (
        0, [["no plugins are installed; `scalebench new` makes one: docs/guides/plugins.md"]]
    )  # fmt: skip
    # Disabled plugins are named and not loaded.
    dists.strategy(code="open('loaded', 'w').close()\n")
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "")
    assert list_plugins() == (0, [["left out by SCALEBENCH_PLUGINS: my-plugin"]])
    monkeypatch.setenv("SCALEBENCH_PLUGINS", "no-such,  ")
    status, lines = list_plugins()
    assert (status, lines[-1]) == (1, ["SCALEBENCH_PLUGINS names no-such, and no plugin of that name is installed"])
    assert not Path("loaded").exists()


def test_each_entry_point_has_a_line(dists, list_plugins):
    dists.strategy()
    dists.add(
        "odd-plugin",
        {"odd/__init__.py": "", "odd/nets.py": ODD, "odd/conf/model/odd_net.yaml": "name: odd_net\n"},
        {"models": {"odd_net": "odd.nets:build"}, "configs": {"odd": "odd.conf"}},
        version="2.5",
    )
    dists.strategy("broken", "broken-plugin", code=f"1 / 0\n{CODE}")
    status, lines = list_plugins()
    assert status == 1
    assert lines[0] == ["plugin", "version", "adds", "name", "from", "loads"]
    by = {(line[0], line[2]): line for line in lines[1:]}
    assert len(by) == len(lines) - 1 == 6
    assert by["my-plugin", "strategy"][:6] == ["my-plugin", "1.0", "strategy", "mine", "my_plugin.code:Mine", "ok"]
    assert by["my-plugin", "YAML files"][3:] == ["my_plugin", "my_plugin.conf", "ok"]
    assert by["odd-plugin", "model"][1:6] == ["2.5", "model", "odd_net", "odd.nets:build", "ok"]
    assert by["broken-plugin", "strategy"][5] == (
        "strategy 'broken' of broken-plugin cannot be loaded from broken_plugin.code:Mine: "
        "ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize(("group", "function"), [("dataset", "builder"), ("model", "torch")])
def test_a_model_or_data_set_that_nothing_makes_is_a_fault(dists, list_plugins, group, function):
    """Its package has forgotten the entry point; one whose file names a function needs none."""
    files = {"a/__init__.py": "", f"a/conf/{group}/mine.yaml": "name: mine\n"}
    files[f"a/conf/{group}/other.yaml"] = f"name: other\n{function}: a:make\n"
    dists.add(files=files, points={"configs": {"a": "a.conf"}})
    status, lines = list_plugins()
    text = " ".join(" ".join(line) for line in lines)
    line = (
        f"{group} 'mine': my-plugin brings {group}/mine.yaml, which no function makes: "
        f'add the entry point mine = "MODULE:FUNCTION" in scalebench.{group}s, and install it again'
    )
    assert status == 1 and line in text and "'other'" not in text
    assert resolve(compose_config([f"{group}=mine"])).plugin_error == line  # a failed row, as of a strategy
