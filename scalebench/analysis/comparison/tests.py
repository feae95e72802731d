"""Ratios of throughput, with their intervals and the tests that they come from; pure functions. Layer 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.core.stats.estimates import BATCHES, CONFIDENCE, Interval, ratio_interval, student_t

LEAST = 3  # launches that show how launches vary
LEVEL = 1 - CONFIDENCE


@dataclass(frozen=True)
class Tested:
    """A ratio, its 95 % interval, the two-sided p of its being 1, and the test. Without an interval no p either."""

    ratio: float
    interval: Interval | None
    p: float | None
    test: str


def launches_test(a: Sequence[float], b: Sequence[float]) -> Tested:
    """b over a, of independent launches: samples/s of each, positive.

    On logarithms, where a ratio is a difference and launches differ by factors. Three launches and more on both sides:
    Welch's t, which asks for no equal variance. Fewer on one side, down to a single one: Student's t with the variance
    of both together, which takes the launches of both sides to vary alike. Fewer than three on both: a ratio only.

    Sources: Welch 1947, "The generalization of 'Student's' problem when several different population variances are
    involved"; Student 1908, "The probable error of a mean"; Crawford and Howell 1998, "Comparing an individual's test
    score against norms derived from small samples" (one observation against several).
    """
    (mean_a, variance_a), (mean_b, variance_b) = _moments(a), _moments(b)
    difference, counts = mean_b - mean_a, f"{len(a)} and {len(b)} launches"
    if max(len(a), len(b)) < LEAST:
        return Tested(math.exp(difference), None, None, f"none, for {counts}")
    if min(len(a), len(b)) >= LEAST:
        parts = variance_a / len(a), variance_b / len(b)
        squares = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
        freedom = sum(parts) ** 2 / squares if squares > 0 else math.inf
        return _student(difference, math.sqrt(sum(parts)), freedom, f"Welch's t, {counts}")
    freedom = len(a) + len(b) - 2
    common = ((len(a) - 1) * variance_a + (len(b) - 1) * variance_b) / freedom
    error = math.sqrt(common * (1 / len(a) + 1 / len(b)))
    return _student(difference, error, freedom, f"Student's t, {counts}")


def paired_test(pairs: Sequence[tuple[float, float]]) -> Tested:
    """b over a, of at least three pairs of launches (a, b) that ran side by side: what both had in common cancels.

    Student's t on the logarithms of the pairs' ratios. Source: Box, Hunter and Hunter 1978, "Statistics for
    Experimenters" (paired comparisons).
    """
    mean, variance = _moments([b / a for a, b in pairs])
    error = math.sqrt(variance / len(pairs))
    return _student(mean, error, len(pairs) - 1, f"paired t, {len(pairs)} interleaved repeats")


def blocks_test(a: tuple[float, Interval | None], b: tuple[float, Interval | None]) -> Tested:
    """b over a, of one launch each with the interval over its blocks: what differs between launches is not in it.

    The limits by MOVER (stats.ratio_interval); p from how far 1 lies beyond the ratio, in units of the reach to that
    side, by Student's t with the degrees of freedom of one launch's batches.
    """
    ratio, words = b[0] / a[0], "blocks of one launch each"
    if a[1] is None or b[1] is None:
        return Tested(ratio, None, None, "none, for too few blocks")
    interval = ratio_interval(b[1], a[1])
    return Tested(ratio, interval, _p_of_limits(interval, BATCHES - 1), words)


def holm(ps: Sequence[float]) -> list[float]:
    """Each p, adjusted for their number: where nothing differs, the chance that any is below 0.05 is 0.05 at most.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for place, number in enumerate(sorted(range(len(ps)), key=lambda n: ps[n])):
        least = max(least, min(1.0, (len(ps) - place) * ps[number]))
        adjusted[number] = least
    return adjusted


def median_interval(values: Sequence[float]) -> tuple[float, Interval | None]:
    """The median of values and its interval of at least 95 %, from the order of the values alone; none below six.

    As the sign test has it: the k-th smallest and the k-th largest, with the largest k whose two tails of the binomial
    distribution are 5 % at most. Source: Thompson 1936, "On confidence ranges for the median and other expectation
    distributions for populations of unknown distribution form".
    """
    ordered, count = sorted(values), len(values)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    k, below = 0, math.pow(0.5, count)
    while 2 * below <= LEVEL:
        k += 1
        below += math.comb(count, k) / 2**count
    return middle, Interval(middle, ordered[k - 1], ordered[-k]) if k else None


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance of the logarithms; the variance of one value is 0, and counts for nothing."""
    logs = [math.log(value) for value in values]
    mean = math.fsum(logs) / len(logs)
    return mean, math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1) if len(logs) > 1 else 0.0


def _student(difference: float, error: float, freedom: float, test: str) -> Tested:
    ratio = math.exp(difference)
    if error == 0:
        return Tested(ratio, Interval(ratio, ratio, ratio), 1.0 if difference == 0 else 0.0, test)
    reach = student_t(freedom, CONFIDENCE) * error
    interval = Interval(ratio, ratio * math.exp(-reach), ratio * math.exp(reach) if reach < 700 else math.inf)
    return Tested(ratio, interval, _two_sided(difference / error, freedom), test)


def _p_of_limits(interval: Interval, freedom: int) -> float:
    distance = abs(math.log(interval.value))
    limit = interval.high if interval.value < 1 else interval.low
    if distance == 0 or limit == 0:
        return 1.0
    reach = abs(math.log(limit) - math.log(interval.value))
    return 0.0 if reach == 0 else _two_sided(distance / reach * student_t(freedom, CONFIDENCE), freedom)


def _two_sided(t: float, freedom: float) -> float:
    from scipy.special import stdtr  # not scipy.stats, which takes 0.6 s to import

    return float(2 * stdtr(freedom, -abs(t)))
