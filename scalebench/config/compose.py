"""Compose YAML files and overrides into one config by Hydra's rules, and turn it into the typed `Config`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import os
import pickle
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_automatic_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals, validate_config_path
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from scalebench.config.aliases import accept_aliases, split_override
from scalebench.config.resolve import DEFAULT_CPU_WORKERS, count_all_devices, detect_hardware
from scalebench.config.script import expand_script
from scalebench.core import config_files
from scalebench.core.config_files import conf_dir
from scalebench.core.errors import InputError
from scalebench.core.json_files import build_record
from scalebench.core.machine import machine
from scalebench.core.spec import Config, HardwareSpec

HYDRA_VERSION = "1.3"  # whose defaults and rules apply
PATH_KEYS = (
    *("script", "script.path", "script.command", "script.folder", "dataset.path", "dataset.cache"),
    *("hydra.run.dir", "hydra.sweep.dir", "hardware.node_copy"),
)
OPEN_KEYS = ("hardware.environment", "model.options", "dataset.options", "strategy.options", "script.args")
MAX_CACHED_CONFIGS = 512  # merged configs that a loader keeps; each takes 30 kB


def register_with_hydra() -> list[str]:
    """Add the typed config and our launcher to Hydra's store. Return warnings about plugins, which make no run fail."""
    for resolver in (list_each_device, list_device_counts, list_demo_models, list_pair_of_each_link):
        OmegaConf.register_new_resolver(resolver.__name__.removeprefix("list_"), resolver, replace=True)
    store = ConfigStore.instance()
    if "spine.yaml" not in store.repo or store.repo["spine.yaml"].provider != "scalebench":
        typed = OmegaConf.structured(Config)  # which every YAML file is merged into
        # These take keys that nobody can list in advance: Hydra would ask for a + before them.
        for group, key in (path.split(".") for path in OPEN_KEYS):
            OmegaConf.set_struct(typed[group][key], False)
        store.store(name="spine", node=typed, provider="scalebench")
    namespace = str(Path(__file__).parents[1] / "sweeps" / "hydra_namespace")
    if namespace not in sys.path:
        sys.path.append(namespace)
    importlib.import_module("hydra_plugins.scalebench")  # puts its launcher into the store
    Plugins.instance()  # registers Hydra's own source of files
    SourcesRegistry.instance().types[YamlSource.scheme()] = YamlSource
    return config_files.find_config_files().warnings


def make_loader(config_path: str | None = None, config_dir: str | None = None) -> Loader:
    """Return a loader of the YAML files of scalebench and its plugins. The folders are those of Hydra's switches:
    `config_path` replaces ours, `config_dir` is one more."""
    setup_globals()
    version.setbase(HYDRA_VERSION)
    JobRuntime.instance().set("name", "scalebench")
    validate_config_path(config_path)
    search_path = create_automatic_config_search_path(None, __name__, config_path or str(conf_dir()))
    if config_dir is not None:
        folder = os.path.abspath(config_dir)
        if not os.path.isdir(folder):
            raise InputError(f"Additional config directory '{folder}' not found")
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Loader(search_path)


def open_loader(words: Sequence[str], config_path: str | None = None, config_dir: str | None = None) -> Loader:
    """Return make_loader's loader for these words. One without folders of the user's own serves later calls of this
    process, too, which takes a tenth of the time, until a file of a plugin changes."""
    if config_path or config_dir or any(word.startswith("hydra.searchpath=") for word in words):
        return make_loader(config_path, config_dir)
    paths = [path for _, folder in config_files.plugin_folders() for path in folder.rglob("*.yaml")]
    return _keep_loader(conf_dir(), tuple((path, path.stat().st_mtime_ns) for path in paths))


