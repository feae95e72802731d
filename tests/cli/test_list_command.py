"""`scalebench list`: what can be named, in groups, and whether a strategy runs here."""

import shutil

import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.cli.commands import list as list_command
from scalebench.config import horovod_build
from scalebench.core import config_files
from scalebench.core.config_files import LIST_KINDS
from scalebench.core.machine import machine
from scalebench.strategies import registry
from tests.builders.plugins import dists as dists
from tests.builders.plugins import strategy_yaml


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
    assert lines[0] == "data parallel, PyTorch" and list(entries)[:2] == ["ddp", "lightning_ddp"]
    assert list_command.OTHERS not in lines, "each built-in strategy has a group"
    hidden = entries.keys() - read_list(capsys, "strategies")[1].keys()
    assert {"kuza55_ps_cpu", "avolkov1_ps_gpu", "multi_gpu_model", "simulated"} <= hidden and "ddp" not in hidden


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
    assert (
        settings["strategy.options.static_graph"].startswith("false true: ")
        and settings["strategy.baseline"] == "bare_torch"
    )
    assert "strategy.launcher" not in settings, "as every other"
    lines, _ = read_list(capsys, "sweeps", "batch_size")
    assert lines[1].startswith("From which batch on a larger one gains nothing: ") and lines[2] == ""
    assert any(line.startswith("train.batch_per_device") for line in lines)
    assert "dataset                 imagenet_synthetic" in [
        line.strip() for line in read_list(capsys, "models", "vgg16")[0]
    ]


def test_a_comment_below_its_key_belongs_to_it():
    head, beside = config_files.read_comments(config_files.list_options("dataset")["custom"])
    assert head.startswith("Samples of your own, ")
    assert "fixed: the same batch in every step" in beside["feed"], "which is on the next line"
    _, beside = config_files.read_comments(config_files.list_options("strategy")["pipeline_1f1b"])
    assert beside["options.micro_batches"].startswith("number of equal parts"), "which is on the line above"
    assert beside["options.split"].endswith("or bytes of weights"), "which is on the next line, indented"


def test_broken_plugins_have_their_line_and_hide_no_other(dists, capsys):
    dists.strategy("sound", "sound-plugin", code="raise SystemExit")  # which nobody imports here
    dists.strategy("unreadable", "u-plugin", yaml="a: [")
    dists.strategy("unknown", "k-plugin", yaml="name: unknown\nframewrk: none\n")
    dists.strategy("lonely", "l-plugin", yaml=None)
    dists.strategy("ddp", "d-plugin", yaml=strategy_yaml("ddp"))
    lines, entries = read_list(capsys, "strategies")
    assert lines.index("from sound-plugin") == next(i for i, line in enumerate(lines) if line.startswith("  sound")) - 1
    assert entries["sound"].startswith("yes") and entries["bare_torch"].startswith("yes")
    notes = dict(line.split(": ", 1) for line in lines if line.startswith("no ("))
    reasons = {name: notes[entries[name][: len("no (1)")]] for name in ("ddp", "lonely", "unreadable", "unknown")}
    assert "strategy 'ddp' is registered by both scalebench and d-plugin; " in reasons["ddp"]
    assert "strategy 'lonely': l-plugin registers it and brings no strategy/lonely.yaml" in reasons["lonely"]
    for name, reason in {"unreadable": "cannot be read: ", "unknown": "framewrk"}.items():
        assert f"{name}.yaml" in reasons[name] and reason in reasons[name]
    assert main(["list", "strategies", "lonely"]) == 2
    assert "brings no strategy/lonely.yaml" in capsys.readouterr().err


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name == "torch"])
    lines, entries = read_list(capsys, "strategies")
    files = config_files.list_options("strategy")
    need_it = [name for name, path in files.items() if "torch" in OmegaConf.load(path).requires]
    assert len(need_it) > 8
    assert sorted(name for name, text in entries.items() if text.startswith("needs torch ")) == sorted(need_it)
    assert f"needs torch: {registry.INSTALL_HINTS['torch']}" in lines
    assert entries["ddp_nccl"].startswith("needs torch"), "before the GPU that is missing, too"


NO_TENSORFLOW = "Horovod 0.28.1 was built without TensorFlow"
NO_NCCL = "Horovod 0.28.1 was built without NCCL: "
NO_MPIRUN = "horovod_mpi is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"


@pytest.mark.parametrize(
    ("gpus", "here"),
    [
        (0, {"horovod_gloo": "yes", "horovod_mpi": NO_MPIRUN, "horovod_nccl": "needs GPUs"}),
        (2, {"horovod_gloo": "yes", "horovod_mpi": NO_MPIRUN, "horovod_nccl": NO_NCCL, "ddp_nccl": "yes"}),
        (2, {"lightning_horovod": "yes", "horovod_tensorflow_gloo": NO_TENSORFLOW}),
    ],
)  # fmt: skip
def test_strategies_of_horovod_depend_on_its_build(monkeypatch, capsys, gpus, here):
    """Horovod 0.28.1 for PyTorch with MPI, Gloo and CUDA, and no mpirun."""
    builds = {
        "torch": horovod_build.HorovodBuild("0.28.1", "2.13.0", ("mpi", "gloo", "cuda"), None),
        "tensorflow": horovod_build.HorovodBuild("0.28.1", None, (), NO_TENSORFLOW),
    }
    monkeypatch.undo()
    monkeypatch.setattr(horovod_build, "inspect_horovod", builds.__getitem__)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    lines, entries = read_list(capsys, "strategies")
    notes = dict(line.split(": ", 1) for line in lines if line.startswith("no ("))
    for name, message in here.items():
        label = entries[name].partition("  ")[0]
        assert notes.get(label, label).startswith(message)
