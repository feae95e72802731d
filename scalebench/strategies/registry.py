"""Names -> what stands behind them: the strategies' classes, and which plugin adds what. Layer 1.

Imports an adapter, or the code of a plugin, only when it is asked for one.
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
CONFIG_GROUPS = {
    "strategies": "strategy",
    "models": "model",
    "datasets": "dataset",
}  # kind of entry point -> config group

BUILT_IN: dict[str, str] = {
    "simulated": "scalebench.strategies.simulated:Simulated",
    "bare_torch": "scalebench.strategies.torch.bare:BareTorch",
    "ddp": "scalebench.strategies.torch.ddp:Ddp",
    "ddp_nccl": "scalebench.strategies.torch.ddp:Ddp",
    "ddp_gloo": "scalebench.strategies.torch.ddp:Ddp",
    "fsdp_nccl": "scalebench.strategies.torch.fsdp:Fsdp",
    "fsdp_gloo": "scalebench.strategies.torch.fsdp:Fsdp",
    "zero1": "scalebench.strategies.torch.zero:Zero1",
    "data_parallel": "scalebench.strategies.torch.data_parallel:SingleProcessDataParallel",
    "lightning_ddp": "scalebench.strategies.torch.lightning:LightningDdp",
    "lightning_ddp_nccl": "scalebench.strategies.torch.lightning:LightningDdp",
    "lightning_ddp_gloo": "scalebench.strategies.torch.lightning:LightningDdp",
    "tensor_parallel": "scalebench.strategies.torch.tensor_parallel:TensorParallel",
    "independent_torch": "scalebench.strategies.torch.bare:IndependentTorch",
    "model_parallel": "scalebench.strategies.torch.pipeline:ModelParallel",
    "pipeline_gpipe": "scalebench.strategies.torch.pipeline:Pipeline",
    "pipeline_1f1b": "scalebench.strategies.torch.pipeline:Pipeline1F1B",
    "hybrid": "scalebench.strategies.torch.pipeline:Hybrid",
    "bare_tensorflow": "scalebench.strategies.tensorflow.bare:BareTensorFlow",
    "mirrored": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_nccl": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_hierarchical": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_cpu": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "mirrored_reduce_device": "scalebench.strategies.tensorflow.mirrored:Mirrored",
    "central_storage_cpu": "scalebench.strategies.tensorflow.central_storage:CentralStorage",
    "central_storage_device": "scalebench.strategies.tensorflow.central_storage:CentralStorage",
    "multi_gpu_model": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "kuza55_ps_cpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "kuza55_ps_gpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "avolkov1_ps_cpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "avolkov1_ps_gpu": "scalebench.strategies.tensorflow.in_graph:InGraph",
    "multiworker_ring": "scalebench.strategies.tensorflow.multiworker:MultiWorker",
    "multiworker_nccl": "scalebench.strategies.tensorflow.multiworker:MultiWorker",
    "parameter_server": "scalebench.strategies.tensorflow.parameter_server:ParameterServer",
    "model_parallel_tensorflow": "scalebench.strategies.tensorflow.model_parallel:TensorFlowModelParallel",
    "horovod_nccl": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_mpi": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_gloo": "scalebench.strategies.horovod.torch:HorovodTorch",
    "horovod_tensorflow_nccl": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_mpi": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "horovod_tensorflow_gloo": "scalebench.strategies.horovod.tensorflow:HorovodTensorFlow",
    "lightning_horovod": "scalebench.strategies.horovod.lightning:LightningHorovod",
    "independent_tensorflow": "scalebench.strategies.tensorflow.bare:IndependentTensorFlow",
}

# How to get what a strategy's YAML `requires`.
INSTALL_HINTS: dict[str, str] = {
    "torch": "pip install 'scalebench[torch]'",
    "pytorch_lightning": "pip install 'scalebench[torch]'",
    "tensorflow": "pip install 'scalebench[tensorflow]'",
    **dict.fromkeys(("jax", "optax"), "pip install scalebench-jax"),
    "horovod": "make horovod in a checkout of scalebench; see docs/horovod.md",
}


@dataclass(frozen=True)
class RegistryEntry:
    """A registered name: what to import, which distribution it comes from, and why it cannot be used."""

    name: str
    target: str | None  # "module:Class"; None: not registered, and only a YAML names it
    origin: str
    problem: str | None = None  # of a plugin: runs that need this name fail with it


@functools.lru_cache(maxsize=1)
def strategy_entries() -> dict[str, RegistryEntry]:
    """All strategies by name: built-ins, entry points `scalebench.strategies` of installed packages, and what only a
    YAML file of theirs names."""
    entries = {name: RegistryEntry(name, target, BUILT_IN) for name, target in BUILT_IN.items()}
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
            problem = f"strategy '{name}': {origin} brings strategy/{path.name} and no entry point {ENTRY_POINT_GROUP} of that name"
            entries[name] = RegistryEntry(name, None, origin, problem)
    return entries


def plugin_entries(kind: str) -> dict[str, RegistryEntry]:
    """What plugins register under that kind of entry point ("models"), by name; sound or not."""
    by_name: dict[str, list[PluginEntry]] = {}
    for point in plugins.plugin_entries(kind):
        by_name.setdefault(point.name, []).append(point)
    return {name: _plugin_entry(kind, name, of_name) for name, of_name in by_name.items()}


def _plugin_entry(kind: str, name: str, of_name: list[PluginEntry]) -> RegistryEntry:
    group, first = CONFIG_GROUPS[kind], of_name[0]
    taken = name in BUILT_IN if group == "strategy" else config_files.file_origin(group, name) == BUILT_IN
    origins = [*([BUILT_IN] if taken else []), *(point.origin for point in of_name)]
    if len(origins) > 1:
        problem: str | None = (
            f"{group} '{name}' is registered by both {origins[0]} and {origins[1]}; "
            f"uninstall one of them or set {PLUGINS_VARIABLE}"
        )
        return RegistryEntry(name, BUILT_IN.get(name) if taken else first.target, origins[0], problem)
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
    """(config group, name) of what plugins bring without a file that Hydra could compose."""
    named = {(group, name) for kind, group in CONFIG_GROUPS.items() for name in plugin_entries(kind)}
    return {
        (group, name) for group, name in named if config_files.file_origin(group, name) is None
    } | config_files.find_config_files().unusable


def find_strategy(name: str) -> RegistryEntry:
    """The entry of that name; InputError with the nearest name otherwise."""
    entries = strategy_entries()
    if name not in entries:
        raise InputError(unknown_name_message("strategy", name, entries))
    return entries[name]


def load_strategy(name: str) -> type[Strategy]:
    """Import the class behind a name. PluginError when a plugin does not hold what it registered."""
    entry = find_strategy(name)
    if entry.problem is not None:
        raise PluginError(entry.problem)
    assert entry.target is not None, "what is not registered has a problem"
    what = f"strategy '{name}' of {entry.origin}"
    found = plugins.load_object(entry.target, what)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise PluginError(f"{what}: {entry.target} is no subclass of scalebench.plugin_api.Strategy")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PluginError(f"{what}: {entry.target} lacks what each strategy has: {missing}")
    return found


def create_strategy(spec: RunSpec, rank: int) -> Strategy:
    """The strategy of one rank of a run. PluginError as load, and where a plugin's class and its YAML differ."""
    name = spec.config.strategy.name
    kind = load_strategy(name)
    if find_strategy(name).origin != BUILT_IN:
        check_options_agree(name, kind, spec.config.strategy.options)
    return kind(spec, rank)


