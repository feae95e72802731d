"""Where the YAML groups are: ours, and those of plugins. Layer 1.

Hydra takes the first file of a name on its path without a word. Here is known which names that would concern: a run
that chooses one of them fails, and the others go on.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from scalebench.core import plugins
from scalebench.core.plugins import OURS, PluginError
from scalebench.core.spec import DatasetSpec, HardwareSpec, ModelSpec, StrategySpec

GROUP = "scalebench.core.config_files"
# Groups whose files have a name in them, which a run keeps.
NAMED = {"strategy": StrategySpec, "model": ModelSpec, "dataset": DatasetSpec, "hardware": HardwareSpec}


class Found(NamedTuple):
    """What the installed packages bring, and what is wrong with it."""

    folders: list[tuple[str, Path]]  # (distribution, folder) of each plugin
    files: dict[str, list[tuple[str, Path]]]  # "strategy/ddp.yaml" -> (origin, file) of each; the first one counts
    problems: dict[tuple[str, str], str]  # (group, name) -> why a run that chooses it fails
    unusable: set[tuple[str, str]]  # those of them whose file would end the program that composes it
    warnings: list[str]  # what is wrong and fails no run


def conf_dir() -> Path:
    """Folder of our YAML files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@functools.lru_cache(maxsize=1)
def found() -> Found:
    """Looks at the folders, and imports nothing of a plugin."""
    folders, warnings = _folders()
    files: dict[str, list[tuple[str, Path]]] = {}
    for origin, folder in [(OURS, conf_dir()), *folders]:
        for path in sorted(folder.rglob("*.yaml")):
            files.setdefault(path.relative_to(folder).as_posix(), []).append((origin, path))
    problems: dict[tuple[str, str], str] = {}
    unusable = set()
    for name, of_name in files.items():
        (first, path), (group, _, stem) = of_name[0], name.removesuffix(".yaml").rpartition("/")
        unreadable = _unreadable(path, group) if first != OURS else None
        problem = f"{name} of {first} cannot be read: {unreadable}" if unreadable else _problem(name, of_name)
        if unreadable:
            unusable.add((group, stem))
        if problem is not None and group in NAMED and (unreadable or name_in(path) == stem):
            problems[group, stem] = problem
        elif problem is not None:
            warnings.append(f"{problem}; until then the one of {first} counts")
    return Found(folders, files, problems, unusable, warnings)


def _problem(name: str, of_name: list[tuple[str, Path]]) -> str | None:
    """Why nobody should choose this file, without a look into it."""
    origins = [origin for origin, _ in of_name]
    if len(origins) > 1:
        return f"{name} comes from both {origins[0]} and {origins[1]}; uninstall one of them or set {plugins.VARIABLE}"
    late = None if origins[0] == OURS else plugins.api_problem(origins[0])
    return None if late is None else f"{name} of {late}"


def _unreadable(path: Path, group: str) -> str | None:
    """Why Hydra cannot compose a plugin's file of such a group; None where it can, or in another group."""
    if group not in NAMED or "@package" in path.read_text(errors="replace"):
        return None
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        tree = {key: value for key, value in read(path).items() if key != "defaults"}
        OmegaConf.merge(OmegaConf.structured(NAMED[group]), tree)
    except PluginError as error:
        return str(error).partition(" cannot be read: ")[2]
    except OmegaConfBaseException as error:
        return str(error).splitlines()[0]
    return None


def plugin_folders() -> list[tuple[str, Path]]:
    """(distribution, folder) of each plugin; an entry point's value names the package that is the folder."""
    return found().folders


def options(group: str) -> dict[str, Path]:
    """Names that can be chosen in a config group -> their YAML files, over ours and the plugins'; without those that
    cannot be read."""
    names = ((name.removesuffix(".yaml").rpartition("/"), of_name[0][1]) for name, of_name in found().files.items())
    return {
        stem: path for (its, _, stem), path in sorted(names) if its == group and (group, stem) not in found().unusable
    }


def origin(group: str, name: str) -> str | None:
    """The distribution whose YAML file counts for that name; None where there is none."""
    of_name = found().files.get(f"{group}/{name}.yaml")
    return of_name[0][0] if of_name else None


@functools.lru_cache
def option_defaults(strategy: str) -> dict[str, Any]:
    """The options of a strategy's YAML with their default values; empty where there is no such file.

    PluginError for a file that cannot be read."""
    path = options("strategy").get(strategy)
    tree = read(path) if path is not None else {}
    return dict(tree.get("options") or {})


def read(path: Path) -> dict[str, Any]:
    """A YAML file as it stands. PluginError for what is none: ours are all in order."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        tree: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise PluginError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise PluginError(f"{path} cannot be read: it should have keys with values")
    return tree


def groups() -> list[str]:
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def name_in(path: Path) -> str | None:
    """What a YAML file calls what it describes; without a library, since each start of the program may ask."""
    try:
        told = re.search(r"""^(?:\s*\{)?\s*["']?name["']?\s*:\s*["']?([\w.+-]+)""", path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return told[1] if told else None


def folder_of(package: str) -> Path | None:
    """Of a package by its dotted name; None where it is not there. To look for a part of a package would import the
    package, to look for its top does not."""
    top, *below = package.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    if not all(part.isidentifier() for part in below):
        return None
    return next((path for place in places if (path := Path(place, *below)).is_dir()), None)


def _folders() -> tuple[list[tuple[str, Path]], list[str]]:
    folders: dict[Path, str] = {}
    warnings = []
    for point in plugins.points("configs"):
        folder = folder_of(point.target)
        if folder is None:
            warnings.append(
                f"plugin {point.origin} registers the config package '{point.target}', which is not there: "
                "its YAML files are left out"
            )
        else:
            folders.setdefault(folder, point.origin)
    return [(origin, folder) for folder, origin in folders.items()], warnings