@functools.lru_cache(maxsize=1)
def _keep_loader(*files: Any) -> Loader:
    return make_loader()


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the config of one run as the command line would."""
    register_with_hydra()
    words = accept_words(overrides)
    composed = open_loader(words).load_configuration("config", words, RunMode.RUN, from_shell=False)
    with open_dict(composed):
        del composed["hydra"]
    return composed


def compose_config(overrides: Sequence[str]) -> Config:
    """Compose the typed config of one run. Raise InputError for an unknown key or a missing value."""
    return to_config(compose(overrides))


def accept_words(overrides: Iterable[str]) -> list[str]:
    """Return overrides with the accepted spellings of values as ours, and with quotes around the paths and commands
    that Hydra's grammar cannot read, such as `epoch=3.npz`."""
    return expand_script(accept_aliases(map(_quote_path, overrides)))


def _quote_path(override: str) -> str:
    """Return the override of a path or a command with quotes around it, where Hydra cannot read it."""
    key, value = split_override(override)
    if key in PATH_KEYS:
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            return f"{override.removesuffix(value)}{quote(value)}"
    return override


def quote(text: str) -> str:
    """Return a text in the quotes of Hydra's grammar."""
    # A quote is escaped, and so are the backslashes before one.
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"


def is_plain_text(text: str) -> bool:
    """Return whether Hydra reads a text without quotes as that text, and not as a number, as true, or as several."""
    if not re.fullmatch(r"[\w./:@%+-]+", text, re.ASCII):
        return False
    value = OverridesParser.create().parse_rule(text, "primitive")
    return isinstance(value, str) and value == text


def to_config(composed: DictConfig) -> Config:
    """Turn a composed config into the plain dataclass with every interpolation resolved. Raise InputError for a missing
    value, for a key that Hydra has added because of a + before it, and for a number that no record can hold."""
    tree: dict[Any, Any] = {}
    for key in composed:
        if key != "hydra":  # its own interpolations only resolve within a job
            node = composed[key]
            is_tree = OmegaConf.is_config(node)
            tree[key] = OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if is_tree else node
    try:
        config = build_record(Config, tree)
    except ValueError as error:
        raise InputError(str(error)) from error
    _check_keys(config, tree, "")
    return config