def check_options_agree(name: str, kind: type[Strategy], options: dict[str, Any]) -> None:
    """PluginError unless the YAML of a plugin's strategy lists the options that its class has."""
    what = f"strategy '{name}' of {find_strategy(name).origin}"
    if not (isinstance(kind.Options, type) and dataclasses.is_dataclass(kind.Options)):
        raise PluginError(f"{what}: {kind.__name__}.Options should be a dataclass, with a default for each field")
    has = [field.name for field in dataclasses.fields(kind.Options)]
    # A plugin that builds upon a class of ours need not list what that class was given later.
    missing = set(has) - set(options) - set(LATER_OPTIONS)
    sides = {f"strategy/{name}.yaml": set(options) - set(has), f"{kind.__name__}.Options": missing}
    only = [f"{', '.join(sorted(keys))} only in {side}" for side, keys in sides.items() if keys]
    if only:
        raise PluginError(f"{what} has other options in its YAML than in its class: {'; '.join(only)}")


def refuse_broken_plugins(config: Config) -> None:
    """PluginError where something that this run chose by name comes from a plugin that cannot go: the same name twice,
    a later API, no YAML. Imports nothing."""
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
    """One that a plugin names for its strategy, and which is not there, would end the sweep that adds it."""
    name, baseline = config.strategy.name, config.strategy.baseline
    entry = strategy_entries().get(name)
    if entry is None or entry.origin == BUILT_IN or baseline is None:
        return
    if baseline not in strategy_entries() or strategy_entries()[baseline].target is None:
        known = [other.name for other in strategy_entries().values() if other.target is not None]
        raise PluginError(
            f"strategy '{name}' of {entry.origin} names the baseline '{baseline}': "
            f"{unknown_name_message('strategy', baseline, known)}"
        )


def missing_packages(requires: list[str]) -> list[str]:
    """Those of the import names that are not installed; nothing is imported."""
    return [name for name in requires if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of a part of a package that is not there, or no name at all
        return False


def install_hint(package: str) -> str:
    return INSTALL_HINTS.get(package, f"pip install {package}")
