"""`scalebench strategies`: what is registered, from where, and whether it can run here."""

from __future__ import annotations

import pytest

from scalebench import configs, machine, registry
from scalebench.__main__ import main


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Name -> its line, as on a machine without a GPU where PyTorch is installed and nothing else is."""
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    missing = {"horovod", "tensorflow"}
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name in missing])
    registry.table.cache_clear()
    assert main(["strategies"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].split("  ")[-1].strip() == "here (cpu)"
    return {line.split()[0]: line for line in lines[2:] if line and not line.startswith("─")}


def test_every_registered_strategy_has_one_line_in_order(listed: dict[str, str]) -> None:
    assert list(listed) == sorted(registry.table())
    assert len({len(line.splitlines()) for line in listed.values()}) == 1


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("null", "yes"),
        ("ddp_gloo", "yes"),
        ("ddp_nccl", "no: needs cuda"),
        ("horovod_nccl", "no: its Horovod adapter is not part of this version of scalebench"),
        ("mirrored", "no: tensorflow is not installed (pip install 'scalebench[tensorflow]')"),
        ("zero1", "no: its PyTorch adapter is not part of this version of scalebench"),
    ],
)
def test_whether_it_can_run_here(listed: dict[str, str], name: str, here: str) -> None:
    assert listed[name].endswith(f"  {here}")


def test_what_it_is_and_where_it_comes_from(listed: dict[str, str]) -> None:
    assert "no framework: sleeps as told, fails as told" in listed["null"]
    assert all(" scalebench " in line for line in listed.values())


def test_a_missing_package_comes_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "missing_packages", lambda names: [name for name in names if name == "torch"])
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    assert "no: torch is not installed (pip install 'scalebench[torch]')" in out
    assert len([line for line in out.splitlines() if "torch is not installed" in line]) == sum(
        name in registry.BUILT_IN and ".adapters.torch." in registry.BUILT_IN[name]
        for name in configs.options("strategy")
    )


def test_on_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "gpu_count", lambda: 2)
    monkeypatch.setattr(registry, "missing_packages", lambda names: [])
    assert main(["strategies"]) == 0
    out = capsys.readouterr().out
    assert "here (cuda)" in out
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["ddp_nccl"]]
    assert line.rstrip().endswith("yes")


def test_further_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "ddp"]) == 2
    assert capsys.readouterr().err == "scalebench: strategies takes no further words, not 'ddp'\n"
