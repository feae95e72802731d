"""Where the YAML groups are: ours, and those of plugins. Layer 1."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from scalebench.registry import allowed, origin_of
from scalebench.spec import InputError

GROUP = "scalebench.configs"


def conf_dir() -> Path:
    """Folder of our YAML files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def plugin_folders() -> list[tuple[str, Path]]:
    """(distribution, folder) of each plugin; an entry point's value names the package that is the folder.

    InputError for a folder that is not there, or a YAML file that another origin has too: Hydra would take
    the first on its path without a word.
    """
    folders = [(origin_of(point), _folder(point)) for point in entry_points(group=GROUP) if allowed(point)]
    seen = {_name(path, conf_dir()): "scalebench" for path in conf_dir().rglob("*.yaml")}
    for origin, folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            name = _name(path, folder)
            if seen.setdefault(name, origin) != origin:
                raise InputError(f"{name} comes from both {seen[name]} and {origin}; uninstall one of them")
    return folders


def options(group: str) -> dict[str, Path]:
    """Names that can be chosen in a config group -> their YAML files, over ours and the plugins'."""
    roots = [conf_dir(), *(folder for _, folder in plugin_folders())]
    return {path.stem: path for root in reversed(roots) for path in sorted((root / group).glob("*.yaml"))}


@functools.lru_cache
def option_defaults(strategy: str) -> dict[str, Any]:
    """The options of a strategy's YAML with their default values; empty where there is no such file."""
    from omegaconf import OmegaConf

    ours = {path.stem: path for path in (conf_dir() / "strategy").glob("*.yaml")}
    path = ours.get(strategy) or options("strategy").get(strategy)  # to ask all plugins takes a while
    tree: Any = OmegaConf.to_container(OmegaConf.load(path)) if path is not None else {}
    return dict(tree.get("options") or {})


def groups() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _folder(point: EntryPoint) -> Path:
    try:
        spec = importlib.util.find_spec(point.value)
    except ImportError:
        spec = None
    locations = list(spec.submodule_search_locations or []) if spec is not None else []
    if not locations:
        raise InputError(f"plugin {origin_of(point)} registers the config package '{point.value}', which is not there")
    return Path(locations[0])
