"""Sums of measured figures with their 95 % intervals: differences, shares of a whole, means over launches. Layer 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalebench.core.stats.estimates import CONFIDENCE, Interval, student_t

LEAST = 3  # launches that give an interval
Terms = Mapping[str, float]  # name of a figure -> what it is multiplied by


@dataclass(frozen=True)
class Figure:
    """A value between its 95 % limits, None where there are none: both, or neither."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def above_zero(self) -> bool:
        """Resolved: its whole interval is above 0; without one, the value."""
        return self.value > 0 and (self.low is None or self.low > 0)


def figure(value: float, interval: Interval | None) -> Figure:
    """One with an infinite limit has none."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return Figure(value)
    return Figure(value, interval.low, interval.high)


def inverse(value: float, interval: Interval | None, factor: float) -> Figure:
    """`factor` over a figure that is positive: seconds of so many samples from samples/s."""
    if interval is None or not (interval.low > 0 and math.isfinite(interval.high)):
        return Figure(factor / value)
    return Figure(factor / value, factor / interval.high, factor / interval.low)


def combined(terms: Terms, figures: Mapping[str, Figure]) -> Figure:
    """Sum of c_i x_i for independent x_i, with c_i of either sign.

    Each limit lies off by the root of the sum of squares of what the limits of the parts lie off on that side (MOVER).
    Sources: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general approach"; Zou,
    Huang and Zhang 2009, "A note on confidence interval estimation for a linear function of binomial proportions".
    """
    value = math.fsum(factor * figures[name].value for name, factor in terms.items())
    return _between(value, _reach(terms, figures))


def share(terms: Terms, figures: Mapping[str, Figure], whole: str) -> Figure:
    """The sum of `terms` over the figure `whole`, which may be one of them: c + (the others) / whole.

    By the delta method: the limits of the others move it by 1 / whole, those of `whole` by (c - share) / whole.
    Source: Cochran 1977, "Sampling Techniques", chapter 6 (the linearised variance of a ratio).
    """
    whole_value = figures[whole].value
    value = combined(terms, figures).value / whole_value
    slopes = {name: factor / whole_value for name, factor in terms.items() if name != whole}
    slopes[whole] = (terms.get(whole, 0.0) - value) / whole_value
    return _between(value, _reach(slopes, figures))


def over_launches(values: Sequence[float]) -> Figure:
    """Arithmetic mean of figures of either sign, one a launch, with Student's t of three and more.

    Source: Georges, Buytaert and Eeckhout 2007, "Statistically rigorous Java performance evaluation" (a launch is one
    observation).
    """
    mean, launches = math.fsum(values) / len(values), len(values)
    if launches < LEAST:
        return Figure(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (launches - 1)
    reach = student_t(launches - 1, CONFIDENCE) * math.sqrt(variance / launches)
    return Figure(mean, mean - reach, mean + reach)


def _reach(slopes: Terms, figures: Mapping[str, Figure]) -> tuple[float, float] | None:
    """How far the limits of a sum lie below and above it; None where a figure has none."""
    down, up = [], []
    for name, slope in slopes.items():
        one = figures[name]
        if slope == 0:
            continue
        if one.low is None or one.high is None:
            return None
        below, above = abs(slope) * (one.value - one.low), abs(slope) * (one.high - one.value)
        down.append(below if slope > 0 else above)
        up.append(above if slope > 0 else below)
    return math.hypot(*down), math.hypot(*up)


def _between(value: float, reach: tuple[float, float] | None) -> Figure:
    return Figure(value) if reach is None else Figure(value, value - reach[0], value + reach[1])
