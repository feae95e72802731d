"""Compose YAML files and overrides into one config by Hydra's rules, and turn it into the typed `Config`."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import functools
import importlib
import io
import math
import os
import pickle
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import ConfigRepository
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
from scalebench.strategies import registry

HYDRA_VERSION = "1.3"  # whose defaults and rules apply
STAND_IN_VALUES = {"dataset": {"size": 10**9}}  # for YAML files that a broken plugin lacks; large enough for any batch
PATH_KEYS = (
    "script",
    "script.path",
    "script.command",
    "script.folder",
    "dataset.path",
    "dataset.cache",
    "hydra.run.dir",
    "hydra.sweep.dir",
    "hardware.node_copy",
)
OPEN_KEYS = ("hardware.environment", "model.options", "dataset.options", "strategy.options", "script.args")
MAX_CACHED_CONFIGS = 512  # merged configs that a loader keeps; each takes 30 kB
read_files: dict[str, Any] = {}  # their keys and values, by group/name, for messages about them
_stand_ins_in_store: set[tuple[str, str]] = set()  # (group, name) of those in Hydra's store


def register_with_hydra() -> list[str]:
    """Add the typed config, our launcher and stand-ins for broken plugins to Hydra's store. Return warnings about
    plugins, which make no run fail."""
    for resolver in (list_each_device, list_device_counts, list_demo_models, list_pair_of_each_link):
        OmegaConf.register_new_resolver(resolver.__name__.removeprefix("list_"), resolver, replace=True)
    store = ConfigStore.instance()
    if "spine.yaml" not in store.repo or store.repo["spine.yaml"].provider != "scalebench":
        typed = OmegaConf.structured(Config)  # which every YAML file is merged into
        # These take keys that nobody can list in advance: Hydra would ask for a + before them.
        for group, key in (path.split(".") for path in OPEN_KEYS):
            OmegaConf.set_struct(typed[group][key], False)
        store.store(name="spine", node=typed, provider="scalebench")
    for group, name in _stand_ins_in_store - registry.names_without_yaml():
        store.repo[group].pop(f"{name}.yaml")
        _stand_ins_in_store.discard((group, name))
    for group, name in registry.names_without_yaml():  # so that the run composes, and fails as a run
        node = {"name": name, **STAND_IN_VALUES.get(group, {})}
        store.store(group=group, name=name, node=node, provider="scalebench")
        _stand_ins_in_store.add((group, name))
    namespace = str(Path(__file__).parents[1] / "sweeps" / "hydra_namespace")
    if namespace not in sys.path:
        sys.path.append(namespace)
    importlib.import_module("hydra_plugins.scalebench")  # puts its launcher into the store
    Plugins.instance()  # registers Hydra's own source of files
    SourcesRegistry.instance().types[YamlSource.scheme()] = YamlSource
    return config_files.find_config_files().warnings


def make_loader(config_path: str | None = None, config_dir: str | None = None) -> Loader:
    """Return the loader of the YAML files of scalebench and its plugins. The folders are those of Hydra's switches:
    `config_path` replaces ours, `config_dir` is one more."""
    setup_globals()
    version.setbase(HYDRA_VERSION)
    JobRuntime.instance().set("name", "scalebench")
    if config_path is None and config_dir is None:
        return _keep_loader(_identify_files())
    validate_config_path(config_path)
    search_path = _make_search_path(config_path)
    if config_dir is not None:
        folder = os.path.abspath(config_dir)
        if not os.path.isdir(folder):
            raise InputError(f"Additional config directory '{folder}' not found")
        search_path.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))
    return Loader(search_path)


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the config of one run as the command line would."""
    register_with_hydra()
    composed = make_loader().load_configuration("config", accept_words(overrides), RunMode.RUN, from_shell=False)
    with open_dict(composed):
        del composed["hydra"]
    return composed


def compose_config(overrides: Sequence[str]) -> Config:
    """Compose the typed config of one run. Raise InputError for an unknown key or a missing value."""
    return to_config(compose(overrides))


def accept_words(overrides: Iterable[str]) -> list[str]:
    """Return overrides with the accepted spellings of values as ours, and with quotes around the paths that Hydra's
    grammar takes for something else, such as `epoch=3,fold=1.npz`."""
    return expand_script(accept_aliases(map(_quote_path, overrides)))


def _quote_path(override: str) -> str:
    """Return the override of a path with quotes around it, where Hydra cannot read it, or would read several values. A
    value is a path where its key is one's, or where such a file exists."""
    key, value = split_override(override)
    _refuse_huge_number(key, value)
    if re.fullmatch(r"[\w./:@%+-]*|\[.*\]|'.*'|\".*\"", value, re.ASCII | re.DOTALL):
        return override
    try:
        parsed = OverridesParser.create().parse_override(override)
        is_readable = not parsed.is_sweep_override()
    except HydraException:
        parsed, is_readable = None, False
    is_file = os.path.exists(value)
    if is_readable or not (is_file or (parsed is None and key in PATH_KEYS)):
        return override
    several = value.split(",")
    paths = several if not is_file and all(map(os.path.exists, several)) else [value]
    return f"{override.removesuffix(value)}{','.join(map(quote, paths))}"


