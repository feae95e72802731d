"""The best strategy for each number of devices, and how sure that is. Layer 1.

Rivals are the curves of one group (model, data set, hardware, scaling, batch) at one device count, of whatever
framework, that read their data the same way and train in the same precision. Strategies that do not train together,
which are controls, are no rivals where there are others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scalebench.analysis.scaling_curves import TRAINING, Curve, curves, grouped
from scalebench.core import config_files
from scalebench.core.stats.estimates import BATCHES, CONFIDENCE, Interval, student_t

if TYPE_CHECKING:
    import pandas as pd

TEST = (
    "comparison with the best: Student's t (Welch) on the logarithms of throughput, simultaneous {} % intervals by "
    "Bonferroni over {} {}"
)
Verdict = Literal["slower", "tied", "no interval"]


@dataclass(frozen=True)
class Rival:
    """One that is not the best: the best's throughput over its own, with limits that hold for all rivals at once."""

    name: str
    row: dict[str, Any]
    ratio: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """`slower` where the interval lies above 1; `no interval` where it cannot be told."""
        return "no interval" if self.low is None else "slower" if self.low > 1 else "tied"

    def words(self) -> str:
        """`ddp_gloo (1.31 [1.25, 1.37])`"""
        return f"{self.name} ({self.figure()})"

    def figure(self) -> str:
        limits = "" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.ratio:.2f}{limits}"


@dataclass(frozen=True)
class Ranking:
    """Who is the fastest on `gpus` devices. `rivals` are in the order of throughput; `row` and theirs are cells of the
    pooled frame."""

    group: dict[str, str]  # of the curves, and precision and feed where those of the group differ in them
    gpus: int
    best: str  # name of the curve
    row: dict[str, Any]
    rivals: list[Rival]
    test: str  # its name; empty where there is nothing to compare

    @property
    def tied(self) -> list[Rival]:
        return [rival for rival in self.rivals if rival.verdict == "tied"]

    @property
    def untold(self) -> list[Rival]:
        """Those of which nothing can be said, for want of an interval of theirs or of the best."""
        return [rival for rival in self.rivals if rival.verdict == "no interval"]

    @property
    def certainty(self) -> Literal["best", "tied", "not sure", "alone"]:
        """`not sure` where an interval is missing and nobody is tied; `alone` without rivals."""
        if not self.rivals:
            return "alone"
        return "tied" if self.tied else "not sure" if self.untold else "best"

    def sentence(self) -> str:
        """`at 2 devices: mirrored, 40,828 samples/s, 1.31 [1.25, 1.37] times as fast as the next (ddp_gloo)`"""
        value = self.row["throughput_samples_per_s"]
        digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        head = f"at {self.gpus} device{'s' * (self.gpus > 1)}: {self.best}, {digits} samples/s"
        if not self.rivals:
            return f"{head}; nothing else was measured there"
        parts = [head]
        if self.tied:
            parts.append(f"tied within noise with {joined([rival.words() for rival in self.tied])}")
        if self.untold:
            parts.append(f"no interval, so not sure against {joined([rival.words() for rival in self.untold])}")
        first = next((rival for rival in self.rivals if rival.verdict == "slower"), None)
        if first is not None:
            who = "the next" if first is self.rivals[0] else "the first that is slower beyond noise"
            parts.append(f"{first.figure()} times as fast as {who} ({first.name})")
        return ", ".join(parts)


def rank(pooled: pd.DataFrame) -> list[Ranking]:
    """One ranking for each group and device count, in the order of the frame and of devices.

    The best is the one of the largest throughput; the first in the frame where two are equal. Each other one is
    compared with it by the ratio of throughputs. Standard errors of their logarithms come from the widths of the 95 %
    intervals, Student's t with repeats - 1 degrees of freedom over launches and 15 over blocks (stats.BATCHES); those
    of a ratio are Welch's. The k - 1 intervals hold at once (Bonferroni: each at 1 - 0.05 / (k - 1)), and one that
    lies above 1 is `slower`. So "X is the best" is wrong in at most 2.5 % of all rankings, however many strategies
    there are and although X was chosen by these same figures: for another to be the best in truth, X must beat that
    one by more than noise. And the best in truth is X or among those that are tied, in as many.

    Launches count as independent: where repeats were interleaved and the machine's level moves them all alike, ties
    are told that paired figures (the speedups) might resolve. Intervals over the blocks of single launches do not hold
    what differs between launches, and then neither does the certainty.

    Sources: Hsu 1981, "Simultaneous confidence intervals for all distances from the 'best'" and Hsu 1996, "Multiple
    Comparisons: Theory and Methods", chapter 4 (comparisons with the best need no more than those with one control);
    Dunn 1961, "Multiple comparisons among means" (Bonferroni); Welch 1947, "The generalization of 'Student's' problem
    when several different population variances are involved"; Altman and Bland 2011, "How to obtain the confidence
    interval from a P value" (standard errors from limits).
    """
    return of_curves(curves(pooled))


