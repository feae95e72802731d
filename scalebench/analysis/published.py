"""Tables of the studies that scalebench repeats, as rows beside which measured ones can be shown. Layer 1.

They stand in published_data/, a CSV for the figures and a YAML for where they are from. An empty cell is what the study
does not say; `derived` names the cells that are ours: worked out of others, or known from its scripts. No measured
statistics know of these rows.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.core.errors import InputError, unknown_name_message

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).with_name("published_data")
PUBLISHED_COUNTS = ("gpus", "batch_per_device", "global_batch")
PUBLISHED_FIGURES = ("throughput_samples_per_s", "step_s", "speedup", "efficiency", "slope", "value")
PUBLISHED_COLUMNS = (
    "study table model dataset method strategy settings hardware gpus scaling batch_per_device global_batch "
    "throughput_samples_per_s step_s speedup efficiency slope quantity value remark derived source"
).split()


@dataclass(frozen=True)
class Study:
    """`against`: self or bare, the baseline here that is nearest to what its speedups are against; `machines`: hardware
    name -> what it is."""

    name: str
    title: str
    source: str
    against: str
    machines: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def list_studies() -> list[tuple[str, str]]:
    """(name, title) of each study."""
    return [(name, load_study(name).title) for name in _study_names()]


@cache
def load_study(name: str) -> Study:
    """Where its rows are from. InputError for a name that is none, with the nearest one."""
    from omegaconf import OmegaConf

    if name not in _study_names():
        raise InputError(f"{unknown_name_message('published study', name, _study_names())} (--reference)")
    read: Any = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    return Study(name=name, **read)


def load_published(names: Sequence[str]) -> pd.DataFrame:
    """All rows of these studies, in their order; columns as COLUMNS, null where the study does not say.

    `speedup` is against one GPU of the same kind and method unless `remark` says otherwise, `efficiency` a share,
    `slope` speedup per GPU, `value` whatever `quantity` names, `settings` what else was set, in scalebench's words.
    InputError for an unknown name.
    """
    import pandas as pd

    chosen = [load_study(name).name for name in dict.fromkeys(names)]
    found = [{"study": name, **row} for name in chosen for row in _read_csv(name)]
    kinds = (
        dict.fromkeys(PUBLISHED_COLUMNS, "string")
        | dict.fromkeys(PUBLISHED_COUNTS, "Int64")
        | dict.fromkeys(PUBLISHED_FIGURES, "Float64")
    )
    return pd.DataFrame(found, columns=PUBLISHED_COLUMNS).astype(kinds)


def _study_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def _read_csv(name: str) -> list[dict[str, Any]]:
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [{column: _parse_cell(column, text) for column, text in row.items()} for row in csv.DictReader(file)]


def _parse_cell(column: str, text: str) -> str | int | float | None:
    if text == "":
        return None
    if column in PUBLISHED_COUNTS:
        return int(text)
    return float(text) if column in PUBLISHED_FIGURES else text