def _refuse_huge_number(key: str, value: str) -> None:
    """Raise InputError for digits that Hydra reads as infinity, such as a commit's 12e4567."""
    for word in () if "'" in value or '"' in value else re.split(r"[\s,:()\[\]{}]+", value):
        if re.fullmatch(r"[+-]?\d[\d_.]*e[+-]?\d+", word, re.IGNORECASE | re.ASCII) and math.isinf(float(word)):
            raise InputError(
                f"{key}: {word} is too large for a number; where it is a text write it in quotes within those of the "
                f"shell, \"{key}='{word}'\""
            )


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
    value."""
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
    _refuse_unknown_keys(config, tree, "")
    return config


def _refuse_unknown_keys(part: Any, tree: dict[Any, Any], above: str) -> None:
    """Raise InputError for a key that Hydra has added because of a + before it."""
    for name, value in tree.items():
        if not hasattr(part, name):
            raise InputError(f"{above}{name} is not a key")
        if dataclasses.is_dataclass(inner := getattr(part, name)):
            _refuse_unknown_keys(inner, value, f"{above}{name}.")


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


def read_text(path: Path) -> str:
    """Read a YAML file without a byte-order mark. Raise InputError, with its encoding, for one that is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "in UTF-16" if is_utf16 else f"not in UTF-8 (line {line}; perhaps in cp1252, as of Windows)"
        raise InputError(f"{path} is {encoding}: save it in UTF-8") from None


class PluginSearchPath(SearchPathPlugin):
    """Adds the YAML folders of plugins (entry points `scalebench.configs`) to Hydra's search path, after ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for origin, folder in config_files.plugin_folders():
            search_path.append(provider=origin, path=f"file://{folder}")
        if config_files.find_config_files().unusable:  # then the stand-ins of `register_with_hydra` come first
            search_path.prepend(provider="schema", path="structured://")  # Hydra's name for its store


class YamlSource(FileConfigSource):
    """Reads YAML files also with a byte-order mark, as editors on Windows write it, and names a file that is none.

    Hydra does not recognize the header of a file with such a mark.
    """

    def load_config(self, config_path: str) -> ConfigResult:
        path = Path(self.path, self._normalize_file_name(config_path)).resolve()
        if not path.exists():
            return super().load_config(config_path)
        text = read_text(path)
        stream = io.StringIO(text)
        stream.name = str(path)  # for messages of the parser
        try:
            config = OmegaConf.load(stream)
            header = self._get_header_dict(text)
        except MarkedYAMLError:
            raise
        except (OSError, ValueError, YAMLError) as error:  # a single word, a wrong header, a zero byte
            raise InputError(f"{path} is not a YAML file of keys and values: {' '.join(str(error).split())}") from error
        tree = OmegaConf.to_container(config, resolve=False)
        for key, value in list_values(tree):
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{path}: {key} is {value:g}: write a finite number, or a text in quotes")
        read_files[config_path.removesuffix(".yaml")] = tree
        return ConfigResult(config=config, path=f"file://{self.path}", provider=self.provider, header=header)


def list_values(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of each value in a tree of dictionaries and lists."""
    if not isinstance(tree, (dict, list)):
        yield key, tree
        return
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from list_values(value, f"{key}.{name}" if key else str(name))


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
        self.repository = _Repository(search_path)
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
            if any(line.lstrip("+~").startswith("hydra.searchpath") for line in others):  # its files may change
                return super().load_configuration(config_name, lines, *switches)
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
        """Return the overrides that set one value of a key which no other kind of override changes."""
        values: list[Override] = []
        others: list[Override] = []
        for override in overrides:
            is_group = not isinstance(override.value(), dict) and self.repository.group_exists(override.key_or_group)
            if is_group and override.is_add() and override.key_or_group == "strategy":  # else Hydra merges both
                raise InputError("strategy exists already; leave out the + before it")
            if not is_group and not override.is_hydra_override():
                is_plain = override.type == OverrideType.CHANGE and override.package is None
                (values if is_plain and not override.is_sweep_override() else others).append(override)
        keys = [f"{override.key_or_group}." for override in others]
        return [
            override
            for override in values
            if not any(key.startswith(own := f"{override.key_or_group}.") or own.startswith(key) for key in keys)
        ]

    def _compose(self, config_name: str | None, lines: tuple[str, ...], *switches: Any) -> bytes:
        """Return a composed config as bytes, which are copied in a tenth of deepcopy's time."""
        return pickle.dumps(super().load_configuration(config_name, list(lines), *switches))


class _Repository(ConfigRepository):
    """Reads each file once; without this, it and Hydra's copies of it are half of the time of composing."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._find_group_once = functools.cache(super().group_exists)
        self._read_once = functools.cache(self._read)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Repository:
        return copy.copy(self)  # for hydra.searchpath, which initializes the sources of the copy

    def load_config(self, config_path: str) -> ConfigResult | None:
        result: ConfigResult | None = pickle.loads(self._read_once(config_path))  # merging moves its nodes
        return result

    def _read(self, config_path: str) -> bytes:
        return pickle.dumps(super().load_config(config_path))

    def group_exists(self, config_path: str) -> bool:
        return self._find_group_once(config_path)


@functools.lru_cache(maxsize=1)
def _keep_loader(files: tuple[Any, ...]) -> Loader:
    return Loader(_make_search_path(None))


def _make_search_path(config_path: str | None) -> ConfigSearchPath:
    return create_automatic_config_search_path(None, __name__, config_path or str(conf_dir()))


def _identify_files() -> tuple[Any, ...]:
    """Identify the YAML files and plugins that a loader has read, which is replaced when any of them changes."""
    folders = [conf_dir(), *(folder for _, folder in config_files.plugin_folders())]
    stats = [(path, path.stat()) for folder in folders for path in folder.rglob("*.yaml")]
    files = tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats)
    return files, frozenset(_stand_ins_in_store), frozenset(config_files.find_config_files().unusable)
