"""Fixtures for runs inside the test process: one rank on the CPU with synthetic samples."""

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

from scalebench.core.spec import Config, ModelSpec, RankPlacement, RunSpec
from scalebench.runner.launchers.rank_environment import find_free_port
from scalebench.strategies import registry
from scalebench.strategies.base import Strategy
from scalebench.workloads.source import Source
from tests.strategies.torch.builders import make_features

CONF = Path(__file__).parents[3] / "conf"
USER_MODULES = "tests.strategies.torch.user_modules"
SAMPLES = 101  # prime, so that no batch divides it


@pytest.fixture(scope="session")
def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return (inputs, targets) that a network can learn from."""
    return make_features(SAMPLES)


@pytest.fixture
def source(samples: tuple[np.ndarray, np.ndarray]) -> Callable[..., Source]:
    """Return source(replica=0, replicas=1, **settings) -> a Source of these samples in batches of 20."""

    def make(replica: int = 0, replicas: int = 1, **others: Any) -> Source:
        settings = {"global_batch": 20, "seed": 3, **others}
        return Source(*samples, replica=replica, replicas=replicas, **settings)

    return make


def load(group: str, name: str) -> DictConfig:
    loaded = OmegaConf.load(CONF / group / f"{name}.yaml")
    loaded.pop("defaults", None)  # which data set a model is for
    return loaded


def spec_of(strategy: str, processes: int = 1, model: str = "materials_cnn", **changes: Any) -> RunSpec:
    """Return the spec of a run with CPU ranks; `changes` to the config are written as dataset__feed='device'."""
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
    places = [RankPlacement(rank, rank, 0, [rank], [], 1) for rank in range(processes)]
    return RunSpec(config, "cpu", processes, 1, places, 20, 20 * processes, "0" * 16)


def model_spec(name: str) -> ModelSpec:
    """Load a model's YAML as a ModelSpec."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelSpec), load("model", name)))


def user_model(name: str, **changes: Any) -> dict[str, Any]:
    """Return the changes to a config for that module of `user_modules` with two targets for a (200, 3) sample."""
    shapes = {"model__input_shape": [200, 3], "model__target_shape": [2], "model__outputs": 2}
    measured = {"model__loss": "mse", "model__metric": "mse", "model__torch": f"{USER_MODULES}:{name}"}
    return {"model": "custom", **shapes, **measured, **changes}


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return strategy(name, **changes) -> rank 0 of that strategy, set up; it is closed after the test."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_free_port()))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    made: list[Strategy] = []

    def make(name: str, **changes: Any) -> Strategy:
        made.append(registry.load_strategy(name)(spec_of(name, **changes), 0))
        made[-1].setup()
        return made[-1]

    yield make
    for adapter in made:
        adapter.close()
