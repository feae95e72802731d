"""Ladders of all runs of a sweep, each against the baselines that the frame takes for it. Layer 1."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scalebench.analysis import throughput
from scalebench.analysis.attribution.components import PARTS
from scalebench.analysis.attribution.figures import Figure
from scalebench.analysis.attribution.ladder import Ladder, ladder, pooled
from scalebench.analysis.attribution.local_batch import LocalBaselines
from scalebench.analysis.baselines import Baselines
from scalebench.analysis.read_runs import find
from scalebench.core.result import Result, read_result

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "run_id strategy gpus repeats part step_s step_s_low step_s_high share share_low share_high missing against lost "
    "lost_low lost_high"
).split()
TEXT = ("run_id", "strategy", "part", "missing", "against")


@dataclass(frozen=True)
class Against:
    """The runs of one device that a ladder stands on, as ladders.ladder wants them; None where there is none."""

    bare_full: Result | None
    bare_local: Result | None
    own: Result | None
    full: Result | None


class Baseline:
    """All good one-device runs among `results`, to look up what a run is measured against."""

    def __init__(self, results: Iterable[Result]) -> None:
        known = list(results)
        self._full, self._local = Baselines.among(known), LocalBaselines(known)

    def of(self, result: Result) -> Against:
        """Those that the frame takes for it, and in strong scaling the nearest at its local batch."""
        bare, own = self._full.bare_of(result), self._full.self_of(result)
        if result.scale.scaling == "strong" and result.scale.gpus > 1:
            return Against(bare, self._local.bare_of(result), self._local.self_of(result), own)
        return Against(bare, bare, own, own)


def ladders(results: Iterable[Result], among: Iterable[Result] = ()) -> list[Ladder]:
    """One for each configuration of `results` that has a baseline there or in `among`, in the order of its first run.

    Of three launches and more with the means over them and Student's t; of two without intervals.
    """
    known = {result.run_id: result for result in results}
    baselines = Baseline({**{result.run_id: result for result in among}, **known}.values())
    told = (
        (result, ladder(result, **vars(baselines.of(result)))) for result in known.values() if result.status == "ok"
    )
    return by_configuration([(result, one) for result, one in told if one is not None])


def by_configuration(told: Sequence[tuple[Result, Ladder]]) -> list[Ladder]:
    """The ladders of launches as one of each configuration; its run_id is that of the launch that began first."""
    order = {result.run_id: number for number, (result, _) in enumerate(told)}
    groups: dict[tuple[str, ...], list[Ladder]] = {}
    for result, one in sorted(told, key=lambda pair: throughput.started(pair[0])):
        machine = throughput.comparison_key(result, True)
        key = result.fingerprint, machine, result.scale.framework_version or ""
        groups.setdefault(key, []).append(one)
    found = sorted(groups.values(), key=lambda launches: min(order[one.run_id] for one in launches))
    return [pooled(launches) for launches in found]


def attribution(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> pd.DataFrame:
    """The parts of the lost efficiency of all configurations at or below `path`: one row a part, `a + b` where rungs
    merged, and one without figures for each that does not exist there, with the reason in `missing`.

    `step_s` are seconds of one update, `share` points of efficiency; the shares of a run add up to `lost`, that
    against bare at the full batch. Limits are at 95 %. Raises InputError as `load` does.
    """
    import pandas as pd

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    results = [read_result(file) for file in find(paths)]
    strategies = {result.run_id: result.scale.strategy for result in results}
    rows = [row for one in ladders(results) for row in _rows(one, strategies[one.run_id])]
    kinds = dict.fromkeys(TEXT, "string") | dict.fromkeys(("gpus", "repeats"), "Int64")
    return pd.DataFrame(rows, columns=COLUMNS).astype({name: kinds.get(name, "Float64") for name in COLUMNS})


def _rows(one: Ladder, strategy: str) -> list[dict[str, Any]]:
    common = {"run_id": one.run_id, "strategy": strategy, "gpus": one.gpus, "repeats": one.launches,
              "against": one.against, **_cells("lost", one.lost)}  # fmt: skip
    told = {name for part in one.parts for name in part.names}
    rows = []
    for part in one.parts:
        reasons = list(dict.fromkeys(one.missing[name] for name in part.names if name in one.missing))
        rows.append(
            {**common, "part": " + ".join(part.names), **_cells("step_s", part.step_s), **_cells("share", part.share),
             "missing": "; ".join(reasons) or None}
        )  # fmt: skip
    return rows + [{**common, "part": name, "missing": one.missing.get(name)} for name in PARTS if name not in told]


def _cells(name: str, one: Figure) -> dict[str, float | None]:
    return {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
