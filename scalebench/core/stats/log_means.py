"""Means over repeats, of logarithms for throughput and ratios of throughputs, arithmetic for what has no logarithm.

On the log scale repeats differ by terms rather than factors, no limit becomes negative, seconds and samples/s give the
same answer, and the ratio of two geometric means is the difference of two means.

Sources: Fleming and Wallace 1986, "How not to lie with statistics: the correct way to summarize benchmark results"
(geometric mean); Bland and Altman 1996, "Transformations, means, and confidence intervals"; Georges, Buytaert and
Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a start of the program is one observation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from scalebench.core.stats.estimates import CONFIDENCE, Estimate, student_t

MIN_REPEATS_FOR_LIMITS = 3  # of an arithmetic mean
MIN_DEGREES_OF_FREEDOM = 1 - 1e-9  # for limits; those of two repeats alone are 12.7 standard errors off
MAX_REACH = 700  # beyond it exp overflows; nothing measured has such a limit


class LogMean(msgspec.Struct, frozen=True):
    """A mean of logarithms, the variance of this mean, and the degrees of freedom of that variance.

    A variance that nothing tells is infinite, with no degrees of freedom.
    """

    mean: float
    variance: float = math.inf
    degrees_of_freedom: float = 0.0
    in_rounds: bool = False  # a ratio of runs that took turns: what other programs took from both cancels

    def minus(self, other: LogMean) -> LogMean:
        """Return the difference of two independent means: the logarithm of the ratio of what they are means of.

        Source: Welch 1947, "The generalization of 'Student's' problem when several different population variances are
        involved", with Satterthwaite's degrees of freedom.
        """
        difference, variance = self.mean - other.mean, self.variance + other.variance
        if not math.isfinite(variance):
            return LogMean(difference)
        if variance == 0:
            return LogMean(difference, 0.0, self.degrees_of_freedom + other.degrees_of_freedom)
        # Shares of the variance, since its square may be too small for a float.
        weights = [(part.variance / variance) ** 2 / part.degrees_of_freedom for part in (self, other)]
        return LogMean(difference, variance, 1 / sum(weights))

    def to_estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the geometric mean, or ratio, with limits by Student's t; without limits where the variance is unknown
        or has less than a degree of freedom."""
        value = math.exp(self.mean)
        if self.degrees_of_freedom < MIN_DEGREES_OF_FREEDOM or not math.isfinite(self.variance):
            return Estimate(value)
        reach = student_t(self.degrees_of_freedom, confidence) * math.sqrt(self.variance)
        high = value * math.exp(reach) if reach < MAX_REACH else math.inf
        return Estimate(value, value * math.exp(-reach), high)


def mean_of_repeats(values: Sequence[float]) -> LogMean:
    """Return the mean logarithm of positive figures, one a repeat, each repeat with the same weight."""
    return mean_of_logs([math.log(value) for value in values])


def mean_of_logs(logs: Sequence[float]) -> LogMean:
    """Return the mean of logarithms, one a repeat, with the variance that they show themselves."""
    return LogMean(*_mean_and_variance(logs))


def mean_over_repeats(values: Sequence[float]) -> Estimate:
    """Return the arithmetic mean of one value per repeat, with limits by Student's t from three repeats on.

    For figures that have no logarithm, since they may be 0 or negative: shares, differences, losses and metrics.
    Throughput and times, which differ by factors, have `mean_of_repeats`.
    """
    mean, variance, degrees_of_freedom = _mean_and_variance(values)
    if len(values) < MIN_REPEATS_FOR_LIMITS:
        return Estimate(mean)
    distance = student_t(degrees_of_freedom, CONFIDENCE) * math.sqrt(variance)
    return Estimate(mean, mean - distance, mean + distance)


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean of one value per repeat, the variance of this mean, and its degrees of freedom."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.inf, 0
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count, count - 1
