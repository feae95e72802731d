"""Validate settings that depend on each other, before a process starts: training to a stop, and worker variables.

`hardware.environment` holds the variables that a run sets for its processes in addition to those of the shell.
"""

from __future__ import annotations

import dataclasses
import math
import re

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


def limit_training_time(train: TrainSpec, timeout_s: float) -> TrainSpec:
    """Limit a training that ends only at a target, which it may never reach: to MAX_TARGET_SEARCH_S, or half of the
    timeout."""
    stop = train.stop
    if stop.target is None or (stop.epochs, stop.steps, stop.seconds) != (None, None, None):
        return train
    return dataclasses.replace(train, stop=dataclasses.replace(stop, seconds=min(MAX_TARGET_SEARCH_S, timeout_s / 2)))


def check_training(config: Config) -> None:
    """Raise InputError for settings of a training that contradict each other, or that need another one."""
    _check_learning_rate(config.train)
    _check_schedule(config.train)
    _check_stop(config)


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


def _check_learning_rate(train: TrainSpec) -> None:
    if train.learning_rate_rule != "none" and train.base_batch is None:
        raise InputError(
            f"train.learning_rate_rule={train.learning_rate_rule} scales the learning rate of a base batch: set "
            f"train.base_batch, the global batch that train.learning_rate={train.learning_rate:g} is for"
        )
    if not train.momentum < 1:
        raise InputError(f"train.momentum={train.momentum:g} should be below 1, or gradients add up for ever")


def _check_schedule(train: TrainSpec) -> None:
    stop, changes = train.stop, train.schedule != "constant" or train.warmup_epochs > 0
    if train.schedule == "step" and not train.decay_epochs:
        raise InputError("train.schedule=step falls after epochs: set them, as in train.decay_epochs=[30,60,80]")
    if train.decay_epochs != sorted(train.decay_epochs) or not all(
        0 < epoch < math.inf for epoch in train.decay_epochs
    ):
        raise InputError(f"train.decay_epochs={train.decay_epochs} should be above 0 and in order")
    if changes and not has_stop(stop):
        raise InputError(
            "train.schedule and train.warmup_epochs are of a training, and this run ends when its throughput is known: "
            "set train.stop.epochs, or leave them out"
        )
    if train.schedule in ("linear", "cosine") and stop.epochs is None and stop.steps is None:
        raise InputError(
            f"train.schedule={train.schedule} goes down to the end of the training: set train.stop.epochs or "
            f"train.stop.steps"
        )
    if stop.epochs is not None and 0 < stop.epochs <= train.warmup_epochs:
        raise InputError(
            f"train.warmup_epochs={train.warmup_epochs:g} lasts until train.stop.epochs={stop.epochs:g}: the learning "
            f"rate would never reach train.learning_rate"
        )


def _check_stop(config: Config) -> None:
    stop, measure = config.train.stop, config.measure
    if not has_stop(stop):
        return
    if config.dataset.feed == "fixed":
        raise InputError("dataset.feed=fixed gives one batch again and again: a training to a stop wants another feed")
    if stop.seconds is not None and stop.seconds >= measure.timeout_s:
        raise InputError(
            f"train.stop.seconds={stop.seconds:g} is not below measure.timeout_s={measure.timeout_s:g}, which ends the "
            f"whole run: raise measure.timeout_s"
        )
    if stop.target is not None:
        _check_target(config)


def _check_target(config: Config) -> None:
    train = config.train
    if not config.measure.evaluate:
        raise InputError("train.stop.target needs the validation metric, which measure.evaluate=false never computes")
    if config.dataset.validation_share == 0:
        raise InputError(
            "train.stop.target needs the validation metric, and dataset.validation_share=0 leaves nothing to validate"
        )
    if train.evaluate_epochs is None and train.evaluate_s is None:
        raise InputError(
            "train.stop.target is checked at each evaluation: set train.evaluate_epochs or train.evaluate_s"
        )


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
