"""Tables of published studies that scalebench repeats, as rows to show beside measured ones.

published_data/ has a CSV with the figures of each study and a YAML with their sources. An empty cell is not stated by
the study; `derived` names the cells that are ours: computed from others, or taken from its scripts. These rows are part
of no statistics on measured ones.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.analysis.columns import make_typed_frame
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
    """A published study. `against` is our baseline that is nearest to the study's own, self or bare; `machines`
    describes its hardware by name."""

    name: str
    title: str
    source: str
    against: str
    machines: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@cache
def load_study(name: str) -> Study:
    """Return the source of a study's rows. Raises InputError for an unknown name, with the nearest one."""
    from omegaconf import OmegaConf

    if name not in list_studies():
        raise InputError(f"{unknown_name_message('published study', name, list_studies())} (--reference)")
    read: Any = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    return Study(name=name, **read)


def load_published(names: Sequence[str]) -> pd.DataFrame:
    """Return all rows of these studies, in their order, with PUBLISHED_COLUMNS; null where the study does not say.

    `speedup` is against one GPU of the same kind and method unless `remark` says otherwise, `efficiency` is a share,
    `slope` speedup per GPU, `value` the figure that `quantity` names, `settings` has further settings in scalebench's
    terms. Raises InputError for an unknown name.
    """
    studies = [load_study(name).name for name in dict.fromkeys(names)]
    rows = [{"study": name, **row} for name in studies for row in _read_csv(name)]
    texts = [name for name in PUBLISHED_COLUMNS if name not in (*PUBLISHED_COUNTS, *PUBLISHED_FIGURES)]
    return make_typed_frame(rows, PUBLISHED_COLUMNS, texts, PUBLISHED_COUNTS)


def list_studies() -> list[str]:
    """Return the names of the published studies."""
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
