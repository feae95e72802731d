"""The registry of strategies by name, and of the models and datasets that plugins add.

It imports a strategy's module, or the code of a plugin, only to load it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
from dataclasses import dataclass
from typing import Any

from scalebench.core import config_files, plugins
from scalebench.core.config_fingerprint import LATER_OPTIONS
from scalebench.core.errors import InputError, PluginError, unknown_name_message
from scalebench.core.plugins import BUILT_IN, PLUGINS_VARIABLE, PluginEntry
from scalebench.core.spec import Config, RunSpec
from scalebench.strategies.base import Strategy

ENTRY_POINT_GROUP = "scalebench.strategies"
CONFIG_GROUPS = {"strategies": "strategy", "models": "model", "datasets": "dataset"}  # by kind of entry point

BUILT_IN_STRATEGIES: dict[str, str] = {
    "simulated": "scalebench.strategies.simulated:Simulated",
    "script": "scalebench.strategies.script.program:Script",
    "bare_torch": "scalebench.strategies.torch.base:BareTorch",
    "ddp": "scalebench.strategies.torch.compression:CompressedDdp",
    "ddp_nccl": "scalebench.strategies.torch.compression:CompressedDdp",
    "ddp_gloo": "scalebench.strategies.torch.compression:CompressedDdp",
    "fsdp": "scalebench.strategies.torch.sharded.fsdp:Fsdp",
    "fsdp_nccl": "scalebench.strategies.torch.sharded.fsdp:Fsdp",
    "fsdp_gloo": "scalebench.strategies.torch.sharded.fsdp:Fsdp",
    "hsdp": "scalebench.strategies.torch.sharded.fsdp:Hsdp",
    "zero1": "scalebench.strategies.torch.sharded.zero:Zero1",
    "data_parallel": "scalebench.strategies.torch.data_parallel:SingleProcessDataParallel",
    "lightning_ddp": "scalebench.strategies.torch.lightning.ddp:LightningDdp",
    "lightning_ddp_nccl": "scalebench.strategies.torch.lightning.ddp:LightningDdp",
    "lightning_ddp_gloo": "scalebench.strategies.torch.lightning.ddp:LightningDdp",
    **dict.fromkeys(
        ("lightning_fsdp", "lightning_fsdp_nccl", "lightning_fsdp_gloo"),
        "scalebench.strategies.torch.lightning.fsdp:LightningFsdp",
    ),
    "accelerate": "scalebench.strategies.accelerate:Accelerate",
    **{f"deepspeed_zero{stage}": f"scalebench.strategies.deepspeed:DeepSpeedZero{stage}" for stage in (1, 2, 3)},
    "tensor_parallel": "scalebench.strategies.torch.tensor_parallel:TensorParallel",
    "independent_torch": "scalebench.strategies.torch.base:IndependentTorch",
    "model_parallel": "scalebench.strategies.torch.pipeline:ModelParallel",
    "pipeline_gpipe": "scalebench.strategies.torch.pipeline:Pipeline",
    "pipeline_1f1b": "scalebench.strategies.torch.pipeline:Pipeline1F1B",
    "hybrid": "scalebench.strategies.torch.pipeline:Hybrid",
    "bare_tensorflow": "scalebench.strategies.tensorflow.bare:BareTensorFlow",
    "mirrored": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_nccl": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_nccl_unpacked": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_hierarchical": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_cpu": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_device": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_spread": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "central_storage_cpu": "scalebench.strategies.tensorflow.central_storage:CentralStorage",
    "central_storage_device": "scalebench.strategies.tensorflow.central_storage:CentralStorage",
    "central_storage_spread": "scalebench.strategies.tensorflow.central_storage:CentralStorage",
    "multi_gpu_model": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "kuza55_ps_cpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "kuza55_ps_gpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "avolkov1_ps_cpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "avolkov1_ps_gpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "multiworker_ring": "scalebench.strategies.tensorflow.multiworker:MultiWorker",
    "multiworker_nccl": "scalebench.strategies.tensorflow.multiworker:MultiWorker",
    "parameter_server": "scalebench.strategies.tensorflow.parameter_server:ParameterServer",
    "parameter_server_sync": "scalebench.strategies.tensorflow.parameter_server:SynchronousParameterServer",
    "model_parallel_tensorflow": "scalebench.strategies.tensorflow.model_parallel:TensorFlowModelParallel",
    "horovod": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_nccl": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_mpi": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_gloo": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_tensorflow_nccl": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_mpi": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_gloo": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "lightning_horovod": "scalebench.strategies.horovod.lightning:LightningHorovod",
    "independent_tensorflow": "scalebench.strategies.tensorflow.bare:IndependentTensorFlow",
}

# How to install the packages that a strategy's YAML `requires`.
INSTALL_HINTS: dict[str, str] = {
    "torch": "pip install 'scalebench-train[torch]'",
    "pytorch_lightning": "pip install 'scalebench-train[torch]'",
    "accelerate": "pip install 'scalebench-train[accelerate]'",
    "deepspeed": "DS_BUILD_OPS=0 pip install 'scalebench-train[deepspeed]'",
    "tensorflow": "pip install 'scalebench-train[tensorflow]'",
    **dict.fromkeys(("jax", "optax"), "pip install ./plugins/scalebench-jax in a checkout"),
    "horovod": "scalebench install horovod",
    "transformers": "pip install 'scalebench-train[hf]'",
}


@dataclass(frozen=True)
class RegistryEntry:
    """A registered name: its import path, its distribution, and the reason why it cannot be used."""

    name: str
    target: str | None  # "module:Class"; None: only a YAML file names it
    origin: str
    problem: str | None = None  # of a plugin: runs that need this name fail with this message


@functools.lru_cache(maxsize=1)
def strategy_entries() -> dict[str, RegistryEntry]:
    """Return all strategies by name: built-ins, entry points `scalebench.strategies` of installed packages, and names
    that only a YAML file of such a package contains."""
    entries = {name: RegistryEntry(name, target, BUILT_IN) for name, target in BUILT_IN_STRATEGIES.items()}
    entries |= plugin_entries("strategies")
    for group, name in config_files.find_config_files().unusable:
        if group == "strategy" and name not in entries:
            entries[name] = RegistryEntry(
                name,
                None,
                config_files.file_origin(group, name) or BUILT_IN,
                config_files.find_config_files().problems[group, name],
            )
    for path in config_files.list_options("strategy").values():
        name = config_files.read_name(path) or path.stem
        origin = config_files.file_origin("strategy", path.stem) or BUILT_IN
        if name not in entries and origin != BUILT_IN:
            problem = (
                f"strategy '{name}': {origin} brings strategy/{path.name} and no entry point {ENTRY_POINT_GROUP} of "
                f"that name"
            )
            entries[name] = RegistryEntry(name, None, origin, problem)
    return entries


def plugin_entries(kind: str) -> dict[str, RegistryEntry]:
    """Return the entries, usable or not, that plugins register under a kind of entry point such as "models"."""
    by_name: dict[str, list[PluginEntry]] = {}
    for point in plugins.plugin_entries(kind):
        by_name.setdefault(point.name, []).append(point)
    return {name: _plugin_entry(kind, name, same_name) for name, same_name in by_name.items()}


def _plugin_entry(kind: str, name: str, same_name: list[PluginEntry]) -> RegistryEntry:
    group, first = CONFIG_GROUPS[kind], same_name[0]
    taken = name in BUILT_IN_STRATEGIES if group == "strategy" else config_files.file_origin(group, name) == BUILT_IN
    origins = [*([BUILT_IN] if taken else []), *(point.origin for point in same_name)]
    if len(origins) > 1:
        problem: str | None = (
            f"{group} '{name}' is registered by both {origins[0]} and {origins[1]}; "
            f"uninstall one of them or set {PLUGINS_VARIABLE}"
        )
        return RegistryEntry(name, BUILT_IN_STRATEGIES.get(name) if taken else first.target, origins[0], problem)
    problem = plugins.api_problem(first.origin)
    if problem is not None:
        problem = f"{group} '{name}': {problem}"
    elif config_files.file_origin(group, name) is None:
        problem = (
            f"{group} '{name}': {first.origin} registers it and brings no {group}/{name}.yaml: it needs that file, "
            f"in a package that its entry point {config_files.GROUP} names"
        )
    return RegistryEntry(name, first.target, first.origin, problem)


def names_without_yaml() -> set[tuple[str, str]]:
    """Return (config group, name) of the entries of plugins that have no file that Hydra could compose."""
    registered = {(group, name) for kind, group in CONFIG_GROUPS.items() for name in plugin_entries(kind)}
    return {
        (group, name) for group, name in registered if config_files.file_origin(group, name) is None
    } | config_files.find_config_files().unusable


def find_strategy(name: str) -> RegistryEntry:
    """Return the entry of that name; raise InputError with the nearest name if there is none."""
    entries = strategy_entries()
    if name not in entries:
        raise InputError(unknown_name_message("strategy", name, entries))
    return entries[name]


def load_strategy(name: str) -> type[Strategy]:
    """Import the class of a strategy; raise PluginError if a plugin's entry point does not provide one."""
    entry = find_strategy(name)
    if entry.problem is not None:
        raise PluginError(entry.problem)
    assert entry.target is not None, "an entry without a target has a problem"
    label = f"strategy '{name}' of {entry.origin}"
    loaded = plugins.load_object(entry.target, label)
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
        raise PluginError(f"{label}: {entry.target} is no subclass of scalebench.plugin_api.Strategy")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise PluginError(f"{label}: {entry.target} lacks what each strategy has: {missing}")
    return loaded


