"""Attribution of lost efficiency to its parts, for all runs of a sweep, with the usual causes of each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis.attribution import lost_efficiency as losses
from scalebench.analysis.attribution.lost_efficiency import Attribution, MeasuredRepeat
from scalebench.analysis.columns import TEXT, interval_cells, make_frame
from scalebench.analysis.identity import configuration_key, group_by, identify
from scalebench.analysis.read_runs import PathLike, find_results, list_paths
from scalebench.core.result import Result, read_result, start_time

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTION_COLUMNS = (
    "run_id strategy gpus repeats part step_s step_s_low step_s_high share share_low share_high missing against lost "
    "lost_low lost_high"
).split()


def attribute_runs(results: Iterable[Result]) -> list[Attribution]:
    """Return one attribution for each configuration with a baseline among `results`, in the order of its first run."""
    by_id = {result.run_id: result for result in results}
    references = losses.ReferenceRunFinder(by_id.values())
    repeats = (losses.measure_repeat(result, references.find(result)) for result in by_id.values())
    return attribute_configurations([repeat for repeat in repeats if repeat is not None])


def attribute_configurations(repeats: Sequence[MeasuredRepeat]) -> list[Attribution]:
    """Attribute each configuration; its run_id is that of the repeat that started first."""
    groups = group_by(repeats, lambda repeat: configuration_key(identify(repeat.result))).values()
    return [losses.attribute_repeats(sorted(group, key=lambda repeat: start_time(repeat.result))) for group in groups]


def attribution(path: PathLike | Sequence[PathLike]) -> pd.DataFrame:
    """Return the parts of the lost efficiency of all configurations at or below `path`, one row for each part.

    A row of parts that could not be separated is called `a + b`; a part that a configuration cannot have is a row
    without figures, with the reason in `missing`. `step_s` are seconds of one step, `share` points of efficiency; the
    shares of a run add up to `lost`, which is against bare at the full batch. Limits are at 95 %, over repeats for what
    compares processes (batch, wrapper, contention, `lost`). Raises InputError as `load` does.
    """
    results = [read_result(file) for file in find_results(list_paths(path))]
    strategies, rows = {result.run_id: result.scale.strategy for result in results}, list[dict[str, Any]]()
    for run in attribute_runs(results):
        common = {"run_id": run.run_id, "strategy": strategies[run.run_id], "gpus": run.gpus, "repeats": run.repeats,
                  "against": run.against, **interval_cells("lost", run.lost)}  # fmt: skip
        for part in run.parts:
            reasons = list(dict.fromkeys(run.missing[name] for name in part.names if name in run.missing))
            cells = interval_cells("step_s", part.step_s) | interval_cells("share", part.share)
            rows.append({**common, "part": " + ".join(part.names), **cells, "missing": "; ".join(reasons) or None})
        absent = [name for name in losses.LOSS_PARTS if run.part(name) is None]
        rows += [{**common, "part": name, "missing": run.missing.get(name)} for name in absent]
    return make_frame(rows, ATTRIBUTION_COLUMNS, part=TEXT, missing=TEXT, against=TEXT)
