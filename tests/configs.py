"""Configs of simulated runs for tests of what becomes of them, and a machine that is not this one."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest

from scalebench import machine, resolve
from scalebench.spec import Config, HardwareSpec, InputError, RunSpec
from tests.helpers import simulated_config

ALPHA = HardwareSpec(
    "alpha",
    devices="cuda",
    gpus_per_node=8,
    cpus_per_node=48,
    max_nodes=34,
    gpu_model="A100",
    here=False,
    scheduler="slurm",
)
GPUS_HERE = HardwareSpec("local", devices="cuda")


def config(**changes: Any) -> Config:
    """A simulated run on the CPU; `changes` by dotted key with two underscores: train__global_batch=5."""
    made = simulated_config(size=1000)
    for key, value in changes.items():
        put(made, key.replace("__", "."), value)
    return made


def put(made: Config, key: str, value: Any) -> None:
    *path, name = key.split(".")
    owner: Any = made
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, name)
    setattr(owner, name, copy.deepcopy(value))  # what a test sets in it later must not reach the next one


def of(**changes: Any) -> RunSpec:
    return resolve.resolve(config(**changes))


def line(made: Config) -> str:
    with pytest.raises(InputError) as caught:
        resolve.resolve(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int, cpus: int = 8) -> None:
    """A machine with so many GPUs and cores, and no program on the PATH."""
    monkeypatch.setattr(machine, "gpu_count", lambda: gpus)
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(cpus)))
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [None] * gpus)
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)