def of_curves(all_curves: Iterable[Curve]) -> list[Ranking]:
    """`rank` of the frame that these curves are of."""
    found = []
    for _, members in grouped(all_curves):
        for group, contest in _contests(members):
            for gpus in sorted({count for curve in contest for count in curve.gpus}):
                rows = [(curve.name, row) for curve in contest for row in curve.rows if row["gpus"] == gpus]
                found.append(best_of(group, gpus, rows))
    return found


def _contests(members: Sequence[Curve]) -> list[tuple[dict[str, str], list[Curve]]]:
    """Curves that may be ranked against each other, with what tells them from the other contests of their group."""
    differing = [name for name in TRAINING if len({curve.rows[0][name] for curve in members}) > 1]
    found: dict[tuple[str, ...], list[Curve]] = {}
    for curve in members:
        found.setdefault(tuple(str(curve.rows[0][name]) for name in differing), []).append(curve)
    return [
        ({**curve[0].group, **dict(zip(differing, key, strict=True))}, _competing(curve))
        for key, curve in found.items()
    ]


def _competing(members: list[Curve]) -> list[Curve]:
    training = [curve for curve in members if not is_control(str(curve.rows[0]["strategy"]))]
    return training or members


@functools.lru_cache
def is_control(strategy: str) -> bool:
    """Whether its YAML says that it trains nothing, or replicas that never hear of each other."""
    from omegaconf import OmegaConf

    path = config_files.options("strategy").get(strategy)
    tree: Any = {} if path is None else OmegaConf.to_container(OmegaConf.load(path))
    return tree.get("framework") == "none" or tree.get("lockstep") is False


def best_of(group: dict[str, str], gpus: int, rows: Sequence[tuple[str, dict[str, Any]]]) -> Ranking:
    """The ranking of these (name, cells), at least one, as rank() says."""
    ordered = sorted(rows, key=lambda pair: -pair[1]["throughput_samples_per_s"])
    (name, best), others = ordered[0], ordered[1:]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others))
    rivals = []
    for rival, row in others:
        limits = ratio(best, row, confidence)
        low, high = (None, None) if limits is None else (limits.low, limits.high)
        rivals.append(Rival(rival, row, _rate(best) / _rate(row), low, high))
    compared = "comparison" if len(others) == 1 else "comparisons"
    test = TEST.format(f"{100 * CONFIDENCE:.0f}", len(others), compared) if others else ""
    return Ranking(group, gpus, name, best, rivals, test)


def ratio(a: dict[str, Any], b: dict[str, Any], confidence: float) -> Interval | None:
    """Throughput of row `a` over that of row `b`, between limits at this confidence, as rank() says; None where either
    has no whole interval, or it is of unknown make."""
    error_a, error_b = standard_error(a), standard_error(b)
    if error_a is None or error_b is None:
        return None
    (mine, mine_freedom), (theirs, their_freedom) = error_a, error_b
    both = mine**2 + theirs**2
    freedom = math.inf if both == 0 else both**2 / (mine**4 / mine_freedom + theirs**4 / their_freedom)
    reach = 0.0 if both == 0 else student_t(freedom, confidence) * math.sqrt(both)
    value = _rate(a) / _rate(b)
    # Beyond 700, exp would overflow; nothing measured has such a limit.
    return Interval(value, value * math.exp(-reach), value * math.exp(reach)) if reach < 700 else None


def standard_error(row: dict[str, Any]) -> tuple[float, int] | None:
    """(standard error of the logarithm of throughput, its degrees of freedom), from half the width of its interval."""
    low, high = row["throughput_low"], row["throughput_high"]
    freedom = {"blocks": BATCHES - 1, "repeats": (row.get("repeats") or 1) - 1}.get(row["interval_over"], 0)
    if low is None or high is None or low <= 0 or freedom < 1:
        return None
    return math.log(high / low) / 2 / student_t(freedom, CONFIDENCE), freedom


def _rate(row: dict[str, Any]) -> float:
    rate: float = row["throughput_samples_per_s"]
    return rate


def joined(words: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
