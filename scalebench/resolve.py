"""Config -> RunSpec: every default decided, every figure checked, before a process exists. Layer 2.

Bad input raises InputError. A well-formed run that is impossible here becomes a RunSpec with the reason.
"""

from __future__ import annotations

import dataclasses
import math
import shutil

from scalebench import machine, registry
from scalebench.configs import option_defaults
from scalebench.spec import Config, HardwareSpec, InputError, Place, RunSpec, fingerprint
from scalebench.strategy import check_options
from scalebench.suggest import no_such
from scalebench.workloads.datasets import split

CPU_WORKERS = 2  # devices of a machine without a GPU, unless its YAML says otherwise
CHOICES = {
    "scaling": ("weak", "strong"),
    "baseline": ("auto", "none"),
    "dataset.feed": ("host", "device", "fixed", "disk"),
    "dataset.prefetch": ("none", "queue", "device"),
    "hardware.devices": ("auto", "cpu", "cuda"),
    "strategy.launcher": ("local",),
    "train.optimizer": ("adam", "sgd", "momentum"),
    "train.precision": ("fp32",),
    "train.data_format": ("default",),
}
AT_LEAST = {
    "gpus": 1,
    "repeat": 0,
    "seed": 0,
    "dataset.size": 1,
    "dataset.seed": 0,
    "hardware.gpus_per_node": 1,
    "hardware.cpus_per_node": 1,
    "hardware.cpus_per_device": 1,
    "hardware.max_nodes": 1,
    "train.batch_per_device": 1,
    "train.global_batch": 1,
    "measure.warmup_steps": 0,
    "measure.min_s": 0,
}
AT_MOST = {"gpus": 65_536, "dataset.size": 10**10, "train.batch_per_device": 10**8, "train.global_batch": 10**10}
POSITIVE = (
    "train.learning_rate",
    "measure.block_s",
    "measure.max_s",
    "measure.target",
    "measure.hang_s",
    "measure.timeout_s",
)


def resolve(config: Config) -> RunSpec:
    """The run that `config` means on this machine. Raises InputError for bad input."""
    check(config)
    hardware = detected(config.hardware)
    config = dataclasses.replace(config, hardware=hardware)
    gpus = config.gpus or hardware.gpus_per_node or CPU_WORKERS
    batch_per_device, global_batch = batches(config, gpus)
    config = dataclasses.replace(config, gpus=gpus)
    device = hardware.devices
    places = place(config, gpus)
    return RunSpec(
        config=config,
        device=device,
        gpus=gpus,
        nodes=max(p.node for p in places) + 1,
        places=places,
        batch_per_device=batch_per_device,
        global_batch=global_batch,
        fingerprint=fingerprint(config, gpus, device),
        flags=["oversubscribed"] if oversubscribed(hardware, gpus) else [],
        unsupported="; ".join(obstacles(config, gpus)) or None,
    )


def check(config: Config) -> None:
    """Names and figures that make no sense on any machine: InputError."""
    registry.find(config.strategy.name)
    check_options(config.strategy.name, config.strategy.options, option_defaults(config.strategy.name))
    for key, allowed in CHOICES.items():
        value = _get(config, key)
        if value not in allowed:
            raise InputError(f"{key}={value}: {no_such('such value', str(value), allowed)}")
    for key, least in AT_LEAST.items():
        value = _get(config, key)
        if value is not None and not value >= least:
            raise InputError(f"{key}={value} should be at least {least}")
    for key, most in AT_MOST.items():
        value = _get(config, key)
        if value is not None and value > most:
            raise InputError(f"{key} should be at most {most}")
    for key in POSITIVE:
        value = _get(config, key)
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{key}={value} should be a finite number above 0")
    if not 0 <= config.dataset.validation_share < 1:
        raise InputError(f"dataset.validation_share={config.dataset.validation_share} should be in [0, 1)")
    if config.measure.max_s < config.measure.min_s:
        raise InputError(f"measure.max_s={config.measure.max_s:g} is below measure.min_s={config.measure.min_s:g}")


