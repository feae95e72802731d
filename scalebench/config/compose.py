"""YAML files and overrides -> one composed config, by Hydra's rules, and from that the typed `Config`.

Hydra reads every file anew for every run, which takes 0.1 s. A sweep composes each run twice: `CachingLoader` reads a
file once, merges the files once for each choice of them, and sets the other overrides in a copy of that.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime, setup_globals
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from scalebench.config.resolve import CPU_WORKERS
from scalebench.core import config_files
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError, no_such
from scalebench.core.json_files import from_dict
from scalebench.core.machine import machine
from scalebench.core.spec import Config
from scalebench.strategies import registry

HYDRA_VERSION = "1.3"  # whose defaults and rules apply
STAND_INS = {"dataset": {"size": 10**9}}  # for YAML files of plugins: enough for any batch, since nobody makes them
MAX_BASES = 512  # merged configs that a loader keeps; each takes 0.2 MB
_stand_ins: set[tuple[str, str]] = set()  # in Hydra's store


def register() -> list[str]:
    """Add the spine, our launcher, our sweeper and what plugins bring to Hydra's store. Returns what is wrong with a
    plugin without making any run fail."""
    OmegaConf.register_new_resolver("each_device", each_device, replace=True)
    OmegaConf.register_new_resolver("pair_of_each_link", pair_of_each_link, replace=True)
    store = ConfigStore.instance()
    store.store(name="spine", node=_spine(), provider="scalebench")
    for group, name in _stand_ins - registry.without_yaml():
        store.repo[group].pop(f"{name}.yaml")
        _stand_ins.discard((group, name))
    for group, name in registry.without_yaml():  # so that the run composes, and fails by itself
        node = {"name": name, **STAND_INS.get(group, {})}
        store.store(group=group, name=name, node=node, provider="scalebench")
        _stand_ins.add((group, name))
    namespace = str(Path(__file__).parents[1] / "sweeps" / "hydra_namespace")
    if namespace not in sys.path:
        sys.path.append(namespace)
    importlib.import_module("hydra_plugins.scalebench")  # puts its launcher and its sweeper into the store
    return config_files.found().warnings


@functools.cache
def _spine() -> DictConfig:
    """The typed config that every YAML file is merged into. Hydra copies it when it loads it."""
    spine: DictConfig = OmegaConf.structured(Config)
    # These take keys that nobody can list in advance: Hydra would ask for a + before them.
    for keys in (spine.hardware.environment, spine.model.options, spine.dataset.options):
        OmegaConf.set_struct(keys, False)
    return spine


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the config of one run as the command line would."""
    register()
    setup_globals()
    version.setbase(HYDRA_VERSION)
    JobRuntime.instance().set("name", "scalebench")
    with hydra_raises_errors():
        words = list(overrides)
        composed = _loader(_files_state()).load_configuration("config", words, RunMode.RUN, from_shell=False)
    with open_dict(composed):
        del composed["hydra"]
    return composed


def compose_config(overrides: Sequence[str]) -> Config:
    """Compose the typed config of one run. InputError for what is no key of it, or has no value."""
    return to_config(compose(overrides))


def to_config(composed: DictConfig) -> Config:
    """Turn a composed config into the plain dataclass, every interpolation resolved. InputError for a missing value."""
    tree = {}
    fields = [f.name for f in dataclasses.fields(Config)]
    for key in composed:
        if key != "hydra" and key not in fields:
            raise InputError(no_such("key", str(key), fields))
        if key != "hydra":  # whose own interpolations only resolve within a job
            node = composed[key]
            plain = OmegaConf.is_config(node)
            tree[key] = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if plain else node
    try:
        return from_dict(Config, tree)
    except ValueError as error:
        raise InputError(str(error)) from error


@contextlib.contextmanager
def hydra_raises_errors() -> Iterator[None]:
    """Make Hydra raise its errors instead of printing them and exiting, so that each can be said in one line."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def each_device() -> str:
    """Every device of this machine alone, as Hydra takes values of a sweep: `[0],[1]`. CPU workers without a GPU."""
    return ",".join(f"[{device}]" for device in range(machine.gpu_count() or CPU_WORKERS))


def pair_of_each_link() -> str:
    """The first pair of devices of each kind of link: `[0,1],[0,2]`. The first two where the links are unknown."""
    return ",".join(f"[{a},{b}]" for a, b in machine.pair_of_each_link() or [(0, 1)])


class PluginFolders(SearchPathPlugin):
    """Adds the YAML folders of plugins (entry points `scalebench.core.config_files`) to Hydra's search path, after ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for origin, folder in config_files.plugin_folders():
            search_path.append(provider=origin, path=f"file://{folder}")
        if config_files.found().unusable:  # then the stand-ins of `register` come first
            search_path.prepend(provider="schema", path="structured://")  # Hydra's name for its store


