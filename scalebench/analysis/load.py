"""`load`, `pooled` and others read result.json files as pandas frames, with the same columns for every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis import read_runs
from scalebench.analysis.collectives import make_bandwidth_table, make_collective_table
from scalebench.analysis.columns import FRAME_COLUMNS, convert_types, make_frame
from scalebench.analysis.identity import is_comparable
from scalebench.analysis.read_runs import PathLike, RunFiles, Unreadable, find_results, list_paths
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import RunSummary
from scalebench.analysis.throughput import ROUND_COLUMNS, make_round_rows
from scalebench.core.errors import InputError, nearest_name
from scalebench.core.result import read_result

if TYPE_CHECKING:
    import pandas as pd

MAX_LISTED_RUNS = 5  # in a message


@dataclass
class Survey:
    """All runs at or below some paths, even if not all of their files can be read, and some have not ended."""

    frame: pd.DataFrame  # as returned by load, with times and flags as texts
    pooled: pd.DataFrame  # as returned by pooled, likewise
    unreadable: Unreadable
    baseline_label: str | None  # describes the named baseline, for the head of a column
    configurations: Configurations  # behind the pooled frame
    probe_folders: list[Path]  # of the runs that measured collective operations or bandwidths
    files: RunFiles


def load(
    path: PathLike | Sequence[PathLike], baseline: PathLike | None = None, dtypes: str = "nullable"
) -> pd.DataFrame:
    """Return one row per run found at or below `path` (one or several folders or result.json files).

    Seconds, bytes and samples/s as the column names say; null means not measured. Speedups, efficiencies and overheads
    are against the one-device runs among these; with a `baseline` also against that run (resolve_named_baseline lists
    what may name it). Columns have nullable pandas types, or with dtypes="numpy" plain numpy types. Raises InputError
    for a file that cannot be read, and for an invalid baseline.
    """
    return convert_types(make_frame(load_configurations(path, baseline).rows, FRAME_COLUMNS), dtypes)


def pooled(
    path: PathLike | Sequence[PathLike], baseline: PathLike | None = None, dtypes: str = "nullable"
) -> pd.DataFrame:
    """Return one row per configuration found at or below `path`: the columns of `load`, and `repeats`, their number.

    A configuration is a fingerprint on one kind of machine with one version of its framework; runs without a throughput
    are a row for each status and reason. Copies of a run (resume=true makes some) count once, and a repeat that was
    measured twice counts twice.

    One repeat: the row of `load`, with limits over its blocks (`interval_over` is `blocks`). Several:
    `throughput_samples_per_s`, `step_s` and `epoch_s` are geometric means, and `interval_over` is `repeats`. Speedups,
    efficiencies and overheads are means of the ratios within repeats where those of both were interleaved or took
    turns, and ratios of independent means (Welch) where they were not; they have limits where both have several
    repeats. The variance between repeats is moderated by that of the other configurations of the same sweep
    (core.stats.moderated_variance); two repeats alone have limits that are 12.7 standard errors off. Other figures are
    means, with Student's t over three repeats or more for those that have an interval in `load`; `_min` is the least;
    memory peaks are the largest; steady if all are; flags of any. `run_id`, `started_at` and `path` are those of the
    first repeat; differing texts are joined; `repeat` is null. A `baseline` that is one of these runs stands for all
    repeats of its configuration. `dtypes` and InputError as for `load`.

    Source of paired ratios: Box, Hunter and Hunter 1978, "Statistics for Experimenters" (paired comparisons, blocking).
    """
    return convert_types(load_configurations(path, baseline).make_frame(), dtypes)


def load_configurations(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> Configurations:
    """Return the configurations behind the frame of `pooled`, which knows the ratios between any two of its rows."""
    runs = read_runs.summarize_files(find_results(list_paths(path)))
    return Configurations(runs, None if baseline is None else resolve_named_baseline(baseline, runs))


def load_rounds(path: PathLike | Sequence[PathLike]) -> pd.DataFrame:
    """Return one row per round of each run at or below `path` that took turns with others.

    `throughput_samples_per_s` is over all devices, `started_at_s` the start of the slot's first measured block in
    seconds since the epoch, `step_s` the mean seconds of a step of rank 0 in it, `disturbed` whether other programs
    took the cores, `counts` whether the figures of the run rest on the round. Runs of one `cohort` were alive at the
    same time; ratios between them belong within rounds. Raises InputError for a file that cannot be read.
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


def survey(path: PathLike | Sequence[PathLike], baseline: PathLike | None = None) -> Survey:
    """Return the frames of `load` and `pooled` from one reading, and a list of the files that cannot be read.
    InputError if no file can be read, and for an invalid baseline."""
    unreadable: Unreadable = []
    files = read_runs.search_results(list_paths(path), unreadable)
    runs = read_runs.summarize_files(files.results, unreadable)
    if not runs:
        first = unreadable[0][1]
        several = f"not one of {len(unreadable)} files of results can be read; the first: {first}"
        raise InputError(first if len(unreadable) == 1 else several)
    named = None if baseline is None else resolve_named_baseline(baseline, runs)
    folders = [Path(run.cells["path"]) for run in runs if run.has_requested_probes]
    configurations, label = Configurations(runs, named), None if named is None else named.label
    frame = make_frame(configurations.rows, FRAME_COLUMNS)
    return Survey(frame, configurations.make_frame(), unreadable, label, configurations, folders, files)


def resolve_named_baseline(baseline: PathLike, runs: Sequence[RunSummary]) -> RunSummary:
    """Return the run that `baseline` names: the folder of a run, its result.json, the folder of a sweep with a single
    run, or the run_id of one of `runs`.

    Raises InputError if there is no such run or several, if it was not measured, and if no measured run may be compared
    with it.
    """
    if Path(baseline).exists():
        files = find_results([baseline])
        if len(files) > 1:
            names = ", ".join(str(file.parent) for file in files[:MAX_LISTED_RUNS])
            more = f" and {len(files) - MAX_LISTED_RUNS} more" if len(files) > MAX_LISTED_RUNS else ""
            raise InputError(f"baseline {baseline} holds {len(files)} runs; name one of {names}{more}")
        (run,) = read_runs.summarize_files(files)
    else:
        by_id = {other.run_id: other for other in runs}
        if str(baseline) not in by_id:
            near = nearest_name(str(baseline), by_id)
            hint = f"did you mean '{near}'?" if near else f"a run_id looks like {next(iter(by_id))}"
            raise InputError(f"no folder or file {baseline}, and no run '{baseline}'; {hint}")
        run = by_id[str(baseline)]
    if run.rate is None:
        raise InputError(f"baseline {baseline} has no throughput: {run.status}: {run.reason or 'not measured'}")
    measured = [other for other in runs if other.rate is not None]
    if not measured or any(is_comparable(other, run) for other in measured):
        return run
    if not any(other.sample_key == run.sample_key for other in measured):
        # Runs with equal names may still differ in the rest of their sample_key.
        own, *others = (f"{each.cells['model']} on {each.cells['dataset']}" for each in (run, *measured))
        rows = "; ".join(sorted(set(others))[:MAX_LISTED_RUNS])
        raise InputError(
            f"baseline {baseline} is of {own}, none of the rows is ({rows}); speedups are between runs of one model on "
            "one data set"
        )
    scale = run.scale
    raise InputError(
        f"baseline {baseline} has {scale.batch_per_device} samples per device, {scale.global_batch} in all, "
        f"{scale.scaling} scaling, none of the rows has the same; speedups are between runs of one batch per device in "
        "weak scaling, of one global batch in strong scaling"
    )
