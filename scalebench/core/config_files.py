"""The YAML files of all config groups, built-in and from plugins.

Hydra silently takes the first file of a name on its search path. Names that occur twice are detected here: a run that
chooses one of them fails, and the others go on.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

from scalebench.core import plugins
from scalebench.core.errors import PluginError
from scalebench.core.plugins import BUILT_IN, PLUGINS_VARIABLE
from scalebench.core.spec import StrategySpec

GROUP = "scalebench.configs"
MAX_DESCRIPTION_CHARACTERS = 100
NAMED_GROUPS = ("strategy", "model", "dataset", "hardware")  # whose files contain a name, which a run records
# The kinds that `scalebench list` shows, and the config group of each.
LIST_KINDS = {
    "strategies": "strategy",
    "models": "model",
    "datasets": "dataset",
    "hardware": "hardware",
    "sweeps": "sweep",
}


class ConfigFiles(NamedTuple):
    """The YAML files of scalebench and of the installed plugins, and what is wrong with them."""

    folders: list[tuple[str, Path]]  # distribution and folder of each plugin
    files: dict[str, list[tuple[str, Path]]]  # "strategy/ddp.yaml" -> origin and path of each; the first one counts
    warnings: list[str]  # faults that fail no run


def conf_dir() -> Path:
    """Return the folder of the built-in YAML files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@functools.lru_cache(maxsize=1)
def find_config_files() -> ConfigFiles:
    """Look into all folders, without importing or reading anything of a plugin."""
    origins: dict[Path, str] = {}
    warnings = []
    for entry in plugins.plugin_entries("configs"):
        if (folder := package_folder(entry.target)) is not None:
            origins.setdefault(folder, entry.origin)
            continue
        missing = f"plugin {entry.origin} registers the config package '{entry.target}', which is not there"
        warnings.append(f"{missing}: its YAML files are left out")
    folders = [(origin, folder) for folder, origin in origins.items()]
    files: dict[str, list[tuple[str, Path]]] = {}
    for origin, folder in [(BUILT_IN, conf_dir()), *folders]:
        for path in sorted(folder.rglob("*.yaml")):
            files.setdefault(path.relative_to(folder).as_posix(), []).append((origin, path))
    for name, candidates in files.items():
        if len(candidates) > 1 and name.partition("/")[0] not in NAMED_GROUPS:
            warnings.append(f"{_describe_conflict(name, candidates)}; until then the one of {candidates[0][0]} counts")
    return ConfigFiles(folders, files, warnings)


def _describe_conflict(name: str, candidates: list[tuple[str, Path]]) -> str:
    both = f"{name} comes from both {candidates[0][0]} and {candidates[1][0]}"
    return f"{both}; uninstall one of them or set {PLUGINS_VARIABLE}"


def find_conflict(group: str, name: str) -> str | None:
    """Explain why a run that chooses this name fails: two packages bring its file. None where there is one, or none."""
    candidates = find_config_files().files.get(file := f"{group}/{name}.yaml", [])
    return _describe_conflict(file, candidates) if len(candidates) > 1 else None


def plugin_folders() -> list[tuple[str, Path]]:
    """Return distribution and folder of each plugin; an entry point's value names the package that is the folder."""
    return find_config_files().folders


def list_options(group: str) -> dict[str, Path]:
    """Return the YAML file of each name in a config group."""
    names = (
        (file.removesuffix(".yaml").rpartition("/"), paths[0][1]) for file, paths in find_config_files().files.items()
    )
    return dict(sorted((name, path) for (file_group, _, name), path in names if file_group == group))


def file_origin(group: str, name: str) -> str | None:
    """Return the distribution whose YAML file counts for that name; None where there is none."""
    candidates = find_config_files().files.get(f"{group}/{name}.yaml")
    return candidates[0][0] if candidates else None


@functools.lru_cache
def read_strategy_config(strategy: str) -> dict[str, Any]:
    """Return all keys of a strategy as its YAML sets them, for all callers one dictionary; empty where there is no such
    file.

    PluginError for a file that cannot be read.
    """
    path = list_options("strategy").get(strategy)
    return {**dataclasses.asdict(StrategySpec()), **read_composed("strategy", path)} if path is not None else {}


