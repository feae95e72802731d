"""Configs of simulated runs, data, machines that do not exist, and the values that Hydra reads in a key of a sweep."""

import copy
import shutil

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from PIL import Image

from scalebench.config import compose, resolve
from scalebench.core.errors import InputError
from scalebench.core.machine import machine
from scalebench.core.spec import Config, DatasetSpec, HardwareSpec, ModelSpec
from tests.builders.runs import simulated_config


def sweep_choices(values, config=None):
    """Return each value of a sweep's key as it is written on the command line. `config` chooses the hardware."""
    compose.register_with_hydra()
    filled = OmegaConf.create({**(config or {}), "values": values})["values"]  # resolves what depends on the machine
    override = OverridesParser.create().parse_override(f"key={filled}")
    return list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(filled)]


def write_pictures(folder, count, classes):
    """Write small JPEG files of noise, in one folder per class, as dataset=imagenet_jpeg reads them."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"n{number % classes}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return folder


# Words of the command line for a run of a tenth of a second, without the hardware.
SHORT_WORDS = (
    "strategy=simulated dataset.size=1000 measure=quick measure.min_s=0 measure.max_s=0.1 measure.warmup_steps=2 "
    "measure.evaluate=false measure.probes=false measure.monitor=false"
).split()
ALPHA = HardwareSpec(
    "alpha", devices="cuda", gpus_per_node=8, cpus_per_node=48, max_nodes=34, gpu_model="A100", this_machine=False,
    scheduler="slurm",
)  # fmt: skip
GPUS_HERE = HardwareSpec("local", devices="cuda")


def make_config(**changes):
    """Make the config of a simulated run on the CPU; `changes` are keys with two underscores: train__global_batch=5."""
    result = simulated_config(size=1000)
    for key, value in changes.items():
        set_key(result, key.replace("__", "."), value)
    return result


def image_config(name, cache_dir, side=8, **changes):
    """Make the config of a model of ten classes on images of `side` pixels, and of a data set with these `changes`."""
    model = ModelSpec("net", input_shape=[side, side, 3], target_shape=[], outputs=10)
    fields = {"name": name, "size": 100, "classes": 10, "dtype": "uint8", "cache": str(cache_dir), **changes}
    return Config(model=model, dataset=DatasetSpec(**fields))


def set_key(config, key, value):
    *path, name = key.split(".")
    owner = config
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, name)
    setattr(owner, name, copy.deepcopy(value))  # later changes must not affect the caller's value


def make_spec(**changes):
    return resolve.resolve(make_config(**changes))


def resolve_error(config):
    with pytest.raises(InputError) as caught:
        resolve.resolve(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fake_machine(monkeypatch, gpus, cpus=8):
    """Replace the machine by one with so many GPUs and cores, and no program on the PATH."""
    monkeypatch.setattr(machine, "count_gpus", lambda: gpus)
    monkeypatch.setattr(machine, "usable_cpus", lambda: list(range(cpus)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: None)
    monkeypatch.setattr(machine, "gpu_numa_nodes", lambda: [None] * gpus)
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)


def take(source, count):
    """Return so many batches of a source, which is then closed."""
    batches = iter(source)
    taken = [next(batches) for _ in range(count)]
    batches.close()
    return taken
