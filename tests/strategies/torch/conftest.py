"""Fixtures for runs inside the test process: one rank on the CPU with synthetic samples."""

import copy
import warnings
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages think of each other while they are imported
    import pytorch_lightning  # noqa: F401
    import torch

from scalebench.core import config_files
from scalebench.core.json_files import read_json
from scalebench.core.run_folder import rank_log_name
from scalebench.core.spec import Config, ModelSpec, RankPlacement, RunSpec, write_spec
from scalebench.runner import launchers
from scalebench.runner.launchers.rank_environment import find_free_ports
from scalebench.strategies import registry
from scalebench.workloads import datasets

torch.set_num_threads(1)  # of networks this small, two threads mostly wait for each other
CONF = Path(__file__).parents[3] / "conf"
USER_MODULES = "tests.strategies.torch.user_modules"


def load(group, name):
    loaded = OmegaConf.create(config_files.read_composed(group, CONF / group / f"{name}.yaml"))
    loaded.pop("defaults", None)  # which data set a model is for
    return loaded


@cache
def _compose(strategy, model):
    groups = {"model": model, "dataset": "materials", "strategy": strategy, "train": "default", "measure": "default"}
    loaded = {group: load(group, name) for group, name in groups.items()}
    own = {"measure": {"hang_s": 20.0}, "hardware": {"name": "cpu"}}
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), loaded, own))


def spec_of(strategy, processes=1, model="materials_cnn", **changes):
    """Return the spec of a run with CPU ranks; `changes` to the config are written as dataset__feed='device'."""
    config = copy.deepcopy(_compose(strategy, model))
    for key, value in changes.items():
        *groups, name = key.split("__")
        owner = config
        for group in groups:
            owner = getattr(owner, group) if is_dataclass(owner) else owner[group]
        if not is_dataclass(owner):
            owner[name] = value
        elif is_dataclass(old := getattr(owner, name)) and isinstance(value, dict):
            setattr(owner, name, replace(old, **value))
        else:
            setattr(owner, name, value)
    places = [RankPlacement(rank, rank, 0, [rank], [], 1) for rank in range(processes)]
    return RunSpec(config, "cpu", processes, 1, places, 20, 20 * processes, "0" * 16)


def run_ranks(spec, folder, module):
    """Run all ranks of `spec` with that module below tests.strategies.torch; return the observations of each."""
    write_spec(spec, folder)
    ended = launchers.launch(spec, folder, "observed", module=f"tests.strategies.torch.{module}")
    logs = [folder / rank_log_name(rank) for rank in range(spec.processes)]
    assert set(ended.exit_codes) == {0}, "\n".join(path.read_text() for path in logs if path.exists())
    return [read_json(folder / f"observed{rank}.json") for rank in range(spec.processes)]


def model_spec(name):
    """Load a model's YAML as a ModelSpec."""
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelSpec), load("model", name)))


def user_model(name, **changes):
    """Return the changes to a config for that module of `user_modules` with two targets for a (200, 3) sample."""
    shapes = {"model__input_shape": [200, 3], "model__target_shape": [2], "model__outputs": 2}
    measured = {"model__loss": "mse", "model__metric": "mse", "model__torch": f"{USER_MODULES}:{name}"}
    return {"model": "custom", **shapes, **measured, **changes}


def _make_samples(spec):
    """Return noise of the shapes of the config, on which a user's module is checked."""
    model, dataset = spec.config.model, spec.config.dataset
    random, size = np.random.default_rng(1), 2 * spec.global_batch
    inputs = random.normal(size=(size, *model.input_shape)).astype(dataset.dtype)
    if dataset.classes is not None:
        return inputs, random.integers(dataset.classes, size=(size, *model.target_shape))
    return inputs, random.normal(size=(size, *model.target_shape)).astype(np.float32)


@pytest.fixture
def strategy(monkeypatch):
    """Return strategy(name, processes=1, device="cpu", **changes) -> rank 0 of that strategy, set up; it is closed
    after the test."""
    open_dataset = datasets.open_dataset

    def open_samples(spec, *arguments):
        return open_dataset(spec, *arguments) if spec.config.dataset.path is not None else _make_samples(spec)

    monkeypatch.setattr(datasets, "open_dataset", open_samples)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_free_ports(1)[0]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    made = []

    def make(name, processes=1, device="cpu", **changes):
        if made:  # a group listens until its adapter goes
            monkeypatch.setenv("MASTER_PORT", str(find_free_ports(1)[0]))
        made.append(registry.load_strategy(name)(replace(spec_of(name, processes, **changes), device=device), 0))
        try:
            made[-1].setup()
        except Exception:
            made[-1].close()
            raise
        return made[-1]

    yield make
    for adapter in made:
        adapter.close()
