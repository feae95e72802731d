"""Resolve a config into a RunSpec: every default decided and every value checked before a process starts.

Bad input raises InputError. A well-formed run that is impossible here becomes a RunSpec with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scalebench.cluster import resources
from scalebench.cluster.jobset import check_kubernetes_options
from scalebench.config import validate
from scalebench.config.placement import Placement, compute_placement
from scalebench.config.script import has_script, settle_script
from scalebench.core import spec as specs
from scalebench.core.config_files import strategy_option_defaults
from scalebench.core.config_fingerprint import compute_fingerprint
from scalebench.core.errors import InputError, PluginError
from scalebench.core.machine import machine, private_network
from scalebench.strategies import registry
from scalebench.strategies.base import check_options, check_values
from scalebench.strategies.script.arguments import uses_batch
from scalebench.workloads import networks, user_code

# Some imports take as long as it takes to refuse a wrong value: they are in the functions that need them.

DEFAULT_CPU_WORKERS = 2  # devices of a machine without a GPU, unless its YAML says otherwise


@dataclass(frozen=True)
class Draft:
    """A run that is being resolved. Each step takes a draft and returns the next one, with more decided."""

    config: specs.Config
    plugin_error: PluginError | None = None  # the error of a plugin that the run needs
    gpus: int = 0
    batch_per_device: int = 0
    global_batch: int = 0
    placement: Placement | None = None


def resolve(config: specs.Config) -> specs.RunSpec:
    """Resolve a config into the run that it means on this machine. Raise InputError for bad input."""
    config = replace(config, gpus=_read_device_count(config.gpus))
    check_config(config)
    from scalebench.config.support import find_unsupported_reasons
    from scalebench.strategies import refusals
    from scalebench.workloads import datasets

    config = settle_script(config)
    requested_devices, requested_loss = config.hardware.devices, config.model.loss
    strategy, exact = config.strategy, config.strategy.exact_with
    options = strategy_option_defaults(strategy.name) | strategy.options  # a YAML has them all already
    strategy = replace(strategy, options=options)
    if strategy.approximate is not None and exact and all(options.get(key) == value for key, value in exact.items()):
        strategy = replace(strategy, approximate=None, tolerance=specs.StrategySpec.tolerance)
    draft = Draft(replace(config, strategy=strategy))
    for step in (fill_dataset, size_model, count_devices, set_batches, place_processes):
        draft = step(draft)
    config, placement = draft.config, draft.placement
    assert placement is not None
    samples = None if draft.plugin_error is not None else datasets.find_function_facts(config)
    unsupported = "; ".join(find_unsupported_reasons(config, draft.gpus, placement)) or None
    takes_cpu = requested_devices == "auto" and config.hardware.devices == "cpu"
    flags = {
        "oversubscribed": placement.oversubscribed,
        "approximate": config.strategy.approximate is not None,
        "unsupported_gpus": takes_cpu and machine.find_unsupported_gpus() is not None,
        "hidden_gpus": takes_cpu and config.hardware.this_machine and machine.find_hidden_gpus() is not None,
        "samples_cut": samples is not None and (samples.reading.available or 0) > samples.samples,
        "read_once": samples is not None and samples.reading.samples_per_s is not None,
        "one_hot_targets": samples is not None
        and samples.one_hot
        and (requested_loss, config.model.loss) == (user_code.AUTO, "mse"),
        "open_port": unsupported is None and private_network.opens_ports(config),
    }
    spec = specs.RunSpec(
        config=config,
        device=config.hardware.devices,
        gpus=draft.gpus,
        nodes=max(place.node for place in placement.places) + 1,
        places=placement.places,
        batch_per_device=draft.batch_per_device,
        global_batch=draft.global_batch,
        fingerprint=compute_fingerprint(config, draft.gpus, config.hardware.devices),
        flags=[flag for flag, raised in flags.items() if raised],
        read_samples_per_s=None if samples is None else samples.reading.samples_per_s,
        tokens_per_sample=None if draft.plugin_error is not None else datasets.count_tokens(config),
        unsupported=unsupported,
        plugin_error=None if draft.plugin_error is None else str(draft.plugin_error),
        plugin_traceback="" if draft.plugin_error is None else draft.plugin_error.log,
    )
    refusal = refusals.find_refusal(spec) if spec.can_start else None
    return spec if refusal is None else replace(spec, unsupported=refusal)


def check_config(config: specs.Config) -> None:
    """Raise InputError for names and values that make no sense on any machine."""
    registry.find_strategy(config.strategy.name)
    check_options(config.strategy.name, config.strategy.options, strategy_option_defaults(config.strategy.name))
    check_values(config.strategy)
    specs.check_fields(config)
    validate.check_environment(config.hardware)
    resources.check_slurm_options(config.hardware.slurm)
    check_kubernetes_options(config.hardware.kubernetes)
    validate.check_contradictions(config)


def fill_dataset(draft: Draft) -> Draft:
    """Name the model, and fill in what only the samples of a user's function can show."""
    from scalebench.workloads import datasets

    config = draft.config
    if has_script(config):
        return draft
    try:
        config = replace(config, model=user_code.identify_model(config.model))  # a failed result has the name, too
        registry.refuse_broken_plugins(draft.config)
        return replace(draft, config=datasets.fill_from_samples(config))
    except PluginError as error:
        return replace(draft, config=config, plugin_error=error)