def strategy_option_defaults(strategy: str) -> dict[str, Any]:
    """Return the options in a strategy's YAML with their default values; raises as `read_strategy_config`."""
    return dict(read_strategy_config(strategy).get("options") or {})


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file as it is written. PluginError where it is none, since the built-in ones are all valid."""
    try:
        tree = copy.deepcopy(_parse_yaml(path.read_text(encoding="utf-8")))
    except Exception as error:  # those of yaml and OmegaConf, brackets without end, and more
        raise PluginError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise PluginError(f"{path} cannot be read: it should have keys with values")
    return tree


@functools.lru_cache(maxsize=512)
def _parse_yaml(text: str) -> Any:
    """Parse a YAML file, which takes 10 ms; most commands ask for the same ones several times."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))


def list_parts(group: str, path: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """Return the files of which Hydra composes one of a group, later ones on top: those of the group that its
    `defaults` name, and itself. Where one of them is missing, only Hydra fails."""
    entries = read_yaml(path).get("defaults")
    names = [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    parts: list[Path] = []
    for name in names if "_self_" in names else [*names, "_self_"]:
        file = f"{group}/{name.partition('@')[0]}.yaml"
        if name == "_self_":
            parts.append(path)
        elif file in find_config_files().files and path not in above:
            parts += list_parts(file.rpartition("/")[0], find_config_files().files[file][0][1], (*above, path))
    return parts


def read_composed(group: str, path: Path) -> dict[str, Any]:
    """Read a file of a group with what it inherits by its `defaults`, under which only choices of other groups stay."""
    from omegaconf import OmegaConf

    composed: dict[str, Any] = {}
    chosen: list[Any] = []
    for part in list_parts(group, path):
        tree = read_yaml(part)
        entries = tree.pop("defaults", None)
        chosen += [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        merged: Any = OmegaConf.to_container(OmegaConf.merge(composed, tree))
        composed = {key: merged[key] for key in (*tree, *composed)}  # its own come first
    return {"defaults": chosen, **composed} if chosen else composed


def read_key_comments(group: str, path: Path) -> dict[str, str]:
    """Read the comments on the keys of a file of a group, also of those that it inherits."""
    return {key: text for part in list_parts(group, path) for key, text in read_comments(part)[1].items()}


def read_comments(path: Path) -> tuple[str, dict[str, str]]:
    """Read the comments of a YAML file: those above its first key as one text, and by dotted key those of other keys.

    A comment is of the key beside it, one on a line of its own of the key below it; if its text is set off by several
    blanks, it continues the comment of the key above it.
    """
    head: list[str] = []
    beside: dict[str, str] = {}
    waiting: list[str] = []  # for the key below
    above: list[tuple[int, str]] = []  # (indentation, key) of the parents of a line
    last_key = ""
    for line in path.read_text(errors="replace").splitlines():
        match = re.match(r"""(\s*)["']?([\w.]+)["']?:(?:\s(.*))?$""", line)
        if match is None:
            comment = re.match(r"\s*#\s?(.*)", line)
            if comment and not comment[1].startswith("@package") and not above:
                head.append(comment[1])
            elif comment and comment[1].startswith(" ") and last_key in beside:
                beside[last_key] += f" {comment[1].strip()}"
            elif comment and above:
                waiting.append(comment[1])
            continue
        above = [*(parent for parent in above if parent[0] < len(match[1])), (len(match[1]), match[2])]
        last_key = ".".join(key for _, key in above)
        comment = re.search(r"(?:^|\s)#\s(.*)", match[3] or "")
        if text := " ".join([*waiting, comment[1] if comment else ""]).strip():
            beside[last_key] = text
        waiting = []
    return " ".join(head), beside


def describe_entry(path: Path) -> str:
    """Return the description in a YAML file, else the first sentence of the comment at its beginning, or its first
    clause where that is long."""
    if description := read_yaml(path).get("description"):
        return str(description)
    head, _ = read_comments(path)
    sentence = re.match(r""".+?[.?]"?(?=\s+["A-Z]|$)""", head)
    text = sentence[0] if sentence else head
    return (text if len(text) <= MAX_DESCRIPTION_CHARACTERS else text.partition(": ")[0]).removesuffix(".")


def list_groups() -> list[str]:
    """Return the names of the built-in config groups."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def read_name(path: Path) -> str | None:
    """Return the `name` in a YAML file; found by a pattern, since each start of the program may need it."""
    pattern = r"""^(?:\s*\{)?\s*["']?name["']?\s*:\s*["']?([\w.+-]+)"""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None


def package_folder(package: str) -> Path | None:
    """Return the folder of a package by its dotted name; None where there is none.

    Looking for a subpackage would import its parent; looking for the top package does not.
    """
    top, *below = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    parents = [] if spec is None else list(spec.submodule_search_locations or [])
    if not all(part.isidentifier() for part in below):
        return None
    return next((path for parent in parents if (path := Path(parent, *below)).is_dir()), None)
