"""Config -> RunSpec: every default decided, every figure checked, before a process exists. Layer 2.

Bad input raises InputError. A well-formed run that is impossible here becomes a RunSpec with the reason.
"""

from __future__ import annotations

import dataclasses
import math

from scalebench import machine, registry, training_plan, worker_environment
from scalebench.configs import option_defaults
from scalebench.fingerprint import fingerprint
from scalebench.obstacles import obstacles
from scalebench.placing import crowded, oversubscribed, place, placed
from scalebench.plugins import PluginError
from scalebench.slurm import geometry
from scalebench.spec import CHIEF, Config, DatasetSpec, HardwareSpec, InputError, ModelSpec, Place, RunSpec
from scalebench.strategy import check_options, check_values
from scalebench.suggest import no_such
from scalebench.train_spec import OPTIMIZERS, RULES, SCHEDULES
from scalebench.workloads import datasets, networks, user_code

CPU_WORKERS = 2  # devices of a machine without a GPU, unless its YAML says otherwise
CHOICES = {
    "scaling": ("weak", "strong"),
    "baseline": ("auto", "bare", "none", "ladder"),
    "dataset.feed": ("host", "device", "fixed", "disk"),
    "dataset.prefetch": ("none", "queue", "device"),
    "measure.order": ("given", "random"),
    "hardware.bind": ("numa", "none", "far"),
    "hardware.layout": ("sequence", "spread"),
    "hardware.scheduler": ("none", "slurm"),
    "hardware.devices": ("auto", "cpu", "cuda"),
    "strategy.launcher": ("local", "mpi", "by_hand"),
    "train.optimizer": OPTIMIZERS,
    "train.learning_rate_rule": RULES,
    "train.schedule": SCHEDULES,
    "measure.search": ("none", "max_batch"),
    "dataset.dtype": ("float32", "uint8", "int32"),
    "train.precision": ("float32", "tf32", "bfloat16", "float16"),
    "train.data_format": ("default", "nhwc", "nchw"),
}
AT_LEAST = {
    "gpus": 1,
    "repeat": 0,
    "seed": 0,
    "dataset.size": 1,
    "dataset.requested_size": 1,
    "dataset.seed": 0,
    "dataset.image_size": 1,
    "dataset.classes": 2,
    "hardware.gpus_per_node": 1,
    "hardware.cpus_per_node": 1,
    "hardware.cpus_per_device": 1,
    "hardware.max_nodes": 1,
    "hardware.max_jobs": 1,
    "hardware.slurm.time_minutes": 1,
    "train.batch_per_device": 1,
    "train.global_batch": 1,
    "train.base_batch": 1,
    "train.accumulate": 1,
    "train.evaluate_samples": 1,
    "train.momentum": 0,
    "train.weight_decay": 0,
    "train.warmup_epochs": 0,
    "train.stop.steps": 1,
    "measure.memory_limit_bytes": 1,
    "measure.warmup_steps": 0,
    "measure.warmup_max_steps": 0,
    "measure.warmup_max_s": 0,
    "measure.min_s": 0,
    "measure.repeats": 1,
    "measure.cool_down_s": 0,
}
AT_MOST = {
    "gpus": 65_536,
    "dataset.size": 10**10,
    "train.batch_per_device": 10**8,
    "train.global_batch": 10**10,
    "measure.repeats": 1000,
    "measure.cool_down_s": 86_400,
}
POSITIVE = (
    "train.learning_rate",
    "train.decay",
    "train.evaluate_epochs",
    "train.evaluate_s",
    "train.stop.epochs",
    "train.stop.seconds",
    "train.stop.target",
    "measure.block_s",
    "measure.probe_s",
    "measure.max_s",
    "measure.target",
    "measure.hang_s",
    "measure.timeout_s",
    "sweep.max_minutes",
)


def resolve(config: Config) -> RunSpec:
    """The run that `config` means on this machine. Raises InputError for bad input."""
    check(config)
    hardware = detected(config.hardware)
    config, broken = workload(dataclasses.replace(config, hardware=hardware))
    config = dataclasses.replace(config, train=training_plan.planned(config.train, config.measure.timeout_s))
    gpus = config.gpus or len(hardware.device_ids) or hardware.gpus_per_node or CPU_WORKERS
    batch_per_device, global_batch = batches(config, gpus, sized=broken is None)
    config = dataclasses.replace(config, gpus=gpus)
    device = hardware.devices
    places = place(config, gpus)
    if broken is None:
        training_plan.check_samples(config, gpus, global_batch, sum(p.role in ("", CHIEF) for p in places))
    hardware = placed(hardware, gpus, places)
    config = dataclasses.replace(config, hardware=hardware)
    return RunSpec(
        config=config,
        device=device,
        gpus=gpus,
        nodes=max(p.node for p in places) + 1,
        places=places,
        batch_per_device=batch_per_device,
        global_batch=global_batch,
        fingerprint=fingerprint(config, gpus, device),
        flags=_flags(config, gpus, places),
        unsupported="; ".join(obstacles(config, gpus)) or None,
        broken=None if broken is None else str(broken),
        broken_log="" if broken is None else broken.log,
    )


