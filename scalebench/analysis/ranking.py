"""The best strategy for each number of devices, how certain that is, and whether several devices pay.

Rivals are the curves of one group on one number of devices, of any framework, that read their data the same way and
train in the same precision. Controls, whose replicas never synchronize, are ranked where nothing else was measured.
In an advice, all rows on several devices and one device of the bare baseline are one contest, so that "take X on N
devices" and "stay on one device" hold with all comparisons together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scalebench.analysis.identity import INPUT_COLUMNS, group_by
from scalebench.analysis.repeats import EstimateRatio, holds_over_repeats
from scalebench.analysis.scaling_curves import Curve, group_curves, make_curves
from scalebench.analysis.user_program import PROGRAM
from scalebench.analysis.verdicts import decide_ratio, explain_disturbance, explain_no_verdict, has_other_programs
from scalebench.core.config_files import read_strategy_config
from scalebench.core.stats.estimates import CONFIDENCE, Estimate

if TYPE_CHECKING:
    import pandas as pd

TEST_DESCRIPTION = (
    "comparison with the best: Student's t on the logarithms of throughput, of ratios within repeats where these were "
    "interleaved, simultaneous {} % intervals by Bonferroni over {} {}"
)
Verdict = Literal["slower", "tied", "no verdict"]
NamedRow = tuple[str, dict[str, Any]]  # name of the curve, cells of the pooled frame


@dataclass(frozen=True)
class Rival:
    """A strategy that is not the best; `ratio` is the best's throughput over its own, with simultaneous limits if both
    rows carry a verdict."""

    name: str
    row: dict[str, Any]
    ratio: Estimate

    @property
    def verdict(self) -> Verdict:
        """`slower` if the interval is above 1, `tied` if it includes 1."""
        return "no verdict" if not self.ratio.has_limits else "slower" if self.ratio.low > 1 else "tied"


@dataclass(frozen=True)
class Ranking:
    """The fastest strategy on `gpus` devices. `rivals` are in the order of throughput; `row` and `rivals[i].row` are
    cells of the pooled frame."""

    group: dict[str, str]  # of the curves, and precision and feed if the curves of the group differ in them
    gpus: int
    best: str  # name of the curve
    row: dict[str, Any]
    rivals: list[Rival]
    test: str  # describes the statistical test; empty if there is nothing to compare

    @property
    def rows(self) -> list[NamedRow]:
        """The best and its rivals."""
        return [(self.best, self.row), *((rival.name, rival.row) for rival in self.rivals)]

    @property
    def tied(self) -> list[Rival]:
        return [rival for rival in self.rivals if rival.verdict == "tied"]

    @property
    def undecided(self) -> list[Rival]:
        """Rivals that cannot be compared, since one of the two rows gives no verdict."""
        return [rival for rival in self.rivals if rival.verdict == "no verdict"]

    @property
    def certainty(self) -> Literal["best", "tied", "not sure", "alone"]:
        """`not sure` if a row gives no verdict; `alone` without rivals."""
        if not self.rivals:
            return "alone"
        return "not sure" if self.undecided else "tied" if self.tied else "best"


@dataclass(frozen=True)
class Advice:
    """The advice that follows from the rows of one group.

    `take`: `rows` has one row, surely faster than one device and than every other row. `tied`: several that are equally
    fast within noise, of which the fastest is. `stay`: one device is surely faster than every row, without other
    programs on the machine. `unsure`: neither is certain. `unknown`: nothing was measured on one device; in these three
    `rows` has each curve's fastest row, the fastest first. `one device`: nothing was measured on several; no rows.
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


def rank_curves(all_curves: Iterable[Curve], estimate_ratio: EstimateRatio) -> list[Ranking]:
    """Return one ranking for each group and number of devices of the curves of a pooled frame, in its order and that of
    devices.

    The best has the largest throughput by the ratios of `load.pooled`, of equal ones the first. The k - 1 intervals
    hold simultaneously (Bonferroni: each at 1 - 0.05 / (k - 1)), and a rival with an interval above 1 is `slower`. So
    "X is the best" is wrong in at most 2.5 % of all rankings although X was chosen by the same figures: it is wrong
    only if X beats the true best by more than noise. Some rows carry no verdict (verdicts.explain_no_verdict).

    Sources: Bonferroni after Hsu 1981, "Simultaneous confidence intervals for all distances from the 'best'", and Hsu
    1996, "Multiple Comparisons: Theory and Methods", chapter 4 (comparisons with the best need no more than those with
    one control); Dunn 1961, "Multiple comparisons among means".
    """
    rankings = []
    for group, members in group_curves(all_curves):
        differing = [name for name in INPUT_COLUMNS if len({curve.rows[0][name] for curve in members}) > 1]
        contests = group_by(members, lambda curve: tuple(str(curve.rows[0][name]) for name in differing))  # noqa: B023
        for key, rivals in contests.items():
            contest = [curve for curve in rivals if not is_control(str(curve.rows[0]["strategy"]))] or rivals
            for gpus in sorted({count for curve in contest for count in curve.gpus}):
                rows = [(curve.name, row) for curve in contest for row in curve.rows if row["gpus"] == gpus]
                inputs = dict(zip(differing, key, strict=True))
                rankings.append(rank_rows({**group, **inputs}, gpus, rows, estimate_ratio))
    return rankings


