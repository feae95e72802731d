"""Where warm-up ends and whether what follows is steady: pure functions of a series of block times. Layer 0.

Like those of stats.py they are free of state and of randomness, never return nan, and raise ValueError for input that
is no series of measurements.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import numpy.typing as npt

from scalebench.core.stats.estimates import (
    BATCHES,
    CONFIDENCE,
    FloatArray,
    Interval,
    lag1_autocorrelation,
    series_of,
    student_t,
)

FEWEST = 16  # blocks; of fewer nothing is said
SPREADS = 20.0  # how far from the middle a smoothed block may lie, in standard deviations of the later half
NORMAL = 1.4826  # standard deviation of normal noise over its median absolute deviation
BEYOND = 6.0  # standard deviations of what follows beyond which a smoothed block is warm-up
ROUNDING = 1e-9  # of a block's time
APART = 5.0  # standard errors by which the blocks before the cut must differ from those after it


def warmup_length(block_s: npt.ArrayLike) -> int | None:
    """How many of the first blocks are warm-up; None with fewer than 16, or if the level was still changing after half.

    MSER: of all d, the one whose removal leaves the mean of the rest with the smallest marginal standard error,
    sum((x_i - mean)^2) / (n - d)^2 over the n - d blocks left. Two things are ours, for series of block times: the
    series is first smoothed by a running median of five, and cut to within 20 standard deviations of its later half,
    so that a block which the machine interrupted is not taken for the end of a warm-up; and since by chance the least
    error lies later than it should, the cut moves back over blocks that cannot be told from those after it: none of
    them lies 6 standard deviations off, nor do they together lie 5 standard errors off, neighbours' resemblance
    reckoned with.

    Source: White 1997, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69.
    """
    series = series_of(block_s)
    blocks = len(series)
    if blocks < FEWEST:
        return None
    later = (smooth := _smoothed(series))[blocks // 2 :]
    middle = _median(later)
    reach = SPREADS * _spread(later)
    x = np.clip(smooth, middle - reach, middle + reach) - middle if reach > 0 else smooth - middle
    largest = float(np.abs(x).max())
    if largest == 0:
        return 0
    x = x / largest
    left = np.arange(blocks, 0, -1)
    sums, squares = x[::-1].cumsum()[::-1], (x * x)[::-1].cumsum()[::-1]
    # The last blocks alone always agree with each other: a minimum among them says nothing.
    errors = (np.maximum(squares - sums * sums / left, 0.0) / left**2)[: 3 * blocks // 4]
    least = int(np.argmin(errors))
    found = _moved_back(series, smooth, least)
    changing = least >= len(errors) - blocks // 32 - 1  # the least error lies as late as it may
    return None if changing or found > blocks // 2 else found


def _moved_back(series: FloatArray, smooth: FloatArray, cut: int) -> int:
    """The cut without those blocks before it that are like the ones after it."""
    after = series[cut:]
    middle, spread = _median(after), _spread(after)
    kept = np.clip(after, middle - BEYOND * spread, middle + BEYOND * spread)
    correlation = min(max(lag1_autocorrelation(kept) or 0.0, 0.0), 0.95)
    error = spread * math.sqrt((1 + correlation) / (1 - correlation))
    off = np.clip(smooth[:cut][::-1], middle - SPREADS * spread, middle + SPREADS * spread) - float(kept.mean())
    count = np.arange(1, cut + 1)
    together = np.abs(off.cumsum()) > APART * error * np.sqrt(count * (1 + count / len(after)))
    unlike = together | (np.abs(smooth[:cut][::-1] - middle) > BEYOND * spread)
    return cut - int(np.argmax(unlike)) if unlike.any() else 0


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
    bounds, at, spread = _batch_middles(len(series))
    means = np.array([np.add.reduce(series[first:end]) / (end - first) for first, end in bounds]) / mean
    slope = float(at @ means) / spread
    residuals = means - means.mean() - slope * at
    reach = student_t(BATCHES - 2, CONFIDENCE) * math.sqrt(float(residuals @ residuals) / (BATCHES - 2) / spread)
    return Interval(slope, slope - reach, slope + reach)


@functools.lru_cache(maxsize=1024)
def _batch_middles(blocks: int) -> tuple[list[tuple[int, int]], FloatArray, float]:
    """(first and last block of each batch, its middle from -0.5 to 0.5, sum of squares of these)."""
    starts = np.arange(BATCHES + 1) * blocks // BATCHES
    at = (starts[:-1] + starts[1:]) / 2 / blocks
    at = at - at.mean()
    return list(itertools.pairwise(starts.tolist())), at, float(at @ at)


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
    if (found.low > 0 or found.high < 0) and abs(found.value) > max(tolerance, ROUNDING):
        flags.append("drifts")
    return flags


def steady_from(block_s: npt.ArrayLike, tolerance: float) -> int | None:
    """The block that steady state begins with, while the series still grows; None where there is none to be seen yet.

    warmup_length sees no change in the later half of a series, which a warm-up that goes on for long may yet end in: so
    what follows must be long enough to tell, and neither drift nor hold a warm-up of its own (unsteadiness).
    """
    series = series_of(block_s)
    found = warmup_length(series)
    if found is None or unsteadiness(series[found:], tolerance) != []:
        return None
    return found


def _spread(series: FloatArray) -> float:
    """Standard deviation of its noise, were it normal, whatever a few blocks do. Where most blocks are alike but for
    rounding, as a coarse clock makes them, all of them count."""
    middle = _median(series)
    found = NORMAL * _median(np.abs(series - middle))
    return found if found > ROUNDING * abs(middle) else float(series.std())


def _median(series: FloatArray) -> float:
    """np.median, which is ten times as slow: thousands of series are looked at for one report."""
    half, odd = divmod(len(series), 2)
    if odd:
        return float(np.partition(series, half)[half])
    ordered = np.partition(series, (half - 1, half))
    return float((ordered[half - 1] + ordered[half]) / 2)


def _smoothed(series: FloatArray) -> FloatArray:
    """Medians of each block and its neighbours, as many on either side as there are, up to two: a level that changes
    once, even after the first block, changes at the same place.

    By exchanges of the smaller and the larger, a tenth of the time of sorting each window."""
    smooth = series.copy()
    if len(series) >= 3:
        smooth[1:-1] = _median_of_three(series[:-2], series[1:-1], series[2:])
    if len(series) >= 5:
        a, b, c, d, e = (series[first : len(series) - 4 + first] for first in range(5))
        lower = np.maximum(np.minimum(a, b), np.minimum(d, e))
        upper = np.minimum(np.maximum(a, b), np.maximum(d, e))
        smooth[2:-2] = _median_of_three(lower, upper, c)
    return smooth


def _median_of_three(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    middle: FloatArray = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    return middle
