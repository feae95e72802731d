"""The values that Hydra makes of one key of a sweep, lists and objects among them.

Configs of simulated runs for tests of what becomes of them, and a machine that is not this one.
"""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from scalebench.config import compose, resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.spec import Config, HardwareSpec, RunSpec
from tests.builders.runs import simulated_config


def sweep_choices(values: object) -> list[str]:
    """Each value as the word on the command line that means it."""
    compose.register_with_hydra()
    filled = OmegaConf.create([values])[0]  # what only the machine knows is known now
    override = OverridesParser.create().parse_override(f"key={filled}")
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(filled)]


ALPHA = HardwareSpec(
    "alpha",
    devices="cuda",
    gpus_per_node=8,
    cpus_per_node=48,
    max_nodes=34,
    gpu_model="A100",
    this_machine=False,
    scheduler="slurm",
)
GPUS_HERE = HardwareSpec("local", devices="cuda")


def make_config(**changes: Any) -> Config:
    """A simulated run on the CPU; `changes` by dotted key with two underscores: train__global_batch=5."""
    made = simulated_config(size=1000)
    for key, value in changes.items():
        set_key(made, key.replace("__", "."), value)
    return made


def set_key(made: Config, key: str, value: Any) -> None:
    *path, name = key.split(".")
    owner: Any = made
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, name)
    setattr(owner, name, copy.deepcopy(value))  # what a test sets in it later must not reach the next one


def make_spec(**changes: Any) -> RunSpec:
    return resolve.resolve(make_config(**changes))


def resolve_error(made: Config) -> str:
    with pytest.raises(InputError) as caught:
        resolve.resolve(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fake_machine(monkeypatch: pytest.MonkeyPatch, gpus: int, cpus: int = 8) -> None:
    """A machine with so many GPUs and cores, and no program on the PATH."""
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(cpus)))
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [None] * gpus)
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)
