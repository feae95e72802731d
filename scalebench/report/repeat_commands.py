"""The scalebench command that repeats a row, and the lines of a built-in strategy for a program of the user's own."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from scalebench.analysis.read_runs import Unreadable
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.config_files import read_strategy_config, strategy_option_defaults
from scalebench.core.machine.variables import mask_credentials
from scalebench.core.untrusted import MAX_LIST_BYTES, FileRefused, read_plain_file, read_text_list
from scalebench.report.tables import SORT_COLUMNS, find_missing_baselines

if TYPE_CHECKING:
    import pandas as pd

OVERRIDES_FILE = ".hydra/overrides.yaml"
HYDRA_FILE = ".hydra/hydra.yaml"
CONFIG_DIR = re.compile(r"^ *- path: (/[^'\"\n]+)\n +schema: file\n +provider: command-line$", re.MULTILINE)
ENVIRONMENT_VALUE = re.compile(r"\$\{\s*oc\.(env|decode)\b")
RECIPES_FILE = Path(__file__).with_name("repeat_commands.yaml")
AUTO_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # PyTorch's strategies resolve backend=auto to these.
DEVICE_COUNT = re.compile(r"(?<= gpus=)(\d+)(?= |$)")


@dataclass(frozen=True)
class Recipe:
    """The lines of a strategy around the user's own model, optimizer, loss and batches. `start_command` starts them,
    `left_out` lists the options of the row that they do not set. Of a strategy without lines, `page` shows how."""

    start_command: str = ""
    code: str = ""
    left_out: tuple[str, ...] = ()
    page: str = ""


def make_command(row: Mapping[str, Any], unreadable: Unreadable | None = None) -> str | None:
    """Make the sweep that repeats a row of the frame with its baselines, from what was typed; None without Hydra's
    record of that in the run's folder. One that cannot be used is added to `unreadable`."""
    overrides = _read_overrides(row, unreadable)
    if overrides is None:
        return None
    if (row.get("repeats") or 1) > 1:
        overrides = [override for override in overrides if not override.startswith(("repeat=", "measure.repeats="))]
        overrides.append(f"measure.repeats={row['repeats']}")
    return _join_command(overrides, row)


def make_baseline_commands(frame: pd.DataFrame, unreadable: Unreadable | None = None) -> list[str]:
    """Make the sweeps that measure the rows without a baseline together with what they are compared with. `unreadable`
    as for `make_command`."""
    rows = [row for row in plain_rows(frame.sort_values(SORT_COLUMNS)) if find_missing_baselines(row)]
    counts: dict[tuple[str, str], dict[str, None]] = {}  # Numbers of devices, by the text around them.
    for row in rows:
        overrides = _read_overrides(row, unreadable)
        if overrides is None:
            continue
        # measure.repeats numbers runs anew; without the baselines the same sweep would leave them out again.
        overrides = [each for each in overrides if not each.startswith(("repeat=", "baseline=bare", "baseline=none"))]
        head, *rest = DEVICE_COUNT.split(_join_command(overrides, row), maxsplit=1)
        counts.setdefault((head, "".join(rest[1:])), {}).update(dict.fromkeys(rest[:1]))
    # One sweep for all numbers of devices: each of several would run the same baselines again.
    return [f"{head}{','.join(devices)}{tail}" for (head, tail), devices in counts.items()]


def _join_command(overrides: list[str], row: Mapping[str, Any]) -> str:
    """Return the command of a sweep, with the strategy, the device count and the folder of YAML files that the run was
    started with."""
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    missing = [f"{name}={row[name]}" for name in ("strategy", "gpus") if name not in keys]
    try:
        text = read_plain_file(Path(str(row["path"])) / HYDRA_FILE, max_bytes=MAX_LIST_BYTES).decode("utf-8", "replace")
    except (FileRefused, OSError):
        text = ""
    folders = [f"--config-dir={path}" for path in CONFIG_DIR.findall(text)[:1]]
    return f"scalebench --multirun {shlex.join([*folders, *overrides, *missing])}"


def _read_overrides(row: Mapping[str, Any], unreadable: Unreadable | None) -> list[str] | None:
    """Return what the user typed, without Hydra's own keys and without passwords of addresses; None if no record of it
    can be used."""
    folder = Path(str(row["path"]))
    try:
        if not (folder / OVERRIDES_FILE).exists():
            return None
        overrides = read_text_list(folder, OVERRIDES_FILE)
        if any(map(ENVIRONMENT_VALUE.search, overrides)):
            raise FileRefused("takes values from the environment of the one who repeats it; type them yourself")
    except (FileRefused, OSError) as error:
        line = (folder / OVERRIDES_FILE, f"{folder / OVERRIDES_FILE} {getattr(error, 'strerror', None) or error}")
        if unreadable is not None and line not in unreadable:
            unreadable.append(line)
        return None
    return [mask_credentials(override) for override in overrides if not override.startswith("hydra.")]


def make_recipe(strategy: str, gpus: int, device: str, row_options: str | None = None) -> Recipe | None:
    """Make the lines of a strategy for a number of devices of a kind, `cpu` or `cuda`; None where there are none.

    `row_options` are the options that differ from their defaults, as the frame's column has them: `bucket_cap_mb=1`.
    """
    entry = _read_recipes().get(strategy)
    if entry is None:
        return None
    if "page" in entry:
        return Recipe(page=entry["page"])
    changed = dict(word.split("=", 1) for word in (row_options or "").split() if "=" in word)
    settings = {key: str(value) for key, value in strategy_option_defaults(strategy).items()} | changed
    backend = read_strategy_config(strategy)["backend"]
    backend = AUTO_BACKENDS[device] if backend in (None, "auto") else backend
    values = {"gpus": str(gpus), "backend": backend, **entry.get(device, {}), **entry.get("of", {}).get(strategy, {})}
    values |= {name: settings[name] for name in entry.get("verbatim", []) if name in settings}
    choices = entry.get("choices", {}).items()
    values |= {name: texts.get(settings[name], values.get(name, "")) for name, texts in choices}
    keywords = [f", {name}={changed[name]}" for name in entry.get("keywords", []) if name in changed]
    flags = [{"True": f" {flag}", "False": ""}.get(changed[name], f" {flag} {changed[name]}")
             for name, flag in entry.get("flags", {}).items() if name in changed]  # fmt: skip
    values |= {"keywords": "".join(keywords), "flags": "".join(flags)}
    covered = {name for part in ("verbatim", "keywords", "flags") for name in entry.get(part, [])}
    covered |= {name for name, texts in choices if settings[name] in texts}
    left_out = tuple(f"{name}={value}" for name, value in changed.items() if name not in covered)
    return Recipe(_fill_in(entry["start"], values), _fill_in(entry["code"], values).rstrip(), left_out)


@functools.lru_cache(maxsize=1)
def _read_recipes() -> dict[str, dict[str, Any]]:
    """Return the entries of RECIPES_FILE by strategy."""
    tree: Any = OmegaConf.to_container(OmegaConf.load(RECIPES_FILE))
    return {name: entry for entry in tree for name in entry["strategies"]}


def _fill_in(text: str, values: Mapping[str, str]) -> str:
    """Replace the $names of a text twice, since values hold $names, too."""
    return Template(Template(text).substitute(values)).safe_substitute(values)
