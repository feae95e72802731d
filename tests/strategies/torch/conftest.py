"""Runs of the materials CNN inside the test process: one rank, on the CPU, on made-up samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import DictConfig, OmegaConf

pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages think of each other while they are imported
    import pytorch_lightning  # noqa: F401

from scalebench.core.spec import Config, ModelSpec, Place, RunSpec
from scalebench.runner.launchers.rank_environment import free_port
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import features

CONF = Path(__file__).parents[3] / "conf"
OWN_MODULES = "tests.strategies.torch.user_modules"
SAMPLES = 101  # prime, so that no batch divides it


@pytest.fixture(scope="session")
def samples() -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets) that a network can learn from."""
    return features(SAMPLES)


@pytest.fixture
def source(samples: tuple[np.ndarray, np.ndarray]) -> Callable[..., Source]:
    """source(replica=0, replicas=1, **others) -> a Source of those samples in batches of 20."""

    def make(replica: int = 0, replicas: int = 1, **others: Any) -> Source:
        settings = {"global_batch": 20, "seed": 3, **others}
        return Source(*samples, replica=replica, replicas=replicas, **settings)

    return make


def load(group: str, name: str) -> DictConfig:
    loaded = OmegaConf.load(CONF / group / f"{name}.yaml")
    loaded.pop("defaults", None)  # which data set a model is for
    return loaded


def spec_of(strategy: str, processes: int = 1, model: str = "materials_cnn", **changes: Any) -> RunSpec:
    """A run of so many CPU ranks; `changes` to the config as dataset__feed='device'."""
    groups = {
        "model": model,
        "dataset": "materials",
        "strategy": strategy,
        "train": "default",
        "measure": "default",
    }
    loaded = {group: load(group, name) for group, name in groups.items()}
    composed = OmegaConf.merge(
        OmegaConf.structured(Config), loaded, {"measure": {"hang_s": 20.0}, "hardware": {"name": "cpu"}}
    )
    for key, value in changes.items():
        OmegaConf.update(composed, key.replace("__", "."), value)
    config = OmegaConf.to_object(composed)
    places = [Place(rank, rank, 0, [rank], [], 1) for rank in range(processes)]
    return RunSpec(config, "cpu", processes, 1, places, 20, 20 * processes, "0" * 16)


def model_spec(name: str) -> ModelSpec:
    """What the YAML of that name says."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelSpec), load("model", name)))


def own(name: str, **changes: Any) -> dict[str, Any]:
    """Changes to a config: that module of `own_modules`, for two quantities of a (200, 3) sample."""
    shapes = {"model__input_shape": [200, 3], "model__target_shape": [2], "model__outputs": 2}
    measured = {"model__loss": "mse", "model__metric": "mse", "model__torch": f"{OWN_MODULES}:{name}"}
    return {"model": "custom", **shapes, **measured, **changes}


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """strategy(name, **changes) -> rank 0 of one, set up, and closed after the test."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    made: list[Strategy] = []

    def make(name: str, **changes: Any) -> Strategy:
        made.append(registry.load(name)(spec_of(name, **changes), 0))
        made[-1].setup()
        return made[-1]

    yield make
    for one in made:
        one.close()