def _check_keys(part: Any, value: Any, key: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        way_out = "a text is written in quotes within those of the shell, \"'12e4567'\""
        raise InputError(f"{key}={value:g} should be a finite number; {way_out}")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inner:
        inner_key = f"{key}.{name}".removeprefix(".")
        if dataclasses.is_dataclass(part) and not hasattr(part, str(name)):
            raise InputError(f"{inner_key} is not a key")
        _check_keys(getattr(part, str(name), None), below, inner_key)


def list_each_device() -> str:
    """List each device of this machine as a value of a sweep, in Hydra syntax: `[0],[1]`; CPU workers without GPUs."""
    return ",".join(f"[{device}]" for device in range(machine.count_gpus() or DEFAULT_CPU_WORKERS))


def list_device_counts(*, _root_: DictConfig) -> str:
    """List 1, all devices of a node of the chosen hardware, and the powers of two between them: `1,2,4,6`."""
    most = count_all_devices(_detect_chosen_hardware(_root_))
    return ",".join(str(count) for count in [*(2**n for n in range(most.bit_length()) if 2**n < most), most])


def list_demo_models(*, _root_: DictConfig) -> str:
    """List the models that sweep=demo trains: on GPUs also one that keeps them busy, which would take a CPU minutes."""
    return "resnet50,materials_cnn" if _detect_chosen_hardware(_root_).devices == "cuda" else "materials_cnn"


def _detect_chosen_hardware(root: DictConfig) -> HardwareSpec:
    """Return the hardware of a composed config, with what its YAML leaves open; this machine if it has none."""
    chosen = OmegaConf.select(root, "hardware")
    tree = {} if chosen is None else OmegaConf.to_container(chosen, resolve=True)
    return detect_hardware(build_record(HardwareSpec, tree))


def list_pair_of_each_link() -> str:
    """List the first pair of devices of each kind of link: `[0,1],[0,2]`; the first two where the links are unknown."""
    return ",".join(f"[{a},{b}]" for a, b in machine.pair_of_each_link() or [(0, 1)])


class PluginSearchPath(SearchPathPlugin):
    """Adds the YAML folders of plugins (entry points `scalebench.configs`) to Hydra's search path, after ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for origin, folder in config_files.plugin_folders():
            search_path.append(provider=origin, path=f"file://{folder}")


class YamlSource(FileConfigSource):
    """Hydra's source of YAML files, which names a file that is none."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path))
        try:
            result = super().load_config(config_path)
            # Hydra does not see the header after a byte-order mark, which editors on Windows write.
            if header := re.match(r"\ufeff\s*#\s*@package\s+(\S+)", path.read_text(encoding="utf-8")):
                result.header["package"] = header[1]
            return result
        except MarkedYAMLError:
            raise
        except (OSError, ValueError, YAMLError) as error:  # a single word, a wrong header, a zero byte, not in UTF-8
            line = " ".join(str(error).split())
            raise InputError(f"{path} is not a YAML file of keys and values: {line}") from error


@functools.lru_cache(10_000)
def _parse(line: str) -> Override:
    """Parse an override once: the runs of a sweep share most of theirs."""
    (override,) = OverridesParser.create().parse_overrides([line])
    return override


class Loader(ConfigLoaderImpl):
    """Composes what Hydra's loader composes, which takes 0.1 s. The runs of a sweep differ mostly in plain values, such
    as gpus=2: these are set in a copy of what Hydra has composed of the other overrides."""

    def __init__(self, search_path: ConfigSearchPath) -> None:
        super().__init__(search_path)
        self._compose_once = functools.lru_cache(MAX_CACHED_CONFIGS)(self._compose)

    def load_command_line(self, config_name: str, overrides: list[str], is_sweep: bool) -> DictConfig:
        """Compose the config of a command line, whose hydra.mode says whether it is a sweep: by an override, by a file,
        because of `is_sweep`, or because a key has several values."""
        if not is_sweep and not any(line.startswith("hydra.mode=") for line in overrides):
            is_sweep = any(_parse(line).is_sweep_override() for line in overrides)
        if is_sweep:
            overrides = [line for line in overrides if not line.startswith("hydra.mode=")] + ["hydra.mode=MULTIRUN"]
        return self.load_configuration(config_name, overrides, RunMode.MULTIRUN if is_sweep else RunMode.RUN)

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        switches = run_mode, from_shell, validate_sweep_overrides
        lines = expand_script(overrides)  # also those of a sweep's file, and of any sweeper
        parsed = [_parse(line) for line in lines]
        plain = self._select_plain_values(parsed)
        others = tuple(line for line, each in zip(lines, parsed, strict=True) if each not in plain)
        try:
            composed: DictConfig = pickle.loads(self._compose_once(config_name, others, *switches))
            for override in plain:
                OmegaConf.update(composed, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:  # Hydra says more of a value
            return super().load_configuration(config_name, lines, *switches)
        task = [override for override in parsed if not override.is_hydra_override()]
        composed.hydra.overrides.task = [override.input_line for override in task]
        job = composed.hydra.job
        job.override_dirname = get_overrides_dirname(task, **job.config.override_dirname)
        composed.hydra.runtime.cwd = os.getcwd()
        return composed

    def _select_plain_values(self, overrides: Sequence[Override]) -> list[Override]:
        """Return the overrides that set a value, where those of values do nothing but that."""
        plain: list[Override] = []
        for override in overrides:
            is_group = not isinstance(override.value(), dict) and self.repository.group_exists(override.key_or_group)
            if is_group and override.is_add() and override.key_or_group == "strategy":  # else Hydra merges both
                raise InputError("strategy exists already; leave out the + before it")
            if not is_group and not override.is_hydra_override():
                if override.type != OverrideType.CHANGE or override.package or override.is_sweep_override():
                    return []
                plain.append(override)
        return plain

    def _compose(self, config_name: str | None, lines: tuple[str, ...], *switches: Any) -> bytes:
        """Return a composed config as bytes, which are copied in a tenth of deepcopy's time."""
        return pickle.dumps(super().load_configuration(config_name, list(lines), *switches))
