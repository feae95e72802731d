"""What a report is about: the rows, the records behind them, and what was asked for. Layer 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench import curves as drawn
from scalebench import frame as frames
from scalebench.results import Result, read_result
from scalebench.run_folder import RESULT_FILE

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.frame import Survey

DETAILED = 200  # runs of which a report tells more than their row
MOST_RECORDS = 2 * DETAILED  # in memory: those of failed runs come on top


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
    _records: dict[str, Result] = field(default_factory=dict)  # read so far

    @cached_property
    def curves(self) -> list[drawn.Curve]:
        """Of the pooled rows, made once: a second for ten thousand, and many sections draw them."""
        return drawn.curves(self.pooled)

    @cached_property
    def detailed(self) -> list[str]:
        """run_id of the runs that are told in detail: all, or the first launch of each configuration up to DETAILED."""
        ids = [str(name) for name in self.frame["run_id"]]
        return ids if len(ids) <= DETAILED else [str(name) for name in self.pooled["run_id"]][:DETAILED]

    def folder(self, run_id: str) -> Path:
        """Of that run. KeyError for none."""
        return self._folders[run_id]

    def result(self, run_id: str) -> Result:
        """The whole record of a run, read again: ten thousand of them would not fit into memory."""
        if run_id not in self._records:
            if len(self._records) >= MOST_RECORDS:
                self._records.clear()
            self._records[run_id] = read_result(self.folder(run_id) / RESULT_FILE)
        return self._records[run_id]

    @cached_property
    def _folders(self) -> dict[str, Path]:
        names = zip(self.frame["run_id"], self.frame["path"], strict=True)
        return {str(run_id): Path(str(path)) for run_id, path in names}


def gather(
    paths: Sequence[Path],
    wanted_efficiency: float = 0.8,
    baseline: str | Path | None = None,
    references: Sequence[str] = (),
) -> Evidence:
    """All runs at or below `paths` that can be read; the others are its `unreadable`. `baseline` names a run that
    speedups are against too (given.find_given), `references` published studies whose rows are to be shown beside ours.

    InputError where there is not one result that can be read, and for a baseline or a study that is none.
    """
    published = None
    if references:
        from scalebench.published import rows

        published = rows(list(references))
    return of_survey(paths, frames.survey(list(paths), baseline), wanted_efficiency, published)


def of_survey(
    paths: Sequence[Path], found: Survey, wanted_efficiency: float = 0.8, published: pd.DataFrame | None = None
) -> Evidence:
    """Of what has been read at or below `paths`."""
    return Evidence(list(paths), found.frame, found.pooled, found.unreadable, wanted_efficiency, found.given, published)