def size_model(draft: Draft) -> Draft:
    """Give the model the shapes of the samples. Raise InputError where the two do not fit together."""
    from scalebench.workloads import datasets

    if draft.plugin_error is not None or has_script(draft.config):
        return draft
    config = draft.config
    if config.dataset.feed in ("device", "fixed"):  # nothing to prefetch: runs that differ only in that are one run
        config = replace(config, dataset=replace(config.dataset, prefetch="none"))
    try:
        config = replace(config, model=_resolve_model(config))
        datasets.check(config)
        config = _fill_global_batch(config)
    except PluginError as error:
        return replace(draft, config=config, plugin_error=error)
    return replace(draft, config=config)


def _fill_global_batch(config: specs.Config) -> specs.Config:
    """Return the config whose global batch holds train.global_tokens tokens, without that key."""
    from scalebench.workloads import datasets

    train, tokens = config.train, config.train.global_tokens
    if tokens is None:
        return config
    length = datasets.count_tokens(config)
    if length is None:
        raise InputError(
            f"train.global_tokens is of sequences, whose length is unknown for dataset={config.dataset.name} before a "
            "run: use train.global_batch"
        )
    if config.scaling != "strong" or train.global_batch is not None:
        raise InputError("train.global_tokens is kept with scaling=strong alone, and instead of train.global_batch")
    if tokens % length:
        raise InputError(f"train.global_tokens={tokens} is not a multiple of {length}, the tokens of a sequence")
    return replace(config, train=replace(train, global_tokens=None, global_batch=tokens // length))


def _resolve_model(config: specs.Config) -> specs.ModelSpec:
    """Return the model with its shapes and number of parameters. Those of a user's model are known to its framework
    only."""
    model, size = config.model, config.dataset.image_size
    is_user_model = user_code.is_user_model(model)
    shape = model.input_shape if is_user_model else networks.resolve_input_shape(model)
    if size is not None and len(shape) == 3:
        shape = [size, size, shape[-1]]
    if is_user_model:
        return replace(model, input_shape=shape)
    target = networks.resolve_target_shape(model)
    if (shape, target) != (model.input_shape, model.target_shape) or networks.has_changed_options(model):
        model = replace(model, input_shape=shape, target_shape=target, params=None)
    params = networks.build_network(model).parameters
    if model.params not in (None, params):
        raise InputError(
            f"model.params={model.params} is asserted, but {model.name} has {params} parameters as it is configured; "
            f"set model.params=null"
        )
    return replace(model, params=params)


def count_devices(draft: Draft) -> Draft:
    """Fill in what the hardware's YAML leaves open, from this machine if the YAML means it, and count the devices."""
    hardware = detect_hardware(draft.config.hardware)
    gpus = draft.config.gpus or count_all_devices(hardware)
    train = draft.config.train
    if train.precision == "default" and hardware.devices == "cpu" and not has_script(draft.config):
        # Frameworks compute in that by themselves there: both words are one run. On GPUs the card decides, too.
        train = replace(train, precision="float32")
    return replace(draft, config=replace(draft.config, hardware=hardware, train=train, gpus=gpus), gpus=gpus)


def _read_device_count(gpus: Any) -> int | None:
    """Return the number of devices that the key gpus names, None for all. Raise InputError for any other value."""
    if gpus is None or gpus == specs.ALL_DEVICES:
        return None
    if type(gpus) is not int:
        which = f"; hardware.device_ids={gpus} chooses devices" if isinstance(gpus, list) else ""
        raise InputError(
            f"gpus={gpus} should be a number of devices, several as in gpus=1,2, or {specs.ALL_DEVICES}{which}"
        )
    return gpus


def count_all_devices(hardware: specs.HardwareSpec) -> int:
    """Return the number of devices of one node of the hardware, whose open fields `detect_hardware` has filled in."""
    return len(hardware.device_ids) or hardware.gpus_per_node or DEFAULT_CPU_WORKERS


def detect_hardware(hardware: specs.HardwareSpec) -> specs.HardwareSpec:
    """Fill in the devices and cores of a node that the YAML leaves open."""
    devices, cpus = hardware.devices, hardware.cpus_per_node
    per_node = hardware.gpus_per_node
    if hardware.this_machine:
        gpus_here = machine.count_gpus()
        if not gpus_here and devices != "cpu" and (problem := machine.find_nvml_problem()):
            raise InputError(
                f"this machine has NVIDIA GPUs, and their library NVML does not answer ({problem}); "
                "see that nvidia-smi works, or take CPU workers with hardware=cpu"
            )
        looks_for_gpus = not gpus_here and devices == "auto" and not machine.has_chosen_no_gpu()
        if looks_for_gpus and (hidden := machine.find_hidden_gpus()):
            raise InputError(f"{hidden}: correct or unset it, or take CPU workers with hardware=cpu")
        if devices == "auto":
            devices = "cuda" if gpus_here else "cpu"
        cpus = cpus or machine.count_usable_cores()
        per_node = per_node or (gpus_here if devices == "cuda" and gpus_here else DEFAULT_CPU_WORKERS)
    elif per_node is None and not hardware.hosts:
        raise InputError(
            f"hardware={hardware.name} does not say how many devices a node has: set hardware.gpus_per_node, or "
            "have `scalebench new hardware NAME --partition P` write the YAML of your partition"
        )
    per_device = hardware.cpus_per_device or max(1, (cpus or 1) // (per_node or 1))
    return replace(hardware, devices=devices, gpus_per_node=per_node, cpus_per_node=cpus, cpus_per_device=per_device)


def set_batches(draft: Draft) -> Draft:
    """Set the batches and the end of the training. Raise InputError where a device would be left without samples."""
    config = draft.config
    train = validate.limit_training_time(config.train, config.measure.timeout_s)
    has_samples = draft.plugin_error is None and config.dataset.loader is None
    batch_per_device, global_batch = _compute_batches(config, draft.gpus, has_samples)
    config = replace(config, train=train)
    return replace(draft, config=config, batch_per_device=batch_per_device, global_batch=global_batch)


def _compute_batches(config: specs.Config, gpus: int, has_samples: bool) -> tuple[int, int]:
    """Return (batch_per_device, global_batch) in samples. Raise InputError where they leave a device without any.

    `has_samples` is false where the number of samples is unknown, since a plugin is broken or a loader gives them.
    """
    from scalebench.workloads import datasets

    train = config.train
    if has_script(config) and not uses_batch(config):
        return 0, 0  # the run counts them
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
    if has_samples and not has_script(config) and config.dataset.path is None and samples < global_batch:
        dataset, more = config.dataset, "raise dataset.size"
        if dataset.requested_size is not None and dataset.requested_size > dataset.size:  # a function of the user's
            made_by = f"dataset.builder={dataset.builder}" if dataset.builder else f"dataset={dataset.name}"
            more = f"{made_by} gave {dataset.size} of dataset.size={dataset.requested_size}; have it give more"
        raise InputError(
            f"{samples} training samples are fewer than one global batch of {global_batch}: {more} or lower "
            "train.batch_per_device"
        )
    return per_device, global_batch


def place_processes(draft: Draft) -> Draft:
    """Place the processes on nodes, devices and cores. Raise InputError where each has too few samples."""
    config, gpus = draft.config, draft.gpus
    if has_script(config) and config.hardware.devices == "cuda":  # as under torchrun
        config = replace(config, hardware=replace(config.hardware, bind="none"))
    placement = compute_placement(config, gpus)
    if draft.plugin_error is None and not has_script(config):
        replicas = sum(place.role in ("", specs.CHIEF) for place in placement.places)
        validate.check_samples(config, gpus, draft.global_batch, replicas)
    # The record keeps only the layout, devices and variables that this run uses, so that equal runs are one run.
    max_devices = max(len(place.devices) for place in placement.places)
    hardware = replace(
        config.hardware,
        layout="sequence" if placement.in_sequence else config.hardware.layout,
        device_ids=config.hardware.device_ids[: max(max_devices, *placement.devices_per_node)],
        environment=validate.select_environment(config.hardware, gpus),
    )
    return replace(draft, config=replace(config, hardware=hardware), placement=placement)
