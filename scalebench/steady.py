"""Where warm-up ends and whether what follows is steady: pure functions of a series of block times. Layer 0.

Like those of stats.py they are free of state and of randomness, never return nan, and raise ValueError for input that
is no series of measurements.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from scalebench.stats import BATCHES, CONFIDENCE, FloatArray, Interval, lag1_autocorrelation, series_of, student_t

FEWEST = 16  # blocks; of fewer nothing is said
AROUND = 2  # blocks on either side whose median smooths a block
SPREADS = 20.0  # how far from the middle a smoothed block may lie, in standard deviations of the later half
NORMAL = 1.4826  # standard deviation of normal noise over its median absolute deviation
CLOSE = 10.0  # over the number of blocks: how much larger than the least an error may be


def warmup_length(block_s: npt.ArrayLike) -> int | None:
    """How many of the first blocks are warm-up; None with fewer than 16, or if the level was still changing after half.

    MSER: of all d, the one whose removal leaves the mean of the rest with the smallest marginal standard error,
    sum((x_i - mean)^2) / (n - d)^2 over the n - d blocks left. Two things are ours, for series of block times: the
    series is first smoothed by a running median of five, and cut to within 20 standard deviations of its later half, so
    that a block which the machine interrupted is not taken for the end of a warm-up; and of the errors that are as
    good as the least, within 10 / n of it (more where neighbours resemble each other), the earliest is taken, since
    by chance the least one lies later.

    Source: White 1997, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69.
    """
    series = series_of(block_s)
    blocks = len(series)
    if blocks < FEWEST:
        return None
    later = (smooth := _smoothed(series))[blocks // 2 :]
    middle = float(np.median(later))
    reach = SPREADS * NORMAL * float(np.median(np.abs(later - middle)))
    x = np.clip(smooth, middle - reach, middle + reach) - middle if reach > 0 else smooth - middle
    largest = float(np.abs(x).max())
    if largest == 0:
        return 0
    x = x / largest
    left = np.arange(blocks, 0, -1)
    sums, squares = x[::-1].cumsum()[::-1], (x * x)[::-1].cumsum()[::-1]
    # The last blocks alone always agree with each other: a minimum among them says nothing.
    errors = (np.maximum(squares - sums * sums / left, 0.0) / left**2)[: 3 * blocks // 4]
    correlation = min(max(lag1_autocorrelation(later) or 0.0, 0.0), 0.95)
    margin = 1 + CLOSE / blocks * (1 + correlation) / (1 - correlation)
    found = int(np.argmax(errors <= errors.min() * margin))
    changing = int(np.argmin(errors)) >= len(errors) - blocks // 32 - 1  # the least error lies as late as it may
    return None if changing or found > blocks // 2 else found


def drift(block_s: npt.ArrayLike) -> Interval | None:
    """How much the level changes from the start of the series to its end, over its mean, with its 95 % interval;
    None with fewer than 16 blocks.

    The slope of the least-squares line through 16 batch means, which are nearly independent where blocks are not,
    times the length of the series; Student's t with 14 degrees of freedom.

    Sources: Draper and Smith 1998, "Applied Regression Analysis", chapter 1 (interval of a slope); Law and Kelton 1991,
    "Simulation Modeling and Analysis" (batch means).
    """
    series = series_of(block_s)
    if len(series) < BATCHES:
        return None
    mean = float(series.mean())
    if mean == 0:
        return None
    starts = np.arange(BATCHES + 1) * len(series) // BATCHES
    means = np.array([part.mean() for part in np.split(series, starts[1:-1])]) / mean
    at = (starts[:-1] + starts[1:]) / 2 / len(series)  # middles of the batches, from 0 to 1
    at = at - at.mean()
    spread = float(at @ at)
    slope = float(at @ means) / spread
    residuals = means - means.mean() - slope * at
    reach = student_t(BATCHES - 2, CONFIDENCE) * math.sqrt(float(residuals @ residuals) / (BATCHES - 2) / spread)
    return Interval(slope, slope - reach, slope + reach)


def unsteadiness(block_s: npt.ArrayLike, tolerance: float) -> list[str] | None:
    """What speaks against a steady series, in the words of a row's flags; None with too few blocks to tell.

    `warmup_left`: its first blocks are still warm-up, and the mean moves by more than `tolerance` (a share of it)
    without them. `drifts`: a drift can be made out, its interval being on one side of 0, that is larger than that.
    """
    series = series_of(block_s)
    found = drift(series)
    if found is None:
        return None
    flags = []
    length = warmup_length(series)
    rest = float(series[length:].mean()) if length else 0.0
    if rest > 0 and abs(float(series.mean()) / rest - 1) > tolerance:
        flags.append("warmup_left")
    if (found.low > 0 or found.high < 0) and abs(found.value) > tolerance:
        flags.append("drifts")
    return flags


def _smoothed(series: FloatArray) -> FloatArray:
    """Medians of each block and its neighbours, as many on either side as there are, up to two: a level that changes
    once, even after the first block, changes at the same place."""
    last = len(series) - 1
    reaches = [min(at, last - at, AROUND) for at in range(len(series))]
    return np.array([np.median(series[at - reach : at + reach + 1]) for at, reach in enumerate(reaches)])
