"""The ladders of the runs that a report or the terminal tells of, with what their causes are looked for in. Layer 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.attribution import pool_by_configuration
from scalebench.analysis.attribution.causes import AttributedRun
from scalebench.analysis.attribution.components import LOSS_PARTS
from scalebench.analysis.attribution.lost_efficiency import Attribution, Part, attribute_run
from scalebench.analysis.attribution.reference_runs import ReferenceRunFinder, samples_per_device
from scalebench.analysis.scaling_curves import plain_rows
from scalebench.core import units
from scalebench.core.result import Result, read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.stats.estimates import Estimate
from scalebench.report.report_data import Evidence

if TYPE_CHECKING:
    import pandas as pd


class Runs:
    """All rows of a frame, and the records behind those that a ladder needs, which `read` gives by their run_id."""

    def __init__(self, frame: pd.DataFrame, read: Callable[[str], Result]) -> None:
        self._read = read
        self._rows = {str(row["run_id"]): row for row in plain_rows(frame)}
        self._alone: dict[tuple[str, int], list[str]] = {}  # (model, batch) -> good runs on one device
        for run_id, row in self._rows.items():
            if row["gpus"] == 1 and row["status"] == "ok":
                self._alone.setdefault((row["model"], row["global_batch"]), []).append(run_id)

    def baselines(self, results: Iterable[Result]) -> ReferenceRunFinder:
        """Among all rows that may be a baseline of `results`: those that the frame names, and in strong scaling those
        of the same model at the local batch."""
        wanted: dict[str, None] = {}
        for result in results:
            mine, scale = self._rows[result.run_id], result.scale
            named = [mine["baseline_bare_id"], mine["baseline_self_id"]]
            if scale.scaling == "strong" and samples_per_device(result).is_integer():
                alike = self._alone.get((mine["model"], int(samples_per_device(result))), [])
                strategies = (scale.strategy, scale.baseline_bare)
                named += [name for name in alike if self._rows[name]["strategy"] in strategies]
            wanted |= dict.fromkeys(name for name in named if name in self._rows)
        return ReferenceRunFinder([self._read(name) for name in wanted])

    def case(self, result: Result) -> AttributedRun | None:
        """Of one launch by itself; None where it has no baseline."""
        against = self.baselines([result]).find(result)
        one = attribute_run(result, against)
        if one is None:
            return None
        return AttributedRun(one, result, against, list(self._rows.values()))


def cases(evidence: Evidence) -> dict[str, AttributedRun]:
    """By run_id of the pooled row: ladders of the runs that are told in detail, with baselines among all rows. Those
    without a baseline are left out."""
    status = dict(zip(evidence.frame["run_id"], evidence.frame["status"], strict=True))
    results = [evidence.result(run_id) for run_id in evidence.detailed if status[run_id] == "ok"]
    baselines = Runs(evidence.frame, evidence.result).baselines(results)
    rows = plain_rows(evidence.pooled)
    against = {result.run_id: baselines.find(result) for result in results}
    told = [(result, attribute_run(result, against[result.run_id])) for result in results]
    known = {result.run_id: result for result in results}
    found = {}
    for one in pool_by_configuration([(result, each) for result, each in told if each is not None]):
        found[one.run_id] = AttributedRun(one, known[one.run_id], against[one.run_id], rows)
    return found


def runs(frame: pd.DataFrame) -> Runs:
    """Of a frame whose records lie where its rows say."""
    paths = dict(zip(frame["run_id"], frame["path"], strict=True))
    return Runs(frame, lambda run_id: read_result(Path(str(paths[run_id])) / RESULT_FILE))


def percent(one: Estimate) -> str:
    """`12.3 % [10.1, 14.4]`, points of efficiency."""
    if not one.has_limits:
        return units.format_percent(one.value)
    return f"{units.format_percent(one.value)} [{100 * one.low:z.1f}, {100 * one.high:z.1f}]"


def duration(one: Estimate) -> str:
    return units.format_duration(one)


def name_of(part: Part) -> str:
    """`contention + data` where the two could not be told apart."""
    return " + ".join(part.names)


def untold(one: Attribution) -> dict[str, list[str]]:
    """Reason -> parts that have no figure of their own for it, of those that there can be."""
    there = {name for part in one.parts for name in part.names}
    found: dict[str, list[str]] = {}
    for name in LOSS_PARTS:
        reason = one.missing.get(name)
        if reason is not None and (name in there or (name == "overhead" and one.against != "bare")):
            found.setdefault(reason, []).append(name)
    return found
