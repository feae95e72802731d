"""The scalebench command that repeats a row, and the lines of a built-in strategy for a program of the user's own."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core.config_files import list_options, strategy_option_defaults
from scalebench.report.tables import SORT_COLUMNS, find_missing_baselines

if TYPE_CHECKING:
    import pandas as pd

RECIPES_FILE = Path(__file__).with_name("repeat_commands.yaml")
AUTO_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # what PyTorch's backend=auto resolves to
FIRST_PORT = 20010  # of an example
# Column of the frame, key of the command line, and the default value, which the command leaves out.
SETTINGS = (
    ("precision", "train.precision", "float32"), ("data_format", "train.data_format", "default"),
    ("feed", "dataset.feed", "host"), ("prefetch", "dataset.prefetch", "none"), ("bind", "hardware.bind", "numa"),
    ("seed", "seed", 0),
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The lines of a strategy around the user's own model, optimizer, loss and batches. `start_command` starts them,
    `left_out` lists the options of the row that they do not set."""

    start_command: str
    code: str
    left_out: tuple[str, ...] = ()


def make_command(row: Mapping[str, Any]) -> str:
    """Make the sweep that repeats a row of the frame with its baselines.

    It is made from what was typed, if Hydra's record of it is in the run's folder, else from the row's columns, which
    do not hold everything.
    """
    path = _overrides_file(row)
    overrides = _read_overrides(path) if path.is_file() else _make_overrides(row)
    overrides = _add_missing(overrides, row)
    if (row.get("repeats") or 1) > 1:
        overrides = [override for override in overrides if not override.startswith(("repeat=", "measure.repeats="))]
        overrides.append(f"measure.repeats={row['repeats']}")
    return f"python -m scalebench --multirun {shlex.join(overrides)}"


def make_baseline_commands(frame: pd.DataFrame) -> list[str]:
    """Make the sweeps that measure the rows without a baseline together with what they are compared with."""
    rows = [row for row in plain_rows(frame.sort_values(SORT_COLUMNS)) if find_missing_baselines(row)]
    return list(dict.fromkeys(map(_make_baseline_command, rows)))


def _make_baseline_command(row: dict[str, Any]) -> str:
    path, overrides = _overrides_file(row), []
    if path.is_file():
        repeats = _uses_measure_repeats(path.with_name("config.yaml"))
        overrides = [override for override in _read_overrides(path) if not (repeats and override.startswith("repeat="))]
    return f"python -m scalebench --multirun {shlex.join(_add_missing(overrides, row))}"


def _overrides_file(row: Mapping[str, Any]) -> Path:
    return Path(str(row["path"])) / ".hydra" / "overrides.yaml"


def _read_overrides(path: Path) -> list[str]:
    """Return what the user typed, without Hydra's own keys."""
    overrides = map(str, OmegaConf.load(path))
    return [override for override in overrides if not override.startswith("hydra.")]


def _uses_measure_repeats(config: Path) -> bool:
    """Return whether measure.repeats numbered the run, as it will again."""
    return config.is_file() and (OmegaConf.select(OmegaConf.load(config), "measure.repeats") or 1) > 1


def _add_missing(overrides: list[str], row: Mapping[str, Any]) -> list[str]:
    """Add the strategy and the device count unless they were typed."""
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    return overrides + [f"{name}={row[name]}" for name in ("strategy", "gpus") if name not in keys]


def _make_overrides(row: Mapping[str, Any]) -> list[str]:
    overrides = [f"{name}={row[name]}" for name in ("model", "dataset", "hardware", "strategy", "scaling", "gpus")]
    batch = "global_batch" if row["scaling"] == "strong" else "batch_per_device"
    overrides.append(f"train.{batch}={row[batch]}")
    overrides += [f"strategy.options.{word}" for word in (row["options"] or "").split()]
    overrides += [f"{key}={row[column]}" for column, key, default in SETTINGS if row[column] not in (None, default)]
    if row["device_ids"] is not None:
        overrides.append(f"hardware.device_ids=[{row['device_ids'].replace(' ', ',')}]")
    if row["environment"] is not None:
        overrides.append(f"hardware.environment={{{row['environment'].replace('=', ':').replace(' ', ',')}}}")
    return overrides


def make_recipe(strategy: str, gpus: int, device: str, row_options: str | None = None) -> Recipe | None:
    """Make the lines of a strategy for a number of devices of a kind, `cpu` or `cuda`; None if it is not built in.

    `row_options` are the options that differ from their defaults, as the frame's column has them: `bucket_cap_mb=1`.
    """
    entry = _read_recipes().get(strategy)
    if entry is None:
        return None
    changed = dict(word.split("=", 1) for word in (row_options or "").split() if "=" in word)
    settings = {key: str(value) for key, value in strategy_option_defaults(strategy).items()} | changed
    values = _run_values(strategy, gpus, device) | dict(entry.get(device) or {})
    values |= (entry.get("of") or {}).get(strategy, {})
    values |= {name: settings[name] for name in entry.get("verbatim") or []}
    choices = (entry.get("choices") or {}).items()
    values |= {name: texts.get(settings[name], values.get(name, "")) for name, texts in choices}
    keywords = [f", {name}={changed[name]}" for name in entry.get("keywords") or [] if name in changed]
    flags = [_make_flag(flag, changed[name]) for name, flag in (entry.get("flags") or {}).items() if name in changed]
    values |= {"keywords": "".join(keywords), "flags": "".join(flags)}
    covered = {name for part in ("verbatim", "keywords", "flags") for name in entry.get(part) or []}
    covered |= {name for name, texts in choices if settings[name] in texts}
    left_out = tuple(f"{name}={value}" for name, value in changed.items() if name not in covered)
    return Recipe(_fill_in(entry["start"], values), _fill_in(entry["code"], values).rstrip(), left_out)


@functools.lru_cache
def read_strategy_config(name: str) -> dict[str, Any]:
    """Return the YAML of a strategy; empty if there is none."""
    path = list_options("strategy").get(name)
    tree: Any = {} if path is None else OmegaConf.to_container(OmegaConf.load(path))
    return dict(tree)


@functools.lru_cache(maxsize=1)
def _read_recipes() -> dict[str, dict[str, Any]]:
    """Return the entries of RECIPES_FILE by strategy."""
    tree: Any = OmegaConf.to_container(OmegaConf.load(RECIPES_FILE))
    return {name: entry for entry in tree for name in entry["strategies"]}


def _run_values(strategy: str, gpus: int, device: str) -> dict[str, str]:
    addresses = [f'"localhost:{FIRST_PORT + number}"' for number in range(gpus)]
    backend = read_strategy_config(strategy)["backend"]
    backend = AUTO_BACKENDS[device] if backend in (None, "auto") else backend
    return {"gpus": str(gpus), "kind": device, "addresses": ", ".join(addresses), "backend": backend}


def _fill_in(text: str, values: Mapping[str, str]) -> str:
    """Replace the $names of a text twice, since values hold $names, too."""
    return Template(Template(text).substitute(values)).safe_substitute(values)


def _make_flag(flag: str, value: str) -> str:
    return {"True": f" {flag}", "False": ""}.get(value, f" {flag} {value}")
