"""What a report is about: the rows, the records behind them, and what was asked for. Layer 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench import frame as frames
from scalebench.pooling import pool
from scalebench.results import RESULT_FILE, Result, read_result

if TYPE_CHECKING:
    import pandas as pd

DETAILED = 200  # runs of which a report tells more than their row


@dataclass
class Evidence:
    """Sections read figures from `frame` and `pooled`, and only what no column has from single records."""

    paths: list[Path]  # as given; the first one's folder is the report's home
    frame: pd.DataFrame  # a row per run, as scalebench.load gives
    pooled: pd.DataFrame  # a row per configuration, as scalebench.pooled gives
    unreadable: list[tuple[Path, str]] = field(default_factory=list)  # file and one line that says why
    wanted_efficiency: float = 0.8
    given: str | None = None  # what `--baseline` names, in words for a column's head
    published: pd.DataFrame | None = None  # rows of published studies, --reference

    @property
    def detailed(self) -> list[str]:
        """run_id of the runs that are told in detail: all, or the first launch of each configuration up to DETAILED."""
        ids = [str(name) for name in self.frame["run_id"]]
        return ids if len(ids) <= DETAILED else [str(name) for name in self.pooled["run_id"]][:DETAILED]

    def folder(self, run_id: str) -> Path:
        """Of that run. KeyError for none."""
        return self._folders()[run_id]

    def result(self, run_id: str) -> Result:
        """The whole record of a run, read again: ten thousand of them would not fit into memory."""
        return _read(self.folder(run_id) / RESULT_FILE)

    def _folders(self) -> dict[str, Path]:
        names = zip(self.frame["run_id"], self.frame["path"], strict=True)
        return {str(run_id): Path(str(path)) for run_id, path in names}


@lru_cache(maxsize=DETAILED)
def _read(path: Path) -> Result:
    return read_result(path)


def gather(paths: Sequence[Path], wanted_efficiency: float = 0.8) -> Evidence:
    """All runs at or below `paths`. InputError where there is not one file of a result."""
    results, folders = frames.read(list(paths))
    return Evidence(list(paths), frames.frame(results, folders), pool(results, folders), [], wanted_efficiency)
