"""What repeats a row: the command of scalebench, and for a built-in strategy the lines that give it in a program of
one's own. Layer 3."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from omegaconf import OmegaConf

from scalebench.core.config_files import strategy_option_defaults, list_options

LINES = Path(__file__).with_name("recipes.yaml")
BY_DEVICE = {"cpu": "gloo", "cuda": "nccl"}  # what backend=auto comes to with PyTorch
FIRST_PORT = 20010  # of an example
# Column of the frame, key of the command line, and the value that needs no word.
SETTINGS = (
    ("precision", "train.precision", "float32"), ("data_format", "train.data_format", "default"),
    ("feed", "dataset.feed", "host"), ("prefetch", "dataset.prefetch", "none"), ("bind", "hardware.bind", "numa"),
    ("seed", "seed", 0),
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Lines around a model, an optimizer, a loss and batches of one's own; `launch` starts them. `left_out` are options
    of the row that the lines do not give."""

    launch: str
    code: str
    left_out: tuple[str, ...] = ()


def command(row: Mapping[str, Any]) -> str:
    """The sweep that repeats the row (cells of a frame) with its baselines: from what was typed, where Hydra kept it
    beside the run, else from its columns, which do not know everything."""
    typed = Path(str(row["path"])) / ".hydra" / "overrides.yaml"
    words = _typed(typed) if typed.is_file() else _of_columns(row)
    named = {word.partition("=")[0].lstrip("+") for word in words}
    wanted = [f"strategy={row['strategy']}", f"gpus={row['gpus']}"]
    words += [word for word in wanted if word.partition("=")[0] not in named]
    if (row.get("repeats") or 1) > 1:
        words = [word for word in words if not word.startswith(("repeat=", "measure.repeats="))]
        words.append(f"measure.repeats={row['repeats']}")
    return f"python -m scalebench --multirun {shlex.join(words)}"


def recipe(strategy: str, gpus: int, device: str, chosen: str | None = None) -> Recipe | None:
    """The lines of that strategy on so many devices of a kind, `cpu` or `cuda`; None for one that is not built in.

    `chosen` are the options that are not as they come, as the frame's column has them: `bucket_cap_mb=1`.
    """
    found = _lines().get(strategy)
    if found is None:
        return None
    mine = dict(word.split("=", 1) for word in (chosen or "").split() if "=" in word)
    settings = {key: str(value) for key, value in strategy_option_defaults(strategy).items()} | mine
    values = _of_run(strategy, gpus, device) | dict(found.get(device) or {}) | (found.get("of") or {}).get(strategy, {})
    values |= {name: settings[name] for name in found.get("verbatim") or []}
    choices = (found.get("choices") or {}).items()
    values |= {name: texts.get(settings[name], values.get(name, "")) for name, texts in choices}
    keywords = [f", {name}={mine[name]}" for name in found.get("keywords") or [] if name in mine]
    flags = [_flag(flag, mine[name]) for name, flag in (found.get("flags") or {}).items() if name in mine]
    values |= {"keywords": "".join(keywords), "flags": "".join(flags)}
    known = {name for part in ("verbatim", "keywords", "flags") for name in found.get(part) or []}
    known |= {name for name, texts in choices if settings[name] in texts}
    left_out = tuple(f"{name}={value}" for name, value in mine.items() if name not in known)
    return Recipe(_filled(found["launch"], values), _filled(found["code"], values).rstrip(), left_out)


@functools.lru_cache
def of_strategy(name: str) -> dict[str, Any]:
    """What its YAML says; empty where there is none."""
    path = list_options("strategy").get(name)
    tree: Any = {} if path is None else OmegaConf.to_container(OmegaConf.load(path))
    return dict(tree)


@functools.lru_cache(maxsize=1)
def _lines() -> dict[str, dict[str, Any]]:
    """By strategy."""
    tree: Any = OmegaConf.to_container(OmegaConf.load(LINES))
    return {name: one for one in tree for name in one["strategies"]}


def _of_run(strategy: str, gpus: int, device: str) -> dict[str, str]:
    addresses = [f'"localhost:{FIRST_PORT + number}"' for number in range(gpus)]
    backend = of_strategy(strategy)["backend"]
    backend = BY_DEVICE[device] if backend in (None, "auto") else backend
    return {"gpus": str(gpus), "kind": device, "addresses": ", ".join(addresses), "backend": backend}


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Twice: values have names in them too."""
    return Template(Template(text).substitute(values)).safe_substitute(values)


def _flag(flag: str, value: str) -> str:
    return {"True": f" {flag}", "False": ""}.get(value, f" {flag} {value}")


def _typed(overrides: Path) -> list[str]:
    words = [str(word) for word in OmegaConf.load(overrides)]
    return [word for word in words if not word.startswith("hydra.")]


def _of_columns(row: Mapping[str, Any]) -> list[str]:
    words = [f"{name}={row[name]}" for name in ("model", "dataset", "hardware", "strategy", "scaling", "gpus")]
    strong = row["scaling"] == "strong"
    words.append(f"train.{'global_batch' if strong else 'batch_per_device'}={row[_batch(strong)]}")
    words += [f"strategy.options.{word}" for word in (row["options"] or "").split()]
    words += [f"{key}={row[column]}" for column, key, usual in SETTINGS if row[column] not in (None, usual)]
    if row["device_ids"] is not None:
        words.append(f"hardware.device_ids=[{row['device_ids'].replace(' ', ',')}]")
    if row["environment"] is not None:
        words.append(f"hardware.environment={{{row['environment'].replace('=', ':').replace(' ', ',')}}}")
    return words


def _batch(strong: bool) -> str:
    return "global_batch" if strong else "batch_per_device"
