"""`load`: result.json files as one pandas DataFrame, one row per run, with the same columns for every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.blocks import ROUND_COLUMNS, make_round_rows
from scalebench.analysis.collectives import make_bandwidth_table, make_collective_table
from scalebench.analysis.columns import FRAME_COLUMNS, convert_types, make_frame
from scalebench.analysis.named_baseline import resolve_named_baseline
from scalebench.analysis.read_runs import (
    PathLike,
    RunFiles,
    Unreadable,
    find_results,
    list_paths,
    pause_garbage_collection,
    search_results,
    summarize_files,
    summarize_readable,
)
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import compare_runs
from scalebench.core.errors import InputError
from scalebench.core.result import read_result

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Survey:
    """All runs at or below some paths, even if not all of their files can be read, and some have not ended."""

    frame: pd.DataFrame  # as returned by load, with times and flags as texts
    pooled: pd.DataFrame  # as returned by repeats.pooled, likewise
    unreadable: Unreadable
    baseline_label: str | None  # describes the named baseline, for the head of a column
    configurations: Configurations  # behind the pooled frame
    probe_folders: list[Path]  # of the runs that measured collective operations or bandwidths
    files: RunFiles


@pause_garbage_collection()
def load(
    path: PathLike | Sequence[PathLike], baseline: PathLike | None = None, dtypes: str = "nullable"
) -> pd.DataFrame:
    """Return one row per run found at or below `path` (one or several folders or result.json files).

    Seconds, bytes and samples/s as the column names say; null means not measured. Speedups, efficiencies and overheads
    are against the one-device runs among these; with a `baseline` also against that run, whatever its machine, strategy
    and number of devices (named_baseline.resolve_named_baseline lists what may name a run). Columns have nullable
    pandas types, or with dtypes="numpy" plain numpy types, which every plotting library takes. Raises InputError for a
    file that cannot be read, and for an invalid baseline.
    """
    runs = summarize_files(find_results(list_paths(path)))
    named_baseline = None if baseline is None else resolve_named_baseline(baseline, runs)
    return convert_types(make_frame(compare_runs(runs, named_baseline).rows, FRAME_COLUMNS), dtypes)


def load_rounds(path: PathLike | Sequence[PathLike]) -> pd.DataFrame:
    """Return one row per round of each run at or below `path` that took turns with others.

    `throughput_samples_per_s` is over all devices, `started_at_s` the start of the slot's first measured block in
    seconds since the epoch, `step_s` the mean seconds of a step of rank 0 in it, `disturbed` whether other programs
    took the cores, `counts` whether the figures of the run rest on the round: not on disturbed ones, if there are
    enough others, and not on leftover warm-up. Runs of one `cohort` were alive
    at the same time; ratios between them belong within rounds. Raises InputError for a file that cannot be read.
    """
    import pandas as pd

    files = find_results(list_paths(path))
    rows = [row for file in files for row in make_round_rows(read_result(file), str(file.parent))]
    return pd.DataFrame(rows, columns=list(ROUND_COLUMNS))


def load_collectives(path: PathLike | Sequence[PathLike]) -> pd.DataFrame:
    """Return make_collective_table for all runs at or below `path`; raises InputError as scalebench.load does."""
    return make_collective_table([read_result(file) for file in find_results(list_paths(path))])


def load_bandwidth(path: PathLike | Sequence[PathLike]) -> pd.DataFrame:
    """Return make_bandwidth_table for all runs at or below `path`; raises InputError as scalebench.load does."""
    return make_bandwidth_table([read_result(file) for file in find_results(list_paths(path))])


@pause_garbage_collection()
def survey(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> Survey:
    """Return the frames of `load` and `pooled` from one reading, of all files that can be read, and a list of the
    others.

    Raises InputError if not a single file can be read, and for an invalid baseline.
    """
    unreadable: Unreadable = []
    files = search_results(list_paths(path), unreadable)
    runs = summarize_readable(files.results, unreadable)
    if not runs:
        first = unreadable[0][1]
        several = f"not one of {len(unreadable)} files of results can be read; the first: {first}"
        raise InputError(first if len(unreadable) == 1 else several)
    named_baseline = None if baseline is None else resolve_named_baseline(baseline, runs)
    compared = compare_runs(runs, named_baseline)
    folders = [Path(run.cells["path"]) for run in runs if run.has_requested_probes]
    label = None if named_baseline is None else named_baseline.label
    frame, configurations = make_frame(compared.rows, FRAME_COLUMNS), Configurations(compared)
    return Survey(frame, configurations.make_frame(), unreadable, label, configurations, folders, files)
