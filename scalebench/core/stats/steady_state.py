"""The end of warm-up, and whether the blocks after it are steady: pure functions of a series of block times.

Like those of `estimates` they are free of state and of randomness, never return nan, and raise ValueError for input
that is not a series of measurements.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from scalebench.core.stats import estimates

MIN_BLOCKS = 16  # with fewer nothing is concluded
CLIP_DEVIATIONS = 20.0  # how far from the median a smoothed block may be, in standard deviations of the later half
MAD_TO_DEVIATION = 1.4826  # standard deviation of normal noise over its median absolute deviation
MAX_DEVIATIONS = 6.0  # a smoothed block further than that from what follows is warm-up, in standard deviations of that
ROUNDING = 1e-9  # relative to the time of a block
MAX_STANDARD_ERRORS = 5.0  # the blocks before the cut differ from those after it when they are further off


def find_warmup_length(block_s: npt.ArrayLike) -> int | None:
    """Return how many blocks are warm-up; None with fewer than 16, or if the level still changes after half of them.

    MSER: of all d, the one whose removal leaves the mean of the rest with the smallest marginal standard error,
    sum((x_i - mean)^2) / (n - d)^2 over the n - d blocks left. Two things are ours, for series of block times: the
    series is first smoothed by a running median of five, and clipped to 20 standard deviations of its later half around
    the median, so that a block which the machine interrupted is not taken for the end of a warm-up; and since by
    chance the smallest error comes later than it should, the cut moves back over blocks that do not differ from those
    after it: none of them is 6 standard deviations off, nor are they together 5 standard errors off (allowing for
    autocorrelation).

    Source: White 1997, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69.
    """
    series = estimates.as_series(block_s)
    blocks = len(series)
    if blocks < MIN_BLOCKS:
        return None
    later = (smooth := _running_median(series))[blocks // 2 :]
    median = float(np.median(later))
    clip = CLIP_DEVIATIONS * _noise_deviation(later)
    x = np.clip(smooth, median - clip, median + clip) - median if clip > 0 else smooth - median
    largest = float(np.abs(x).max())
    if largest == 0:
        return 0
    x = x / largest
    left = np.arange(blocks, 0, -1)
    sums, squares = x[::-1].cumsum()[::-1], (x * x)[::-1].cumsum()[::-1]
    # The last few blocks always agree with each other: a minimum among them means nothing.
    errors = (np.maximum(squares - sums * sums / left, 0.0) / left**2)[: 3 * blocks // 4]
    smallest = int(np.argmin(errors))
    length = _move_cut_back(series, smooth, smallest)
    still_changing = smallest >= len(errors) - blocks // 32 - 1  # the smallest error comes as late as it may
    return None if still_changing or length > blocks // 2 else length


def _move_cut_back(series: estimates.FloatArray, smooth: estimates.FloatArray, cut: int) -> int:
    """Return the cut moved before those blocks that do not differ from the ones after it."""
    after = series[cut:]
    median, deviation = float(np.median(after)), _noise_deviation(after)
    clipped = np.clip(after, median - MAX_DEVIATIONS * deviation, median + MAX_DEVIATIONS * deviation)
    correlation = min(max(estimates.correlate_neighbours(clipped) or 0.0, 0.0), 0.95)
    error = deviation * math.sqrt((1 + correlation) / (1 - correlation))
    before = smooth[:cut][::-1]  # from the cut backwards
    clip = CLIP_DEVIATIONS * deviation
    off = np.clip(before, median - clip, median + clip) - float(clipped.mean())
    count = np.arange(1, cut + 1)
    off_together = np.abs(off.cumsum()) > MAX_STANDARD_ERRORS * error * np.sqrt(count * (1 + count / len(after)))
    differs = off_together | (np.abs(before - median) > MAX_DEVIATIONS * deviation)
    return cut - int(np.argmax(differs)) if differs.any() else 0


def estimate_drift(series: estimates.FloatArray, independent: bool = False) -> estimates.Estimate | None:
    """Estimate how much the level changes from the start of the series to its end, over its mean.

    Return None with fewer than 16 blocks. `independent`: as if batch means did not resemble their neighbours.

    The slope of the least-squares line through 16 batch means times the length of the series; Student's t with 14
    degrees of freedom. Means of short batches still resemble their neighbours, which makes a wandering level look like
    a drift, so the variance is that of independent ones times `batch_variance_inflation` of the blocks around the line.

    Sources: Draper and Smith 1998, "Applied Regression Analysis", chapter 1 (interval of a slope); Law and Kelton 1991,
    "Simulation Modeling and Analysis" (batch means).
    """
    if len(series) < estimates.BATCHES:
        return None
    mean = float(np.add.reduce(series)) / len(series)
    if mean == 0:
        return None
    starts, sizes = estimates.batch_bounds(len(series), estimates.BATCHES)
    at = (starts + sizes / 2) / len(series)  # the middle of each batch
    at -= at.mean()
    spread = float(at @ at)
    means = np.add.reduceat(series, starts) / (sizes * mean)
    slope = float(at @ means) / spread
    residuals = means - np.add.reduce(means) / estimates.BATCHES - slope * at
    error = math.sqrt(float(residuals @ residuals) / (estimates.BATCHES - 2) / spread)
    if not independent:
        line = mean * slope * ((np.arange(len(series)) + 0.5) / len(series) - 0.5)
        error *= math.sqrt(estimates.batch_variance_inflation(series - line, estimates.BATCHES))
    half_width = estimates.student_t(estimates.BATCHES - 2, estimates.CONFIDENCE) * error
    return estimates.Estimate(slope, slope - half_width, slope + half_width)


def find_unsteadiness(block_s: npt.ArrayLike, tolerance: float, independent: bool = False) -> list[str] | None:
    """Return what speaks against a steady series, as flags of a result; None with too few blocks to say.

    `warmup_left`: the first blocks are still warm-up, and the mean moves by more than `tolerance` (a share of it)
    without them. `drifts`: there is a drift larger than that whose interval is on one side of 0, where blocks
    count as `independent` also one that is due to their resembling their neighbours.
    """
    series = estimates.as_series(block_s)
    drift = estimate_drift(series, independent=True)  # which takes half the time, and is enough for most series
    if drift is None:
        return None
    flags = []
    length = find_warmup_length(series)
    rest = float(series[length:].mean()) if length else 0.0
    if rest > 0 and abs(float(series.mean()) / rest - 1) > tolerance:
        flags.append("warmup_left")
    if _is_drift(drift, tolerance) and (independent or _is_drift(estimate_drift(series), tolerance)):
        flags.append("drifts")
    return flags


def _is_drift(drift: estimates.Estimate | None, tolerance: float) -> bool:
    return drift is not None and (drift.low > 0 or drift.high < 0) and abs(drift.value) > max(tolerance, ROUNDING)


def find_steady_start(block_s: npt.ArrayLike, tolerance: float) -> int | None:
    """Return the first block of the steady state while the series still grows; None where none is visible yet.

    `find_warmup_length` detects no change in the later half of a series, where a long warm-up may still end. So the
    blocks after the cut must be enough to say, and neither drift nor contain a warm-up of their own. A level that has
    just changed looks like correlated blocks, so here a drift is what would be one of independent blocks.
    """
    series = estimates.as_series(block_s)
    start = find_warmup_length(series)
    if start is None or find_unsteadiness(series[start:], tolerance, independent=True) != []:
        return None
    return start


def _noise_deviation(series: estimates.FloatArray) -> float:
    """Return the standard deviation of the noise as if it were normal, robust against a few outlying blocks.

    Where most blocks are equal but for rounding, as a coarse clock makes them, all of them count.
    """
    median = float(np.median(series))
    deviation = MAD_TO_DEVIATION * float(np.median(np.abs(series - median)))
    return deviation if deviation > ROUNDING * abs(median) else float(series.std())


def _running_median(series: estimates.FloatArray) -> estimates.FloatArray:
    """Return the median of each block and its neighbours, up to two on either side as far as there are as many on both.

    A level that changes once, even after the first block, changes at the same place.
    """
    smooth = series.copy()
    for half in (1, 2):
        if len(series) > 2 * half:
            windows = np.lib.stride_tricks.sliding_window_view(series, 2 * half + 1)
            smooth[half:-half] = np.partition(windows, half, axis=1)[:, half]
    return smooth