def create_strategy(spec: RunSpec, rank: int) -> Strategy:
    """Create the strategy of one rank of a run; raise PluginError like load_strategy, or if a plugin's class and its
    YAML have different options."""
    name = spec.config.strategy.name
    strategy_class = load_strategy(name)
    if find_strategy(name).origin != BUILT_IN:
        check_options_agree(name, strategy_class, spec.config.strategy.options)
    return strategy_class(spec, rank)


def check_options_agree(name: str, strategy_class: type[Strategy], options: dict[str, Any]) -> None:
    """Raise PluginError unless the YAML of a plugin's strategy lists the options of its class."""
    label, class_name = f"strategy '{name}' of {find_strategy(name).origin}", strategy_class.__name__
    if not (isinstance(strategy_class.Options, type) and dataclasses.is_dataclass(strategy_class.Options)):
        raise PluginError(f"{label}: {class_name}.Options should be a dataclass, with a default for each field")
    fields = {field.name for field in dataclasses.fields(strategy_class.Options)}
    # A plugin whose class inherits from scalebench's need not list options that were added to that one later.
    missing = fields - set(options) - set(LATER_OPTIONS)
    sides = {f"strategy/{name}.yaml": set(options) - fields, f"{class_name}.Options": missing}
    only = [f"{', '.join(sorted(keys))} only in {side}" for side, keys in sides.items() if keys]
    if only:
        raise PluginError(f"{label} has other options in its YAML than in its class: {'; '.join(only)}")


