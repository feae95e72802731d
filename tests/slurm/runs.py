"""Runs on clusters that are not here, and the places that their scripts name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from scalebench.slurm_spec import SlurmSpec
from scalebench.spec import HardwareSpec, RunSpec, StrategySpec
from tests.configs import of

FOLDER = Path("/scratch/user/sweep/3")
ROLES = {"roles": {"chief": 1, "ps": 1, "worker": "gpus"}}
CPU_NODES: dict[str, Any] = {
    "name": "cluster", "devices": "cpu", "gpus_per_node": 2, "cpus_per_node": 8, "max_nodes": 4, "here": False,
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
