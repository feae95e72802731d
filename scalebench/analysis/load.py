"""`load`: result.json files -> one pandas DataFrame, one row per run, the same columns for every strategy. Layer 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.baselines import Baselines
from scalebench.analysis.columns import COLUMNS, typed
from scalebench.analysis.named_baseline import Given, find_given
from scalebench.analysis.read_runs import PathLike, Unreadable, figures_in, find, paths_of, readable, search
from scalebench.analysis.rows import figures_of, row
from scalebench.analysis.run_summary import Figures
from scalebench.core.errors import InputError
from scalebench.core.result import Result, read_result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "Survey", "find", "frame", "load", "read", "rows_of", "survey", "typed"]


@dataclass
class Survey:
    """What there is at or below some paths, also where not all of it can be read."""

    frame: pd.DataFrame  # as load gives
    pooled: pd.DataFrame  # as pooling.pooled gives
    unreadable: Unreadable
    given: str | None  # the baseline that was asked for, in words for a column's head
    on_request: list[Path]  # folders of the runs that measured collective operations or bandwidths


def load(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> pd.DataFrame:
    """One row per run found at or below `path` (one or several folders or result.json files).

    Seconds, bytes, samples/s as the column names say; null means not measured. Speedups, efficiencies, overheads
    are against the one-device rows among these; with a `baseline` also against that run (given.find_given says what
    may name one), whatever its machine, strategy and number of devices. Raises InputError for a file that cannot be
    read, and for a baseline that is none.
    """
    figures = figures_in(find(paths_of(path)))
    return rows_of(figures, None if baseline is None else find_given(baseline, figures))


def survey(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> Survey:
    """As load and pooled in one, of the files that can be read; the others are told of. InputError where there is not
    one that can be read, and for a baseline that is none."""
    from scalebench.analysis.repeats import pool_figures

    unreadable: Unreadable = []
    figures = readable(search(paths_of(path), unreadable), unreadable)
    if not figures:
        first = unreadable[0][1]
        several = f"not one of {len(unreadable)} files of results can be read; the first: {first}"
        raise InputError(first if len(unreadable) == 1 else several)
    given = None if baseline is None else find_given(baseline, figures)
    folders = [Path(run.cells["path"]) for run in figures if run.on_request]
    rows, pooled = rows_of(figures, given), pool_figures(figures, given)
    return Survey(rows, pooled, unreadable, None if given is None else given.words, folders)


def read(path: PathLike | Sequence[PathLike]) -> tuple[list[Result], list[Path]]:
    """The whole records at or below `path`, and the folder of each. Of thousands they do not fit into memory."""
    files = find(paths_of(path))
    return [read_result(file) for file in files], [file.parent for file in files]


def frame(results: Iterable[Result], folders: Iterable[Path]) -> pd.DataFrame:
    """Rows of these records, in order, with the column types of every scalebench frame."""
    return rows_of([figures_of(result, folder) for result, folder in zip(results, folders, strict=True)])


def rows_of(figures: Sequence[Figures], given: Given | None = None) -> pd.DataFrame:
    """Rows of runs of which the records are gone."""
    among = Baselines.among(figures)
    return typed([row(run, among, None if given is None else given.of(run)) for run in figures], COLUMNS)
