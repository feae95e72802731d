"""Arithmetic on estimates: linear combinations, shares of a total, reciprocals; and least squares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scalebench.core.stats.estimates import Estimate, FloatArray

MIN_INDEPENDENCE = 1e-13  # of two columns that differ by more than rounding
Coefficients = Mapping[Any, float]  # name of an estimate -> its factor


def rate_to_seconds(rate: Estimate, samples: float) -> Estimate:
    """Return the seconds that `samples` take at a positive rate in samples/s; without limits unless it has both."""
    seconds = samples / rate.value
    has_limits = rate.low > 0 and math.isfinite(rate.high)
    return Estimate(seconds, samples / rate.high, samples / rate.low) if has_limits else Estimate(seconds)


def combine(coefficients: Coefficients, estimates: Mapping[Any, Estimate]) -> Estimate:
    """Return the sum of c_i x_i for independent x_i, with c_i of either sign.

    The distance of each limit is the root of the sum of squares of the distances that the terms have on that side
    (MOVER). Sources: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general
    approach"; Zou, Huang and Zhang 2009, "A note on confidence interval estimation for a linear function of binomial
    proportions".
    """
    value = math.fsum(factor * estimates[name].value for name, factor in coefficients.items())
    return _with_distances(value, _distances(coefficients, estimates))


def divide_by_total(coefficients: Coefficients, estimates: Mapping[Any, Estimate], total: str) -> Estimate:
    """Return a linear combination over the estimate `total`, which may be one of its terms: c + (the others) / total.

    By the delta method: the limits of the other terms count with slope 1 / total, those of the total with slope
    (c - share) / total. Source: Cochran 1977, "Sampling Techniques", chapter 6 (the linearised variance of a ratio).
    """
    total_value = estimates[total].value
    value = combine(coefficients, estimates).value / total_value
    slopes = {name: factor / total_value for name, factor in coefficients.items() if name != total}
    slopes[total] = (coefficients.get(total, 0.0) - value) / total_value
    return _with_distances(value, _distances(slopes, estimates))


class LeastSquares(NamedTuple):
    """The coefficients of two columns, and the weights of the values in each, of which they are linear combinations."""

    coefficients: FloatArray
    weights: FloatArray  # coefficients x values
    deviations: FloatArray  # of the values

    @property
    def inverse(self) -> FloatArray:
        """The inverse of the normal equations' matrix: the covariance of the coefficients over that of a value."""
        product: FloatArray = self.weights @ self.weights.T
        return product


def fit_least_squares(
    rows: npt.ArrayLike, values: npt.ArrayLike, min_independence: float = MIN_INDEPENDENCE
) -> LeastSquares | None:
    """Fit values = c_0 row[0] + c_1 row[1] by least squares. A row of (1, x) gives a line; one that is divided by its
    value, with 1 for that, minimizes relative deviations.

    None where the columns are proportional but for `min_independence` (1 minus the square of the cosine between them).
    Source: Draper and Smith 1998, "Applied Regression Analysis", chapters 1 and 9.
    """
    design, targets = np.array(rows, dtype=np.float64), np.array(values, dtype=np.float64)
    scale = np.sqrt((design * design).sum(axis=0))
    if not scale.all():
        return None
    columns = design / scale
    if 1 - float(columns[:, 0] @ columns[:, 1]) ** 2 <= min_independence:
        return None
    weights = np.linalg.pinv(columns) / scale[:, None]
    coefficients = weights @ targets
    return LeastSquares(coefficients, weights, targets - design @ coefficients)


def _distances(slopes: Coefficients, estimates: Mapping[Any, Estimate]) -> tuple[float, float] | None:
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
