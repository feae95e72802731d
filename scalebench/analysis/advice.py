"""The advice on the number of devices: the fastest rows of a group beside one device of the bare baseline.

All rows on several devices and the one device are one contest, so that "take X on N devices" and "stay on one device"
hold with all comparisons together (ranking.rank). Rows that carry no verdict are left out of it, and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from scalebench.analysis.ranking import NamedRow, Ranking, rank_curves, rank_rows, sort_by_ratio
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import Curve
from scalebench.analysis.verdicts import explain_no_verdict


@dataclass(frozen=True)
class Advice:
    """The advice that follows from the rows of one group.

    `take`: `rows` has one row, surely faster than one device and than every other row. `tied`: several that are
    equally fast within noise, the fastest of them surely faster than one device. `stay`: one device is surely faster
    than every row. `unsure`: neither is certain. `unknown`: nothing was measured on one device. `one device`: nothing
    was measured on several, and `rows` is empty. In `stay`, `unsure` and `unknown`, `rows` has each curve's fastest
    row, the fastest first.
    """

    kind: Literal["take", "tied", "stay", "unsure", "unknown", "one device"]
    rankings: Sequence[Ranking]  # of the group, one for each number of devices
    rows: list[NamedRow]
    one_device: NamedRow | None  # the fastest bare baseline, else the fastest row on one device
    left_out: list[NamedRow]  # rows that carry no verdict
    test: str  # describes the statistical test; empty without one

    @property
    def group(self) -> dict[str, str]:
        return self.rankings[0].group


def list_advice(curves: Sequence[Curve], estimate_ratio: EstimateRatio) -> list[Advice]:
    """Return the advice for each group of curves that are ranked together; those with several devices come first."""
    rows_by_id = {row["run_id"]: (curve.name, row) for curve in curves for row in curve.rows}
    groups = [
        list(members) for _, members in groupby(rank_curves(curves, estimate_ratio), key=lambda ranking: ranking.group)
    ]
    groups.sort(key=lambda members: members[-1].gpus == 1)
    return [advise(members, rows_by_id, estimate_ratio) for members in groups]


def advise(rankings: Sequence[Ranking], rows_by_id: Mapping[str, NamedRow], estimate_ratio: EstimateRatio) -> Advice:
    """Return the advice for the rankings of one group; baselines are looked up in `rows_by_id`."""
    rows = [(name, row) for ranking in rankings for name, row in _rows_of(ranking)]
    several = sort_by_ratio([pair for pair in rows if pair[1]["gpus"] > 1], estimate_ratio)
    bare_ids = dict.fromkeys(row["baseline_bare_id"] for _, row in several)
    bare = [rows_by_id[run_id] for run_id in bare_ids if run_id in rows_by_id]
    singles = bare or [pair for pair in rows if pair[1]["gpus"] == 1]
    one_device = next(iter(sort_by_ratio(singles, estimate_ratio)), None)
    if not several:
        return Advice("one device", rankings, [], one_device, [], "")
    fastest = _fastest_of_each_curve(several)
    if one_device is None:
        return Advice("unknown", rankings, fastest, None, [], "")
    left_out = [pair for pair in (one_device, *several) if explain_no_verdict(pair[1])]
    eligible = [pair for pair in several if not explain_no_verdict(pair[1])]
    if one_device in left_out or not eligible:
        return Advice("unsure", rankings, fastest, one_device, left_out, "")
    contest = rank_rows(rankings[0].group, 0, [one_device, *eligible], estimate_ratio)
    behind = {rival.row["run_id"] for rival in contest.rivals if rival.verdict == "slower"}
    first = [pair for pair in (one_device, *eligible) if pair[1]["run_id"] not in behind]
    if one_device[1]["run_id"] in behind:
        first.sort(key=lambda pair: pair[1]["gpus"])
        return Advice("take" if len(first) == 1 else "tied", rankings, first, one_device, left_out, contest.test)
    kind: Literal["stay", "unsure"] = "stay" if len(first) == 1 else "unsure"
    return Advice(kind, rankings, _fastest_of_each_curve(eligible), one_device, left_out, contest.test)


def _rows_of(ranking: Ranking) -> Iterable[NamedRow]:
    return [(ranking.best, ranking.row), *((rival.name, rival.row) for rival in ranking.rivals)]


def _fastest_of_each_curve(rows: Iterable[NamedRow]) -> list[NamedRow]:
    """Return the first row of each name."""
    first: dict[str, NamedRow] = {}
    for name, row in rows:
        first.setdefault(name, (name, row))
    return list(first.values())
