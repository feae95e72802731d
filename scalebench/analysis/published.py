"""Tables of published studies that scalebench repeats, as rows to show beside measured ones.

published_data/ has a CSV with the figures of each study and a YAML with their sources. `derived` names the cells that
are ours: computed from others, or taken from its scripts. These rows are part of no statistics on measured ones.
"""

from __future__ import annotations

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
    import pandas as pd

    kinds = dict.fromkeys(PUBLISHED_COLUMNS, "string") | dict.fromkeys(PUBLISHED_COUNTS, "Int64")
    kinds |= dict.fromkeys(PUBLISHED_FIGURES, "Float64")
    tables = [pd.DataFrame(columns=PUBLISHED_COLUMNS).astype(kinds)]
    for name in dict.fromkeys(names):
        file = FOLDER / f"{load_study(name).name}.csv"
        tables.append(pd.read_csv(file, dtype=kinds, keep_default_na=False, na_values=[""]).assign(study=name))
    return pd.concat(tables, ignore_index=True)[PUBLISHED_COLUMNS].astype(kinds)


def list_studies() -> list[str]:
    """Return the names of the published studies."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
