"""The best strategy for each number of devices, and how certain that is.

Rivals are the curves of one group (model, data set, hardware, scaling, batch) on one number of devices, of any
framework, that read their data the same way and train in the same precision. Strategies that do not train together are
controls, which are no rivals if there are others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scalebench.analysis.identity import INPUT_COLUMNS
from scalebench.analysis.scaling_curves import Curve, group_curves, make_curves
from scalebench.core import config_files
from scalebench.core.stats.estimates import BATCHES, CONFIDENCE, Estimate, student_t

if TYPE_CHECKING:
    import pandas as pd

TEST_DESCRIPTION = (
    "comparison with the best: Student's t (Welch) on the logarithms of throughput, simultaneous {} % intervals by "
    "Bonferroni over {} {}"
)
Verdict = Literal["slower", "tied", "no interval"]


@dataclass(frozen=True)
class Rival:
    """A strategy that is not the best; `ratio` is the best's throughput over its own, with simultaneous limits."""

    name: str
    row: dict[str, Any]
    ratio: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """`slower` if the interval is above 1, `tied` if it includes 1."""
        return "no interval" if self.low is None else "slower" if self.low > 1 else "tied"

    def label(self) -> str:
        """Return `ddp_gloo (1.31 [1.25, 1.37])`."""
        return f"{self.name} ({self.format_ratio()})"

    def format_ratio(self) -> str:
        """Return `1.31 [1.25, 1.37]`."""
        limits = "" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.ratio:.2f}{limits}"


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
    def tied(self) -> list[Rival]:
        return [rival for rival in self.rivals if rival.verdict == "tied"]

    @property
    def undecided(self) -> list[Rival]:
        """Rivals that cannot be compared, since they or the best have no interval."""
        return [rival for rival in self.rivals if rival.verdict == "no interval"]

    @property
    def certainty(self) -> Literal["best", "tied", "not sure", "alone"]:
        """`not sure` if an interval is missing and no rival is tied; `alone` without rivals."""
        if not self.rivals:
            return "alone"
        return "tied" if self.tied else "not sure" if self.undecided else "best"

    def sentence(self) -> str:
        """Return `at 2 devices: mirrored, 40,828 samples/s, 1.31 [1.25, 1.37] times as fast as the next (ddp_gloo)`."""
        value = self.row["throughput_samples_per_s"]
        digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        head = f"at {self.gpus} device{'s' * (self.gpus > 1)}: {self.best}, {digits} samples/s"
        if not self.rivals:
            return f"{head}; nothing else was measured there"
        parts = [head]
        if self.tied:
            parts.append(f"tied within noise with {join_with_and([rival.label() for rival in self.tied])}")
        if self.undecided:
            parts.append(
                f"no interval, so not sure against {join_with_and([rival.label() for rival in self.undecided])}"
            )
        first = next((rival for rival in self.rivals if rival.verdict == "slower"), None)
        if first is not None:
            who = "the next" if first is self.rivals[0] else "the first that is slower beyond noise"
            parts.append(f"{first.format_ratio()} times as fast as {who} ({first.name})")
        return ", ".join(parts)


def rank(pooled: pd.DataFrame) -> list[Ranking]:
    """Return one ranking for each group and number of devices, in the order of the frame and of devices.

    The best has the largest throughput; of two equal ones it is the first in the frame. Each other strategy is compared
    with it by the ratio of throughputs. Standard errors of their logarithms come from the widths of the 95 % intervals,
    Student's t with repeats - 1 degrees of freedom over repeats and 15 over blocks (estimates.BATCHES); those of a
    ratio are Welch's. The k - 1 intervals hold simultaneously (Bonferroni: each at 1 - 0.05 / (k - 1)), and a rival
    with an interval above 1 is `slower`. So "X is the best" is wrong in at most 2.5 % of all rankings, however many
    strategies there are and although X was chosen by these same figures: for another to be the true best, X must beat
    that one by more than noise. And in as many rankings the true best is X or one of those that are tied.

    Repeats count as independent: where they were interleaved and the drift of the machine moves them all together,
    there are ties that paired figures (the speedups) might resolve. Intervals over the blocks of single runs do not
    include what differs between repeats, and neither does the certainty then.

    Sources: Hsu 1981, "Simultaneous confidence intervals for all distances from the 'best'" and Hsu 1996, "Multiple
    Comparisons: Theory and Methods", chapter 4 (comparisons with the best need no more than those with one control);
    Dunn 1961, "Multiple comparisons among means" (Bonferroni); Welch 1947, "The generalization of 'Student's' problem
    when several different population variances are involved"; Altman and Bland 2011, "How to obtain the confidence
    interval from a P value" (standard errors from limits).
    """
    return rank_curves(make_curves(pooled))


