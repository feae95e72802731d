"""Ratios of throughput with their intervals and significance tests: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.core.stats.estimates import CONFIDENCE, Estimate
from scalebench.core.stats.log_means import LogMean, mean_of_repeats

MIN_UNITS_FOR_TEST = 3  # repeats or sessions that show how such units vary
SIGNIFICANCE_LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class RatioTest:
    """A ratio with its 95 % interval, the two-sided p for a true ratio of 1, and the test; without p there is no
    verdict, and `note` says what gives one. Else it says what the interval does not hold."""

    ratio: float
    interval: Estimate | None = None
    p: float | None = None
    test: str = ""
    note: str | None = None


def compare_independent(
    a: Sequence[float], b: Sequence[float], units: str, confidence: float = CONFIDENCE
) -> RatioTest:
    """Return the ratio b over a of independent `units`: positive samples/s of each, three at least on one side.

    On logarithms, where a ratio is a difference and units differ by factors. With three or more on both sides by
    Welch's t, which needs no equal variances; with fewer on one side, down to a single one, by Student's t with the
    pooled variance, which assumes that units of both sides vary equally.

    Sources: Welch 1947, "The generalization of 'Student's' problem when several different population variances are
    involved"; Student 1908, "The probable error of a mean"; Crawford and Howell 1998, "Comparing an individual's test
    score against norms derived from small samples" (one observation against several).
    """
    log_a, log_b, counts = mean_of_repeats(a), mean_of_repeats(b), describe_counts(len(a), len(b), units)
    if min(len(a), len(b)) >= MIN_UNITS_FOR_TEST:
        return judge_ratio(log_b.minus(log_a), f"Welch's t, {counts}", confidence=confidence)
    freedom = log_a.degrees_of_freedom + log_b.degrees_of_freedom
    squares = [log.variance * len(of) * log.degrees_of_freedom for log, of in ((log_a, a), (log_b, b)) if len(of) > 1]
    variance = math.fsum(squares) / freedom * (1 / len(a) + 1 / len(b))
    return judge_ratio(
        LogMean(log_b.mean - log_a.mean, variance, freedom), f"Student's t, {counts}", confidence=confidence
    )


def describe_counts(a: int, b: int, units: str) -> str:
    return f"{a} and {b} {units}"


def adjust_by_holm(ps: Sequence[float]) -> list[float]:
    """Adjust each p for their number: if nothing differs, the chance that any is below 0.05 is 0.05 at most.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted, lowest = [0.0] * len(ps), 0.0
    for rank, number in enumerate(sorted(range(len(ps)), key=lambda n: ps[n])):
        lowest = max(lowest, min(1.0, (len(ps) - rank) * ps[number]))
        adjusted[number] = lowest
    return adjusted


def median_with_interval(values: Sequence[float]) -> tuple[float, Estimate | None]:
    """Return the median of values and its interval of at least 95 %, from their order alone; none below six values.

    The limits invert the sign test: the k-th smallest and the k-th largest, with the largest k for which the two tails
    of the binomial distribution are 5 % at most. Source: Thompson 1936, "On confidence ranges for the median and other
    expectation distributions for populations of unknown distribution form".
    """
    ordered, count = sorted(values), len(values)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    k, below = 0, math.pow(0.5, count)
    while 2 * below <= SIGNIFICANCE_LEVEL:
        k += 1
        below += math.comb(count, k) / 2**count
    return median, Estimate(median, ordered[k - 1], ordered[-k]) if k else None


def judge_ratio(log_ratio: LogMean, test: str, note: str | None = None, confidence: float = CONFIDENCE) -> RatioTest:
    """Return a ratio of known variance with its interval and Student's t; `test` names it."""
    from scipy.special import stdtr  # not scipy.stats, which takes 0.6 s to import

    interval = log_ratio.to_estimate(confidence)
    if log_ratio.variance == 0:
        return RatioTest(interval.value, interval, 1.0 if log_ratio.mean == 0 else 0.0, test, note)
    t = abs(log_ratio.mean) / math.sqrt(log_ratio.variance)
    return RatioTest(interval.value, interval, float(2 * stdtr(log_ratio.degrees_of_freedom, -t)), test, note)
