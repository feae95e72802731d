"""`scalebench strategies`: the registered strategies, their origin, and whether they run here."""

from __future__ import annotations

import shutil

import pytest
from omegaconf import OmegaConf

from scalebench.__main__ import main
from scalebench.config import horovod_build
from scalebench.core import config_files
from scalebench.core.machine import machine
from scalebench.strategies import registry
from tests.builders.plugins import Distributions, strategy_yaml
from tests.builders.plugins import dists as dists


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Name -> its line, as on a machine without a GPU where PyTorch is installed and nothing else is."""
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    missing = {"horovod", "tensorflow"}
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name in missing])
    registry.strategy_entries.cache_clear()
    assert main(["strategies"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].split("  ")[-1].strip() == "here (cpu)"
    return {line.split()[0]: line for line in lines[2:] if line and not line.startswith("─")}


def test_every_registered_strategy_has_one_line_in_order(listed: dict[str, str]) -> None:
    assert list(listed) == sorted(registry.strategy_entries())
    assert "no framework: sleeps and fails as its options say" in listed["simulated"]
    assert all(" scalebench " in line for line in listed.values())


NO_HOROVOD = "no: horovod is not installed (scalebench install horovod)"


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("simulated", "yes"),
        ("ddp_gloo", "yes"),
        ("ddp_nccl", "no: needs cuda"),
        ("horovod_nccl", NO_HOROVOD),
        ("mirrored", "no: tensorflow is not installed (pip install 'scalebench-train[tensorflow]')"),
    ],
)
def test_whether_it_can_run_here(listed: dict[str, str], name: str, here: str) -> None:
    assert listed[name].endswith(f"  {here}")


def test_broken_plugins_have_their_line_and_hide_no_other(
    dists: Distributions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    monkeypatch.setattr(horovod_build, "find_horovod_problem", lambda *message: None)
    dists.strategy("sound", "sound-plugin", code="raise SystemExit")  # which nobody imports here
    dists.strategy("unreadable", "u-plugin", yaml="a: [")
    dists.strategy("unknown", "k-plugin", yaml="name: unknown\nframewrk: none\n")
    dists.strategy("lonely", "l-plugin", yaml=None)
    dists.strategy("ddp", "d-plugin", yaml=strategy_yaml("ddp"))
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line.strip() for line in out.splitlines() if line.strip()}
    assert lines["sound"].split("  ")[-1].strip() == "yes" and " sound-plugin " in lines["sound"]
    assert lines["bare_torch"].endswith("  yes")
    assert "no: strategy 'ddp' is registered by both scalebench and d-plugin; " in lines["ddp"]
    assert "no: strategy 'lonely': l-plugin registers it and brings no strategy/lonely.yaml" in lines["lonely"]
    for name, reason in {"unreadable": "cannot be read: ", "unknown": "framewrk"}.items():
        assert "  no: " in lines[name] and f"{name}.yaml" in lines[name] and reason in lines[name]


NO_TENSORFLOW = "Horovod 0.28.1 was built without TensorFlow"
NO_NCCL = (
    "no: Horovod 0.28.1 was built without NCCL: "
    "HOROVOD_GPU_OPERATIONS=NCCL scalebench install horovod, on a machine with nvcc and NCCL"
)  # fmt: skip
NO_MPIRUN = "no: horovod_mpi is started by mpirun, which is not on the PATH: apt-get install openmpi-bin"


@pytest.fixture
def horovod_without_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages, Horovod 0.28.1 for PyTorch with MPI and Gloo, and no mpirun."""
    builds = {
        "torch": horovod_build.HorovodBuild("0.28.1", "2.13.0", ("mpi", "gloo"), None),
        "tensorflow": horovod_build.HorovodBuild("0.28.1", None, (), NO_TENSORFLOW),
    }
    monkeypatch.setattr(horovod_build, "inspect_horovod", builds.__getitem__)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)


def test_a_missing_package_comes_with_the_command_that_installs_it(
    horovod_without_nccl: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name == "torch"])
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    files = config_files.list_options("strategy")
    need_it = [name for name, path in files.items() if "torch" in OmegaConf.load(path).requires]
    assert len(need_it) > 8
    line = "no: torch is not installed (pip install 'scalebench-train[torch]')"
    assert [each.split()[0] for each in out.splitlines() if line in each] == sorted(need_it)


@pytest.mark.parametrize(
    ("gpus", "here"),
    [
        (0, {"horovod_gloo": "yes", "horovod_mpi": NO_MPIRUN, "horovod_nccl": "no: needs cuda"}),
        (2, {"horovod_gloo": "yes", "horovod_mpi": NO_MPIRUN, "horovod_nccl": NO_NCCL, "ddp_nccl": "yes"}),
        (2, {"lightning_horovod": "yes", "horovod_tensorflow_gloo": f"no: {NO_TENSORFLOW}"}),
    ],
)  # fmt: skip
def test_strategies_of_horovod_depend_on_its_build(
    horovod_without_nccl: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpus: int,
    here: dict[str, str],
) -> None:
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    assert f"here ({'cuda' if gpus else 'cpu'})" in out
    lines = {line.split()[0]: line.rstrip() for line in out.splitlines() if line.strip()}
    for name, message in here.items():
        assert lines[name].endswith(f"  {message}")