def rank_curves(all_curves: Iterable[Curve]) -> list[Ranking]:
    """Rank the curves of a pooled frame, as `rank` describes."""
    rankings = []
    for _, members in group_curves(all_curves):
        for group, contest in _split_into_contests(members):
            for gpus in sorted({count for curve in contest for count in curve.gpus}):
                rows = [(curve.name, row) for curve in contest for row in curve.rows if row["gpus"] == gpus]
                rankings.append(rank_rows(group, gpus, rows))
    return rankings


def _split_into_contests(members: Sequence[Curve]) -> list[tuple[dict[str, str], list[Curve]]]:
    """Return the curves of a group that may be ranked against each other, with the settings that distinguish them."""
    differing = [name for name in INPUT_COLUMNS if len({curve.rows[0][name] for curve in members}) > 1]
    contests: dict[tuple[str, ...], list[Curve]] = {}
    for curve in members:
        contests.setdefault(tuple(str(curve.rows[0][name]) for name in differing), []).append(curve)
    return [
        ({**curve[0].group, **dict(zip(differing, key, strict=True))}, _without_controls(curve))
        for key, curve in contests.items()
    ]


def _without_controls(members: list[Curve]) -> list[Curve]:
    training = [curve for curve in members if not is_control(str(curve.rows[0]["strategy"]))]
    return training or members


@functools.lru_cache
def is_control(strategy: str) -> bool:
    """Return whether a strategy trains nothing by its YAML, or replicas that never synchronize."""
    from omegaconf import OmegaConf

    path = config_files.list_options("strategy").get(strategy)
    tree: Any = {} if path is None else OmegaConf.to_container(OmegaConf.load(path))
    return tree.get("framework") == "none" or bool(tree.get("independent"))


def rank_rows(group: dict[str, str], gpus: int, rows: Sequence[tuple[str, dict[str, Any]]]) -> Ranking:
    """Rank these (name, cells), at least one, as `rank` describes."""
    ordered = sorted(rows, key=lambda pair: -pair[1]["throughput_samples_per_s"])
    (name, best), others = ordered[0], ordered[1:]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    rivals = []
    for rival, row in others:
        limits = throughput_ratio(best, row, confidence)
        low, high = (None, None) if limits is None else (limits.low, limits.high)
        rivals.append(Rival(rival, row, _rate(best) / _rate(row), low, high))
    compared = "comparison" if len(others) == 1 else "comparisons"
    test = TEST_DESCRIPTION.format(f"{100 * CONFIDENCE:.0f}", len(others), compared) if others else ""
    return Ranking(group, gpus, name, best, rivals, test)


def throughput_ratio(a: dict[str, Any], b: dict[str, Any], confidence: float) -> Estimate | None:
    """Return the throughput of row `a` over that of row `b` with limits at this confidence, as `rank` describes; None
    if one of the rows has no complete interval, or one over neither blocks nor repeats."""
    error_a, error_b = log_standard_error(a), log_standard_error(b)
    if error_a is None or error_b is None:
        return None
    (deviation_a, freedom_a), (deviation_b, freedom_b) = error_a, error_b
    variance = deviation_a**2 + deviation_b**2
    freedom = math.inf if variance == 0 else variance**2 / (deviation_a**4 / freedom_a + deviation_b**4 / freedom_b)
    reach = 0.0 if variance == 0 else student_t(freedom, confidence) * math.sqrt(variance)
    value = _rate(a) / _rate(b)
    # Beyond 700, exp would overflow; nothing measured has such a limit.
    return Estimate(value, value * math.exp(-reach), value * math.exp(reach)) if reach < 700 else None


def log_standard_error(row: dict[str, Any]) -> tuple[float, int] | None:
    """Return (standard error of log throughput, its degrees of freedom), from the width of its interval."""
    low, high = row["throughput_low"], row["throughput_high"]
    freedom = {"blocks": BATCHES - 1, "repeats": (row.get("repeats") or 1) - 1}.get(row["interval_over"], 0)
    if low is None or high is None or low <= 0 or freedom < 1:
        return None
    return math.log(high / low) / 2 / student_t(freedom, CONFIDENCE), freedom


def _rate(row: dict[str, Any]) -> float:
    rate: float = row["throughput_samples_per_s"]
    return rate


def join_with_and(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
