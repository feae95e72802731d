"""The registry of strategies by name, and of the models and datasets that plugins add.

It imports a strategy's module, or the code of a plugin, only to load it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
from dataclasses import dataclass

from scalebench.core import config_files, plugins
from scalebench.core.errors import InputError, PluginError, unknown_name_message
from scalebench.core.plugins import BUILT_IN, PLUGINS_VARIABLE, PluginEntry
from scalebench.core.spec import Config, RunSpec
from scalebench.strategies.base import Strategy

CONFIG_GROUPS = {"models": "model", "datasets": "dataset"}  # by kind of entry point

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
    """A registered name: its distribution, and the reason why it cannot be used."""

    name: str
    origin: str
    problem: str | None = None  # of a plugin: runs that need this name fail with this message


@functools.lru_cache(maxsize=1)
def strategy_entries() -> dict[str, RegistryEntry]:
    """Return all strategies by name, those of our YAML files and of plugins, which name the class as `adapter`."""
    entries = {}
    for file_name, path in config_files.list_options("strategy").items():
        origin = config_files.file_origin("strategy", file_name) or BUILT_IN
        name = config_files.read_name(path) or file_name
        if name != file_name and name in built_in_strategies():  # one of ours with other options
            continue
        problem = config_files.find_conflict("strategy", file_name)
        try:
            if origin != BUILT_IN and not config_files.read_composed("strategy", path).get("adapter"):
                fault = "which names no class: add adapter: MODULE:CLASS"
                problem = f"strategy '{name}': {origin} brings strategy/{path.name}, {fault}"
        except PluginError as error:
            problem = str(error)
        entries[name] = RegistryEntry(name, origin, problem)
    return entries


@functools.lru_cache(maxsize=1)
def built_in_strategies() -> list[str]:
    """Return the names of scalebench's own strategies."""
    return sorted(path.stem for path in config_files.conf_dir().glob("strategy/*.yaml"))


def plugin_entries(kind: str) -> dict[str, RegistryEntry]:
    """Return the entries, usable or not, that plugins register under a kind of entry point such as "models"."""
    by_name: dict[str, list[PluginEntry]] = {}
    for point in plugins.plugin_entries(kind):
        by_name.setdefault(point.name, []).append(point)
    return {name: _plugin_entry(kind, name, same_name) for name, same_name in by_name.items()}


def _plugin_entry(kind: str, name: str, same_name: list[PluginEntry]) -> RegistryEntry:
    group, first = CONFIG_GROUPS[kind], same_name[0]
    ours = [BUILT_IN] if config_files.file_origin(group, name) == BUILT_IN else []
    origins = [*ours, *(point.origin for point in same_name)]
    problem = None
    if len(origins) > 1:
        problem = (
            f"{group} '{name}' is registered by both {origins[0]} and {origins[1]}; "
            f"uninstall one of them or set {PLUGINS_VARIABLE}"
        )
    elif config_files.file_origin(group, name) is None:
        problem = (
            f"{group} '{name}': {first.origin} registers it and brings no {group}/{name}.yaml: it needs that file, "
            f"in a package that its entry point {config_files.GROUP} names"
        )
    return RegistryEntry(name, origins[0], problem)


def describe_unmade(group: str, name: str) -> str | None:
    """Return what is wrong with the YAML of a plugin's model or data set without an entry point; None where there is
    no such file. One that names its function needs no entry point."""
    origin, kind = config_files.file_origin(group, name), f"{group}s"
    if origin in (None, BUILT_IN) or name in plugin_entries(kind):
        return None
    return (
        f"{group} '{name}': {origin} brings {group}/{name}.yaml, which no function makes: add the entry point "
        f'{name} = "MODULE:FUNCTION" in scalebench.{kind}, and install it again'
    )


def find_strategy(name: str) -> RegistryEntry:
    """Return the entry of that name; raise InputError with the nearest name if there is none."""
    entries = strategy_entries()
    if name not in entries:
        raise InputError(unknown_name_message("strategy", name, entries))
    return entries[name]


def load_strategy(name: str, adapter: str | None = None) -> type[Strategy]:
    """Import the class of a strategy, the `adapter` of its YAML; raise PluginError if it is none."""
    entry = find_strategy(name)
    if entry.problem is not None:
        raise PluginError(entry.problem)
    target = adapter or str(config_files.read_strategy_config(name)["adapter"])
    label = f"strategy '{name}' of {entry.origin}"
    loaded = plugins.load_object(target, label)
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
        raise PluginError(f"{label}: {target} is not a subclass of scalebench.plugin_api.Strategy")
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise PluginError(f"{label}: {target} lacks what each strategy has: {missing}")
    return loaded


def create_strategy(spec: RunSpec, rank: int) -> Strategy:
    """Create the strategy of one rank of a run; raise PluginError like load_strategy."""
    strategy = spec.config.strategy
    return load_strategy(strategy.name, strategy.adapter)(spec, rank)


def refuse_broken_plugins(config: Config) -> None:
    """Raise PluginError if a name that this run chooses comes from an unusable plugin: a name registered twice,
    no YAML, or a baseline that there is not. Imports nothing."""
    names = {
        "strategy": config.strategy.name,
        "model": config.model.name,
        "dataset": config.dataset.name,
        "hardware": config.hardware.name,
    }
    for entries, group in (
        (strategy_entries(), "strategy"),
        *((plugin_entries(kind), group) for kind, group in CONFIG_GROUPS.items()),
    ):
        entry = entries.get(names[group])
        if entry is not None and entry.problem is not None:
            raise PluginError(entry.problem)
    for conflict in filter(None, itertools.starmap(config_files.find_conflict, names.items())):
        raise PluginError(conflict)
    functions = {
        "model": config.model.torch or config.model.keras,
        "dataset": config.dataset.builder or config.dataset.loader,
    }
    for group, function in functions.items():
        if function is None and (problem := describe_unmade(group, names[group])) is not None:
            raise PluginError(problem)
    name, baseline = config.strategy.name, config.strategy.baseline
    entry = strategy_entries().get(name)
    usable = [each.name for each in strategy_entries().values() if each.problem is None]
    if entry is not None and entry.origin != BUILT_IN and baseline not in (None, *usable):  # a sweep would add it
        raise PluginError(
            f"strategy '{name}' of {entry.origin} names the baseline '{baseline}': "
            f"{unknown_name_message('strategy', str(baseline), usable)}"
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
