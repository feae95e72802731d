"""Runs on clusters that are not here, and the places that their scripts name.

Programs that stand in for the commands of SLURM: shell scripts in a folder of the test.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from scalebench.core.spec import HardwareSpec, RunSpec, SlurmSpec, StrategySpec
from scalebench.slurm.commands import Slurm
from tests.builders.configs import of

FOLDER = Path("/scratch/user/sweep/3")
ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
CPU_NODES: dict[str, Any] = {
    "name": "cluster", "devices": "cpu", "gpus_per_node": 2, "cpus_per_node": 8, "max_nodes": 4, "this_machine": False,
    "scheduler": "slurm",
}  # fmt: skip
GPU_NODES = CPU_NODES | {"devices": "cuda", "gpus_per_node": 8, "cpus_per_node": 48}


def run(
    gpus: int, nodes: dict[str, Any] | None = None, strategy: dict[str, Any] | None = None, **slurm: Any
) -> RunSpec:
    """Of the simulated strategy under the name of ddp, on `nodes`; `slurm` are keys of hardware.slurm."""
    hardware = HardwareSpec(**(CPU_NODES | (nodes or {})), slurm=SlurmSpec(**slurm))
    spec = of(gpus=gpus, hardware=hardware, strategy=StrategySpec("simulated", **(strategy or {})))
    return spec


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python and the data sets are on that cluster."""
    monkeypatch.setattr(sys, "executable", "/home/user/venv/bin/python")
    monkeypatch.setenv("SCALEBENCH_CACHE", "/scratch/user/cache")


class Tools:
    """Each call of a command leaves its words in NAME.calls, a line each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "slurm bin"
        self.folder.mkdir()
        self.slurm = Slurm(str(self.folder))

    def put(self, name: str, out: str = "", err: str = "", code: int = 0, then: str = "") -> None:
        """A command that prints these, after the shell has done `then`."""
        for stream, text in (("out", out), ("err", err)):
            (self.folder / f"{name}.{stream}").write_text(text)
        path = self.folder / name
        path.write_text(
            f'#!/bin/sh\nhere="{self.folder}"\necho "$*" >> "$here/{name}.calls"\n{then}\n'
            f'cat "$here/{name}.out"; cat "$here/{name}.err" >&2; exit {code}\n'
        )
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []
