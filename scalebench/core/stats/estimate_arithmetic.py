"""Arithmetic on estimates: linear combinations, shares of a total, reciprocals and means over repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scalebench.core.stats.estimates import CONFIDENCE, Estimate, student_t

MIN_REPEATS_FOR_LIMITS = 3
Coefficients = Mapping[str, float]  # name of an estimate -> its factor


def estimate_around(value: float, limits: Estimate | None) -> Estimate:
    """Return `value` with the limits of another estimate of the same quantity; without limits if one is infinite."""
    if limits is None or not limits.has_limits:
        return Estimate(value)
    return Estimate(value, min(value, limits.low), max(value, limits.high))  # the two values may differ by rounding


def rate_to_seconds(rate: float, limits: Estimate | None, samples: float) -> Estimate:
    """Return the seconds that `samples` take at a positive rate in samples/s."""
    seconds = samples / rate
    if limits is None or not (limits.low > 0 and math.isfinite(limits.high)):
        return Estimate(seconds)
    return estimate_around(seconds, Estimate(samples / limits.value, samples / limits.high, samples / limits.low))


def combine(coefficients: Coefficients, estimates: Mapping[str, Estimate]) -> Estimate:
    """Return the sum of c_i x_i for independent x_i, with c_i of either sign.

    The distance of each limit is the root of the sum of squares of the distances that the terms have on that side
    (MOVER). Sources: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general
    approach"; Zou, Huang and Zhang 2009, "A note on confidence interval estimation for a linear function of binomial
    proportions".
    """
    value = math.fsum(factor * estimates[name].value for name, factor in coefficients.items())
    return _with_distances(value, _distances(coefficients, estimates))


def divide_by_total(coefficients: Coefficients, estimates: Mapping[str, Estimate], total: str) -> Estimate:
    """Return a linear combination over the estimate `total`, which may be one of its terms: c + (the others) / total.

    By the delta method: the limits of the other terms count with slope 1 / total, those of the total with slope
    (c - share) / total. Source: Cochran 1977, "Sampling Techniques", chapter 6 (the linearised variance of a ratio).
    """
    total_value = estimates[total].value
    value = combine(coefficients, estimates).value / total_value
    slopes = {name: factor / total_value for name, factor in coefficients.items() if name != total}
    slopes[total] = (coefficients.get(total, 0.0) - value) / total_value
    return _with_distances(value, _distances(slopes, estimates))


def mean_over_repeats(values: Sequence[float]) -> Estimate:
    """Return the arithmetic mean of one value per repeat, with limits by Student's t from three repeats on.

    Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a start of the
    program is one observation).
    """
    mean, repeats = math.fsum(values) / len(values), len(values)
    if repeats < MIN_REPEATS_FOR_LIMITS:
        return Estimate(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (repeats - 1)
    distance = student_t(repeats - 1, CONFIDENCE) * math.sqrt(variance / repeats)
    return Estimate(mean, mean - distance, mean + distance)


def _distances(slopes: Coefficients, estimates: Mapping[str, Estimate]) -> tuple[float, float] | None:
    """Return how far the limits of a sum are below and above its value; None if a term has no limits."""
    down, up = [], []
    for name, slope in slopes.items():
        term = estimates[name]
        if slope == 0:
            continue
        if not term.has_limits:
            return None
        below, above = abs(slope) * (term.value - term.low), abs(slope) * (term.high - term.value)
        down.append(below if slope > 0 else above)
        up.append(above if slope > 0 else below)
    return math.hypot(*down), math.hypot(*up)


def _with_distances(value: float, distances: tuple[float, float] | None) -> Estimate:
    return Estimate(value) if distances is None else Estimate(value, value - distances[0], value + distances[1])