def refuse_broken_plugins(config: Config) -> None:
    """Raise PluginError if a name that this run chooses comes from an unusable plugin: a name registered twice, a newer
    API, or no YAML. Imports nothing."""
    names = {
        "strategy": config.strategy.name,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "hardware": config.hardware.name,
    }
    for kind, group in CONFIG_GROUPS.items():
        entry = (strategy_entries() if kind == "strategies" else plugin_entries(kind)).get(names[group])
        if entry is not None and entry.problem is not None:
            raise PluginError(entry.problem)
    for chosen in names.items():
        if chosen in config_files.find_config_files().problems:
            raise PluginError(config_files.find_config_files().problems[chosen])
    _refuse_missing_baseline(config)


def _refuse_missing_baseline(config: Config) -> None:
    """Raise PluginError if a plugin's strategy names a baseline that does not exist, which would end a sweep that adds
    the baseline."""
    name, baseline = config.strategy.name, config.strategy.baseline
    entry = strategy_entries().get(name)
    if entry is None or entry.origin == BUILT_IN or baseline is None:
        return
    if baseline not in strategy_entries() or strategy_entries()[baseline].target is None:
        usable = [other.name for other in strategy_entries().values() if other.target is not None]
        raise PluginError(
            f"strategy '{name}' of {entry.origin} names the baseline '{baseline}': "
            f"{unknown_name_message('strategy', baseline, usable)}"
        )


def missing_packages(requires: list[str]) -> list[str]:
    """Return the import names that are not installed, without importing anything."""
    return [name for name in requires if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a submodule of a missing package, or an invalid name
        return False


def install_hint(package: str) -> str:
    """Return the command or instruction that installs a package."""
    return INSTALL_HINTS.get(package, f"pip install {package}")