def _get(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def detected(hardware: HardwareSpec) -> HardwareSpec:
    """The hardware with what its YAML leaves open filled in from this machine, if it means this one."""
    devices, cpus = hardware.devices, hardware.cpus_per_node
    per_node = hardware.gpus_per_node
    if hardware.here:
        gpus_here = machine.gpu_count()
        if devices == "auto":
            devices = "cuda" if gpus_here else "cpu"
        cpus = cpus or len(machine.usable_cpus())
        per_node = per_node or (gpus_here if devices == "cuda" and gpus_here else CPU_WORKERS)
    per_device = hardware.cpus_per_device or max(1, (cpus or 1) // (per_node or 1))
    return dataclasses.replace(
        hardware, devices=devices, gpus_per_node=per_node, cpus_per_node=cpus, cpus_per_device=per_device
    )


def batches(config: Config, gpus: int) -> tuple[int, int]:
    """(batch_per_device, global_batch) in samples; InputError when they leave a device without any."""
    train = config.train
    if config.scaling == "weak":
        if train.global_batch is not None:
            raise InputError("train.global_batch is kept only with scaling=strong; use train.batch_per_device")
        per_device, global_batch = train.batch_per_device, train.batch_per_device * gpus
    else:
        global_batch = train.global_batch or train.batch_per_device
        per_device = -(-global_batch // gpus)
    if global_batch < gpus:
        raise InputError(
            f"a global batch of {global_batch} samples is fewer than {gpus} devices: "
            f"raise train.global_batch or lower gpus"
        )
    samples = split(config.dataset.size, config.dataset.validation_share)
    if config.dataset.path is None and samples < global_batch:
        raise InputError(
            f"{samples} training samples are fewer than one global batch of {global_batch}: "
            f"raise dataset.size or lower train.batch_per_device"
        )
    return per_device, global_batch


def place(config: Config, gpus: int) -> list[Place]:
    """Processes in sequence over the nodes: a second node only when the first is full."""
    hardware = config.hardware
    threads = hardware.cpus_per_device or 1
    per_node = hardware.gpus_per_node or gpus
    if hardware.devices == "cpu" and hardware.max_nodes == 1:
        per_node = max(per_node, gpus)  # more CPU workers than cores are allowed, on one node
    cores = machine.usable_cpus() if hardware.here else []
    if config.strategy.processes == "one_for_all":
        return [Place(0, 0, 0, list(range(gpus)), cores[: threads * gpus], threads)]
    if config.strategy.processes != "one_per_device":
        raise InputError(f"strategy.processes={config.strategy.processes} should be one_per_device or one_for_all")
    places = []
    for rank in range(gpus):
        node, local_rank = divmod(rank, per_node)
        mine = [cores[(local_rank * threads + i) % len(cores)] for i in range(threads)] if cores else []
        places.append(Place(rank, local_rank, node, [local_rank], sorted(set(mine)), threads))
    return places


def oversubscribed(hardware: HardwareSpec, gpus: int) -> bool:
    """Whether the processes of one node want more cores than it has."""
    on_node = gpus if hardware.devices == "cpu" else min(gpus, hardware.gpus_per_node or gpus)
    return on_node * (hardware.cpus_per_device or 1) > (hardware.cpus_per_node or on_node)


def obstacles(config: Config, gpus: int) -> list[str]:
    """Why this run cannot happen here, each in a clause; empty when it can."""
    strategy, hardware = config.strategy, config.hardware
    found = []
    if not hardware.here:
        found.append(_elsewhere(hardware))
    elif hardware.devices == "cuda":
        gpus_here = machine.gpu_count()
        if gpus > gpus_here:
            found.append(f"gpus={gpus} asks for more than the {gpus_here} GPUs here")
    nodes = -(-gpus // (hardware.gpus_per_node or gpus))
    if nodes > hardware.max_nodes and hardware.devices == "cuda" and not hardware.here:
        found.append(f"gpus={gpus} asks for {nodes} nodes, hardware={hardware.name} has {hardware.max_nodes}")
    if hardware.devices not in strategy.devices:
        found.append(_wrong_device(strategy.name, hardware.devices))
    if strategy.max_gpus is not None and gpus > strategy.max_gpus:
        found.append(f"{strategy.name} runs on {strategy.max_gpus} device only, gpus={gpus}")
    if strategy.name in hardware.unsupported:
        found.append(f"{strategy.name} does not work on {hardware.name}: {hardware.unsupported[strategy.name]}")
    later = registry.NOT_YET.get(strategy.name)
    if later is not None:
        found.append(f"{strategy.name}: {later}")
    found += [
        f"{strategy.name} needs {package}, which is not installed: {registry.install_hint(package)}"
        for package in registry.missing_packages(strategy.requires)
    ]
    if config.dataset.prefetch == "device" and hardware.devices == "cpu":
        found.append("dataset.prefetch=device copies to a GPU ahead of time and there is none; use queue")
    return found


def _elsewhere(hardware: HardwareSpec) -> str:
    gpus_here = machine.gpu_count()
    here = f"{gpus_here} GPUs" if gpus_here else "no GPU"
    if hardware.scheduler == "slurm" and shutil.which("sbatch") is None:
        here += " and no sbatch"
    wants = f"{hardware.gpus_per_node} x {hardware.gpu_model} a node"
    behind = f", behind {hardware.scheduler}" if hardware.scheduler != "none" else ""
    return f"hardware={hardware.name} is another machine ({wants}{behind}), here is {here}; use hardware=local"


def _wrong_device(strategy: str, device: str) -> str:
    if device == "cpu" and strategy.endswith("_nccl"):
        stem = strategy.removesuffix("_nccl")
        return f"{strategy} exchanges gradients over NCCL, which needs GPUs; use strategy={stem}_gloo on CPU"
    return f"{strategy} does not run on {device}"