class CachingLoader(ConfigLoaderImpl):
    """Composes as Hydra's loader does, but reads each file once.

    Hydra's own loader handles everything else: overrides that add files (hydra.searchpath), and all that fails, so that
    the errors are Hydra's.
    """

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self.repository = _FilesReadOnce(search_path)
        self._bases: dict[tuple[str | None, tuple[str, ...]], DictConfig] = {}  # by the choices of files
        self._beginnings: dict[tuple[tuple[str | None, str | None], ...], DictConfig] = {}  # Hydra's own and the spine

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        if run_mode == RunMode.RUN and validate_sweep_overrides:
            with contextlib.suppress(Exception):
                return self._from_base(config_name, overrides)
        hydras = ConfigLoaderImpl(self.config_search_path)
        return hydras.load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)

    def _from_base(self, config_name: str | None, overrides: list[str]) -> DictConfig:
        parsed = OverridesParser.create().parse_overrides(overrides)
        self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=False)
        values = [override for override in parsed if self._is_value(override)]
        choices = tuple(str(override.input_line) for override in parsed if override not in values)
        if any("hydra.searchpath" in line for line in choices):
            raise ValueError("other files than those of this loader")
        if (config_name, choices) not in self._bases:
            base = super().load_configuration(config_name, list(choices), RunMode.RUN)
            if len(self._bases) >= MAX_BASES:
                del self._bases[next(iter(self._bases))]
            self._bases[config_name, choices] = base
        composed = copy.deepcopy(self._bases[config_name, choices])
        self._apply_overrides_to_config(values, composed)
        ours = [override for override in parsed if not override.is_hydra_override()]
        job = composed.hydra.job
        composed.hydra.overrides.task = [override.input_line for override in ours]
        job.override_dirname = get_overrides_dirname(ours, **job.config.override_dirname)
        composed.hydra.runtime.cwd = os.getcwd()
        return composed

    def _is_value(self, override: Override) -> bool:
        """Whether this override sets one of our values; the others choose a file or are for Hydra itself."""
        is_group = not isinstance(override.value(), dict) and self.repository.group_exists(override.key_or_group)
        return not is_group and not override.is_hydra_override()

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        length = sum(1 for each in defaults if str(each.config_path).startswith("hydra/")) + 1
        key = tuple((each.config_path, each.package) for each in defaults[:length])
        if key not in self._beginnings:
            self._beginnings[key] = super()._compose_config_from_defaults_list(defaults[:length], repo)
        composed = copy.deepcopy(self._beginnings[key])
        with flag_override(composed, "no_deepcopy_set_nodes", True):
            for default in defaults[length:]:
                loaded = self._load_single_config(default, repo).config
                if loaded._is_typed():  # Hydra removes the defaults list of a dataclass only when all is merged
                    return super()._compose_config_from_defaults_list(defaults, repo)
                composed.merge_with(loaded)
        return composed

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        read = repo.load_config(str(default.config_path))
        if read is not None and loaded.config is read.config:  # merging takes its nodes
            loaded = copy.copy(loaded)
            loaded.config = copy.deepcopy(read.config)
        return loaded


class _FilesReadOnce(ConfigRepository):
    """Keeps the files that it has read. They must not be changed: `CachingLoader` merges copies."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._read: dict[str, ConfigResult | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _FilesReadOnce:
        return self  # Hydra copies it for each run in case hydra.searchpath changes it, which is excluded here

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self._read:
            self._read[config_path] = super().load_config(config_path)
        return self._read[config_path]


def use_caching_loader(context: HydraContext) -> None:
    """Compose the runs of this sweep from files that are read once."""
    if not isinstance(context.config_loader, CachingLoader):
        context.config_loader = CachingLoader(context.config_loader.get_search_path())


@functools.lru_cache(maxsize=1)
def _loader(files: tuple[Any, ...]) -> CachingLoader:
    return CachingLoader(create_config_search_path(str(conf_dir())))


def _files_state() -> tuple[Any, ...]:
    """Identify the YAML files and plugins that a loader has read, which is replaced when any of them changes."""
    folders = [conf_dir(), *(folder for _, folder in config_files.plugin_folders())]
    stats = [(path, path.stat()) for folder in folders for path in folder.rglob("*.yaml")]
    files = tuple((str(path), found.st_mtime_ns, found.st_size) for path, found in stats)
    return files, frozenset(_stand_ins), frozenset(config_files.found().unusable)
