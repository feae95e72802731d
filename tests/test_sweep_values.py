"""Values of a sweep that only the machine knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from scalebench import cli, gpus, jobs, machine, sweep_values
from scalebench.__main__ import main
from tests.nvml_stand_in import put_in


def test_every_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, values in ((0, "[0],[1]"), (1, "[0]"), (3, "[0],[1],[2]")):
        monkeypatch.setattr(machine, "gpu_count", lambda here=here: here)
        assert sweep_values.each_device() == values


def test_a_pair_of_each_link(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, values in (([], "[0,1]"), ([(0, 1), (0, 4)], "[0,1],[0,4]")):
        monkeypatch.setattr(machine, "pair_of_each_link", lambda found=found: found)
        assert sweep_values.pair_of_each_link() == values


@pytest.mark.parametrize(
    ("words", "planned"),
    [
        (
            ["sweep=placement"],
            ["simulated gpus=1", "simulated gpus=2", "simulated gpus=2"],
        ),  # the first is the baseline
        (["sweep=each_device"], ["simulated gpus=1"] * 3),
        (["sweep=each_device", "hardware.device_ids=[0],[2]"], ["simulated gpus=1"] * 2),
    ],
)
def test_a_sweep_is_filled_in(
    words: list[str], planned: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "gpu_count", lambda: 3)
    monkeypatch.setattr(machine, "pair_of_each_link", lambda: [(0, 2)])
    assert main([*words, "strategy=simulated", "hardware=cpu", "dry_run=true"]) == 0
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert [line[: len(told)] for line, told in zip(lines, planned, strict=True)] == planned


def test_the_stand_in_has_one_pair(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, nvml_library)
    assert (sweep_values.each_device(), sweep_values.pair_of_each_link()) == ("[0],[1]", "[0,1]")
    assert gpus.gpu_count() == 2


def test_variables_are_set_by_name_or_together_and_add_up() -> None:
    try:
        for words in (
            ["hardware.environment={A:1,B:x y}"],
            ["hardware.environment.A=1", "hardware.environment.B='x y'"],
        ):
            assert jobs.to_config(cli.compose(words)).hardware.environment == {"A": "1", "B": "x y"}
        added = jobs.to_config(cli.compose(["sweep=transport", "hardware.environment={A:1}"])).hardware.environment
        assert added == {"NCCL_DEBUG": "INFO", "A": "1"}
    finally:
        GlobalHydra.instance().clear()