def _flags(config: Config, gpus: int, places: list[Place]) -> list[str]:
    """What a reader of the row must know that is clear beforehand."""
    found = ["oversubscribed"] if oversubscribed(config.hardware, gpus) or crowded(config.hardware, places) else []
    return [*found, "inexact"] if config.strategy.inexact is not None else found


def workload(config: Config) -> tuple[Config, PluginError | None]:
    """With model and data set as they are for each other; and what is wrong with a plugin that the run needs."""
    asked = config
    try:
        config = dataclasses.replace(
            config, model=user_code.identify_model(config.model)
        )  # a failed row has the name too
        registry.refuse_broken(asked)
        config = datasets.fill_from_samples(config)
        config = dataclasses.replace(config, model=sized(config), dataset=fed(config.dataset))
        datasets.check(config)
    except PluginError as error:
        return config, error
    return config, None


def check(config: Config) -> None:
    """Names and figures that make no sense on any machine: InputError."""
    registry.find(config.strategy.name)
    check_options(config.strategy.name, config.strategy.options, option_defaults(config.strategy.name))
    check_values(config.strategy)
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
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InputError(f"{key}={value} should be a finite number above 0")
    worker_environment.check(config.hardware)
    geometry.check(config.hardware)
    training_plan.check(config)
    _check_elsewhere(config.hardware)
    if not 0 <= config.dataset.validation_share < 1:
        raise InputError(f"dataset.validation_share={config.dataset.validation_share} should be in [0, 1)")
    if config.measure.max_s < config.measure.min_s:
        raise InputError(f"measure.max_s={config.measure.max_s:g} is below measure.min_s={config.measure.min_s:g}")


def _check_elsewhere(hardware: HardwareSpec) -> None:
    """What cannot be detected must be said, and a folder of a node stands nowhere beside this one."""
    if hardware.stage is not None and not hardware.stage.startswith(("/", "$")):
        raise InputError(f"hardware.stage={hardware.stage} should be a whole path, since each node has its own")
    if not hardware.here and hardware.devices == "auto":
        raise InputError(f"hardware={hardware.name} is another machine, which cannot be looked at; say devices: cuda")


def _get(config: Config, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def sized(config: Config) -> ModelSpec:
    """The model for the samples of the data set, with the number of parameters that it has at that size; of a user's
    own, which only its framework can make, as it is.

    InputError where the two do not go together.
    """
    model, size = config.model, config.dataset.image_size
    own = user_code.is_user_model(model)
    shape = model.input_shape if own else networks.resolve_input_shape(model)
    if size is not None and len(shape) == 3:
        shape = [size, size, shape[-1]]
    if own:
        return dataclasses.replace(model, input_shape=shape)
    target = networks.resolve_target_shape(model)
    if (shape, target) != (model.input_shape, model.target_shape) or networks.has_changed_options(model):
        model = dataclasses.replace(model, input_shape=shape, target_shape=target, params=None)
    found = networks.build_network(model).parameters
    if model.params not in (None, found):
        raise InputError(
            f"model.params={model.params} is asserted, but {model.name} has {found} parameters as it is configured; "
            f"set model.params=null"
        )
    return dataclasses.replace(model, params=found)


def fed(dataset: DatasetSpec) -> DatasetSpec:
    """Without prefetching where nothing is left to do in advance, so that such runs of a sweep are one run."""
    return dataclasses.replace(dataset, prefetch="none") if dataset.feed in ("device", "fixed") else dataset


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


def batches(config: Config, gpus: int, sized: bool = True) -> tuple[int, int]:
    """(batch_per_device, global_batch) in samples; InputError when they leave a device without any.

    `sized`: whether it is known how many samples there are.
    """
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
    samples = datasets.count_train_samples(config.dataset)
    if sized and config.dataset.path is None and samples < global_batch:
        raise InputError(
            f"{samples} training samples are fewer than one global batch of {global_batch}: "
            f"raise dataset.size or lower train.batch_per_device"
        )
    return per_device, global_batch
