"""Validate settings that depend on each other, before a process starts: training to a stop, and worker variables.

`hardware.environment` holds the variables that a run sets for its processes in addition to those of the shell.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from scalebench.core.errors import InputError
from scalebench.core.machine.variables import SECRET_VARIABLES
from scalebench.core.spec import NO_VALIDATION_SAMPLES, Config, HardwareSpec, TrainSpec, has_stop

MAX_TARGET_SEARCH_S = 600.0  # of training to a target where nothing else bounds it
RESERVED_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|PYTHONUNBUFFERED|CUDA_DEVICE_ORDER)$"
)
RESERVED_PREFIXES = ("MASTER_", "SCALEBENCH_", "HYDRA_")
CONFIG_KEYS_OF_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "hardware.device_ids",
    "OMP_NUM_THREADS": "hardware.cpus_per_device",
    "MKL_NUM_THREADS": "hardware.cpus_per_device",
    "OPENBLAS_NUM_THREADS": "hardware.cpus_per_device",
}


# Each contradiction between settings, and the line that refuses it; {hardware}, {train} and the like are the groups.
CONTRADICTIONS: tuple[tuple[Callable[[Config], Any], str], ...] = (
    (lambda c: c.hardware.node_copy is not None and not c.hardware.node_copy.startswith(("/", "$")),
     "hardware.node_copy={hardware.node_copy} should be an absolute path, since each node has its own"),
    (lambda c: not c.hardware.this_machine and c.hardware.devices == "auto",
     "hardware={hardware.name} is another machine, which cannot be inspected; set devices: cuda"),
    (lambda c: c.train.learning_rate_rule != "none" and c.train.base_batch is None,
     "train.learning_rate_rule={train.learning_rate_rule} scales the learning rate of a base batch: set "
     "train.base_batch, the global batch that train.learning_rate={train.learning_rate:g} is for"),
    (lambda c: not c.train.momentum < 1,
     "train.momentum={train.momentum:g} should be below 1, or gradients add up without end"),
    (lambda c: c.train.schedule == "step" and not c.train.decay_epochs,
     "train.schedule=step falls after epochs: set them, as in train.decay_epochs=[30,60,80]"),
    (lambda c: c.train.decay_epochs != sorted(c.train.decay_epochs)
     or not all(0 < epoch < math.inf for epoch in c.train.decay_epochs),
     "train.decay_epochs={train.decay_epochs} should be above 0 and in order"),
    (lambda c: (c.train.schedule != "constant" or c.train.warmup_epochs > 0) and not has_stop(c.train.stop),
     "train.schedule and train.warmup_epochs are of a training, and this run ends when its throughput is known: set "
     "train.stop.epochs, or leave them out"),
    (lambda c: c.train.schedule in ("linear", "cosine") and c.train.stop.epochs is None and c.train.stop.steps is None,
     "train.schedule={train.schedule} goes down to the end of the training: set train.stop.epochs or train.stop.steps"),
    (lambda c: c.train.stop.epochs is not None and 0 < c.train.stop.epochs <= c.train.warmup_epochs,
     "train.warmup_epochs={train.warmup_epochs:g} lasts until train.stop.epochs={train.stop.epochs:g}: the learning "
     "rate would never reach train.learning_rate"),
    (lambda c: has_stop(c.train.stop) and c.dataset.feed == "fixed",
     "dataset.feed=fixed gives one batch again and again: a training to a stop needs another feed"),
    (lambda c: c.train.stop.seconds is not None and c.train.stop.seconds >= c.measure.timeout_s,
     "train.stop.seconds={train.stop.seconds:g} is not below measure.timeout_s={measure.timeout_s:g}, which ends the "
     "whole run: raise measure.timeout_s"),
    (lambda c: c.train.stop.target is not None and not c.measure.evaluate,
     "train.stop.target needs the validation metric, which measure.evaluate=false never computes"),
    (lambda c: c.train.stop.target is not None and c.dataset.validation_share == 0,
     "train.stop.target needs the validation metric, and dataset.validation_share=0 leaves nothing to validate"),
    (lambda c: c.train.stop.target is not None and c.train.evaluate_epochs is None and c.train.evaluate_s is None,
     "train.stop.target is checked at each evaluation: set train.evaluate_epochs or train.evaluate_s"),
    (lambda c: not 0 <= c.dataset.validation_share < 1,
     "dataset.validation_share={dataset.validation_share} should be in [0, 1)"),
    (lambda c: c.measure.max_s < c.measure.min_s,
     "measure.max_s={measure.max_s:g} is below measure.min_s={measure.min_s:g}"),
)  # fmt: skip


def check_contradictions(config: Config) -> None:
    """Raise InputError for settings that contradict each other, or that need another one."""
    for is_wrong, line in CONTRADICTIONS:
        if is_wrong(config):
            raise InputError(line.format(**vars(config)))


def limit_training_time(train: TrainSpec, timeout_s: float) -> TrainSpec:
    """Limit a training that ends only at a target, which it may never reach: to MAX_TARGET_SEARCH_S, or half of the
    timeout."""
    stop = train.stop
    if stop.target is None or (stop.epochs, stop.steps, stop.seconds) != (None, None, None):
        return train
    return dataclasses.replace(train, stop=dataclasses.replace(stop, seconds=min(MAX_TARGET_SEARCH_S, timeout_s / 2)))


def check_samples(config: Config, gpus: int, global_batch: int, replicas: int) -> None:
    """Raise InputError where a device has fewer samples than micro-batches, or there are too few validation samples for
    the replicas to look for the target. The samples of a file are only counted when it is read."""
    from scalebench.workloads import datasets

    train, dataset = config.train, config.dataset
    smallest = global_batch // gpus
    if train.accumulate > smallest:
        raise InputError(
            f"train.accumulate={train.accumulate} is more parts than a device has samples of a step, {smallest}: "
            f"lower it or raise train.batch_per_device"
        )
    left = dataset.size - datasets.count_train_samples(dataset)
    if train.stop.target is not None and dataset.path is None and left < replicas:
        raise InputError(f"{NO_VALIDATION_SAMPLES}: raise dataset.size or dataset.validation_share")


def check_environment(hardware: HardwareSpec) -> None:
    """Raise InputError for an invalid name, one that scalebench sets itself, or one whose value looks secret."""
    for name, value in hardware.environment.items():
        label = f"hardware.environment: {name}"
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise InputError(f"hardware.environment: '{name}' is not a valid variable name")
        if name in CONFIG_KEYS_OF_VARIABLES:
            raise InputError(f"{label} is set by scalebench; use {CONFIG_KEYS_OF_VARIABLES[name]}")
        if RESERVED_VARIABLES.match(name) or name.startswith(RESERVED_PREFIXES):
            raise InputError(f"{label} is set by scalebench for each process; leave it out")
        if SECRET_VARIABLES.search(name):
            raise InputError(f"{label} looks like a secret and would be in the record; set it in the shell")
        if "\0" in value:
            raise InputError(f"{label} has a zero byte in its value, which no variable can hold")


def select_environment(hardware: HardwareSpec, gpus: int) -> dict[str, str]:
    """Return the variables that matter to a run, by name. Those of NCCL do not matter on one device, which communicates
    with none: runs of a sweep over them are one run there."""
    names = {name for name in hardware.environment if gpus > 1 or not name.startswith("NCCL_")}
    return {name: hardware.environment[name] for name in sorted(names)}
