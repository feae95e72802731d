"""Attribution of lost efficiency to its parts, for all runs of a sweep, with the usual causes of each part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scalebench.analysis.attribution.components import LOSS_PARTS
from scalebench.analysis.attribution.lost_efficiency import Attribution, attribute_run, pool_repeats
from scalebench.analysis.attribution.reference_runs import ProbedRepeats, ReferenceRunFinder
from scalebench.analysis.identity import configuration_key
from scalebench.analysis.read_runs import find_results
from scalebench.analysis.run_summary import start_time
from scalebench.core.result import Result, read_result
from scalebench.core.stats.estimates import Estimate

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTION_COLUMNS = (
    "run_id strategy gpus repeats part step_s step_s_low step_s_high share share_low share_high missing against lost "
    "lost_low lost_high"
).split()
TEXT_COLUMNS = ("run_id", "strategy", "part", "missing", "against")


def attribute_runs(results: Iterable[Result], among: Iterable[Result] = ()) -> list[Attribution]:
    """Return one attribution for each configuration of `results`, in the order of its first run.

    Baselines are looked up in `results` and `among`; a configuration without one is left out. From three repeats on
    the limits are by Student's t over repeats; two repeats have none.
    """
    by_id = {result.run_id: result for result in results}
    every = {**{result.run_id: result for result in among}, **by_id}.values()
    references, probed = ReferenceRunFinder(every), ProbedRepeats(every)
    attributed = (
        (result, attribute_run(result, references.find(result), probed))
        for result in by_id.values()
        if result.status == "ok"
    )
    return pool_by_configuration([(result, run) for result, run in attributed if run is not None])


def pool_by_configuration(attributed: Sequence[tuple[Result, Attribution]]) -> list[Attribution]:
    """Pool the attributions of repeats; the run_id of a configuration is that of the repeat that began first."""
    order = {result.run_id: number for number, (result, _) in enumerate(attributed)}
    groups: dict[tuple[str, ...], list[Attribution]] = {}
    for result, run in sorted(attributed, key=lambda pair: start_time(pair[0])):
        groups.setdefault(configuration_key(result), []).append(run)
    ordered = sorted(groups.values(), key=lambda repeats: min(order[repeat.run_id] for repeat in repeats))
    return [pool_repeats(repeats) for repeats in ordered]


def attribution(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """Return the parts of the lost efficiency of all configurations at or below `path`, one row for each part.

    A row of parts that could not be separated is called `a + b`; a part that a configuration cannot have is a row
    without figures, with the reason in `missing`. `step_s` are seconds of one step, `share` points of efficiency; the
    shares of a run add up to `lost`, which is against bare at the full batch. Limits are at 95 %. Raises InputError as
    `load` does.
    """
    import pandas as pd

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    results = [read_result(file) for file in find_results(paths)]
    strategies = {result.run_id: result.scale.strategy for result in results}
    rows = [row for run in attribute_runs(results) for row in _make_rows(run, strategies[run.run_id])]
    kinds = dict.fromkeys(TEXT_COLUMNS, "string") | dict.fromkeys(("gpus", "repeats"), "Int64")
    types = {name: kinds.get(name, "Float64") for name in ATTRIBUTION_COLUMNS}
    return pd.DataFrame(rows, columns=ATTRIBUTION_COLUMNS).astype(types)


def _make_rows(run: Attribution, strategy: str) -> list[dict[str, Any]]:
    common = {"run_id": run.run_id, "strategy": strategy, "gpus": run.gpus, "repeats": run.repeats,
              "against": run.against, **_limit_cells("lost", run.lost)}  # fmt: skip
    present = {name for part in run.parts for name in part.names}
    rows = []
    for part in run.parts:
        reasons = list(dict.fromkeys(run.missing[name] for name in part.names if name in run.missing))
        cells = _limit_cells("step_s", part.step_s) | _limit_cells("share", part.share)
        rows.append({**common, "part": " + ".join(part.names), **cells, "missing": "; ".join(reasons) or None})
    absent = [name for name in LOSS_PARTS if name not in present]
    return rows + [{**common, "part": name, "missing": run.missing.get(name)} for name in absent]


def _limit_cells(name: str, estimate: Estimate) -> dict[str, float | None]:
    low, high = estimate.limits
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