def find_widest_ratio(pooled: pd.DataFrame, estimate_ratio: EstimateRatio) -> float | None:
    """Return the widest half-width, as a share of the value, of the ratios of rows to the first one of their group, of
    rows that more repeats give a verdict; None where there is no such ratio. Which row is faster has no part in it."""
    widths = []
    for _, curves in group_curves(make_curves(pooled)):
        rows = [row for curve in curves for row in curve.rows
                if holds_over_repeats(row) and not explain_disturbance(row)]  # fmt: skip
        widths += [estimate_ratio(row, rows[0]).to_estimate().relative_half_width() for row in rows[1:]]
    return max(widths, default=None)


def is_control(strategy: str) -> bool:
    """Return whether a strategy, by its YAML, trains nothing, or replicas that never synchronize. A user's program
    trains, with a framework that only it knows."""
    config = read_strategy_config(strategy)
    trains_nothing = config.get("framework") == "none" and strategy != PROGRAM
    return trains_nothing or bool(config.get("independent"))


def rank_rows(group: dict[str, str], gpus: int, rows: Sequence[NamedRow], estimate_ratio: EstimateRatio) -> Ranking:
    """Rank these (name, cells), at least one, as `rank_curves` does."""
    (name, best), *others = sort_by_ratio(rows, estimate_ratio)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    rivals = [Rival(rival, row, decide_ratio(best, row, estimate_ratio, confidence)) for rival, row in others]
    compared = "comparison" if len(others) == 1 else "comparisons"
    test = TEST_DESCRIPTION.format(f"{100 * CONFIDENCE:.0f}", len(others), compared) if others else ""
    return Ranking(group, gpus, name, best, rivals, test)


def list_advice(curves: Sequence[Curve], estimate_ratio: EstimateRatio) -> list[Advice]:
    """Return the advice for each group of curves that are ranked together; those with several devices come first."""
    rows_by_id = {row["run_id"]: (curve.name, row) for curve in curves for row in curve.rows}
    rankings = group_by(rank_curves(curves, estimate_ratio), lambda ranking: tuple(ranking.group.items()))
    groups = sorted(rankings.values(), key=lambda members: members[-1].gpus == 1)
    return [advise(members, rows_by_id, estimate_ratio) for members in groups]


def advise(rankings: Sequence[Ranking], rows_by_id: Mapping[str, NamedRow], estimate_ratio: EstimateRatio) -> Advice:
    """Return the advice for the rankings of one group; baselines are looked up in `rows_by_id`."""
    rows = [pair for ranking in rankings for pair in ranking.rows]
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
    # What other programs take falls on the larger group: "more devices pay" holds in spite of it, "stay" does not.
    is_sure = len(first) == 1 and not any(has_other_programs(row) for _, row in eligible)
    kind: Literal["stay", "unsure"] = "stay" if is_sure else "unsure"
    return Advice(kind, rankings, _fastest_of_each_curve(eligible), one_device, left_out, contest.test)


def _fastest_of_each_curve(rows: Iterable[NamedRow]) -> list[NamedRow]:
    return [group[0] for group in group_by(rows, lambda pair: pair[0]).values()]


def sort_by_ratio(rows: Sequence[NamedRow], estimate_ratio: EstimateRatio) -> list[NamedRow]:
    """Return rows with the fastest first, by their ratios to the one of the largest throughput: within repeats and
    rounds, where they were measured so, the order may be another one than that of the throughputs."""
    reference = max((row for _, row in rows), key=lambda row: float(row["throughput_samples_per_s"]), default=None)
    return [] if reference is None else sorted(rows, key=lambda pair: -estimate_ratio(pair[1], reference).mean)


def join_with_and(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
