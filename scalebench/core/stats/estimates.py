"""Intervals for throughput: pure functions of block times, and the rule that says when to stop measuring.

A run is a series of blocks: `seconds[i]` is the wall time of block i, `samples[i]` the samples trained in
it. Blocks follow each other in one process, so neighbours resemble each other; treating them as independent
gives intervals that are far too narrow. Hence batch means, and a rule that looks rarely.

Every function is free of state and of randomness, never returns nan, and raises ValueError for input that is
no series of measurements (nan, infinite or negative times, wrong shape, lengths that differ).

Student's t. Layer 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# found here too

USUAL = 0.95
# Of the usual confidence, for 1 to 30 degrees of freedom: what scipy.special.stdtrit gives. To import that takes longer
# than to make the table of a hundred runs.
TABLE = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776,
    2.1199052992212546, 2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
    2.0796138447276795, 2.0738730679040254, 2.0686576104190486, 2.0638985616280245, 2.0595385527532972,
    2.0555294386428735, 2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378,
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def student_t(freedom: float, confidence: float) -> float:
    """Two-sided quantile of Student's t: |t| stays below it with this probability. Degrees of freedom may be broken."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies between 0 and 1, not at {confidence}")
    if confidence == USUAL and freedom in range(1, len(TABLE) + 1):
        return TABLE[int(freedom) - 1]
    from scipy.special import stdtrit  # not scipy.stats, which takes 0.6 s to import

    return float(stdtrit(freedom, (1 + confidence) / 2))


FloatArray = npt.NDArray[np.float64]

FIRST_LOOK = 64  # blocks; the rule looks at 64, 128, 256, ...
BATCHES = 16
CONFIDENCE = 0.95
AUTOCORRELATION_LIMIT = 0.2
MOST_CORRELATED = 0.9  # between neighbours; beyond it too few values are left to speak of an interval
LARGEST = 1e300  # beyond any measurement, and low enough that no sum of blocks overflows


@dataclass(frozen=True)
class Interval:
    """An estimate between its confidence limits, all three in the same unit.

    `value` is finite; a limit that the data cannot give is infinite. ValueError unless low <= value <= high.
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        # Written so that nan, which compares false with everything, is refused too.
        if not (self.low <= self.value <= self.high and math.isfinite(self.value)):
            raise ValueError(f"not an interval: {self.low} <= {self.value} <= {self.high} does not hold")

    def relative_half_width(self) -> float:
        """Half the width over the value (a share); infinite where a limit is, or where the value is 0."""
        return math.inf if self.value == 0 else (self.high - self.low) / 2 / abs(self.value)


def lag1_autocorrelation(values: npt.ArrayLike) -> float | None:
    """Correlation of a series with itself one step later, in [-1, 1]; None for fewer than 3 values.

    A constant series counts as uncorrelated (0.0): its mean is known exactly, there is nothing to wait for.
    Source: Box and Jenkins 1970, "Time Series Analysis: Forecasting and Control" (r_1 = c_1 / c_0).
    """
    series = series_of(values)
    if len(series) < 3:
        return None
    # Differences to the first value are exact where values are close; differences to a rounded mean are not,
    # and their common error would make a nearly constant series look perfectly correlated.
    deviation = series - series[0]
    largest = np.abs(deviation).max()
    if largest == 0:
        return 0.0
    deviation /= largest
    deviation -= np.add.reduce(deviation) / len(deviation)  # deviation.mean() takes three times as long
    return float(deviation[:-1] @ deviation[1:] / (deviation @ deviation))


def merge_blocks(values: npt.ArrayLike, factor: int) -> FloatArray:
    """Sums of each `factor` consecutive values, in their unit; an incomplete group at the end is dropped."""
    if factor < 1:
        raise ValueError(f"blocks are merged by a factor of 1 or more, not {factor}")
    series = series_of(values)
    merged = len(series) // factor
    sums: FloatArray = series[: merged * factor].reshape(merged, factor).sum(axis=1)
    return sums


def uncorrelated_factor(
    seconds_per_sample: npt.ArrayLike, limit: float = AUTOCORRELATION_LIMIT, min_blocks: int = FIRST_LOOK
) -> int | None:
    """Smallest power of two by which blocks must be merged to bring lag-1 autocorrelation under `limit`.

    None while there are too few blocks to tell: at least `min_blocks` (3 or more) must remain after merging.
    Source: Fishman 1978, "Grouping observations in digital simulation" (groups doubled until uncorrelated).
    """
    if min_blocks < 3:
        raise ValueError(f"autocorrelation needs at least 3 blocks, not {min_blocks}")
    series = series_of(seconds_per_sample)
    factor = 1
    while len(series) // factor >= min_blocks:
        correlation = lag1_autocorrelation(merge_blocks(series, factor))
        if correlation is not None and correlation < limit:
            return factor
        factor *= 2
    return None


def batch_means_interval(
    seconds: npt.ArrayLike, samples: npt.ArrayLike, batches: int = BATCHES, confidence: float = CONFIDENCE
) -> Interval | None:
    """Throughput in samples/s with its confidence interval; None with fewer blocks than batches.

    The value is sum(samples) / sum(seconds). Time at a given number of samples is what varies and what
    averages, so the interval is built for r, seconds per sample, and inverted: `high` lies further off than
    `low`, and is infinite where the lower limit of r is not above zero. With shares u_i of the time and v_i
    of the samples in batch i of k, the ratio estimator has a relative standard error of
    sqrt(k / (k - 1) * sum((u_i - v_i)^2)), so that batches which differ by a block, or hold a short one,
    weigh as they should; times Student's t with k - 1 degrees of freedom.

    Sources: Conway 1963, "Some tactical problems in digital simulation", and Law and Kelton 1991, "Simulation
    Modeling and Analysis" (batch means); Schmeiser 1982, "Batch size effects in the analysis of simulation
    output" (10 to 30 batches are enough); Cochran 1977, "Sampling Techniques" (ratio estimator's variance).
    """
    if batches < 2:
        raise ValueError(f"an interval needs at least 2 batches, not {batches}")
    block_seconds, block_samples = _blocks(seconds, samples)
    blocks = len(block_seconds)
    if blocks < batches:
        return None
    total_seconds, total_samples = float(block_seconds.sum()), float(block_samples.sum())
    if total_seconds == 0:
        raise ValueError("no time passed in any block")
    starts, _ = _batches(blocks, batches)
    excess = np.add.reduceat(block_seconds, starts) / total_seconds
    excess -= np.add.reduceat(block_samples, starts) / total_samples
    standard_error = math.sqrt(batches / (batches - 1) * float(excess @ excess))
    unseen = unseen_variance(block_seconds / block_samples, batches)
    reach = student_t(batches - 1, confidence) * standard_error * math.sqrt(unseen)
    value = total_samples / total_seconds
    return Interval(value, value / (1 + reach), value / (1 - reach) if reach < 1 else math.inf)


def mean_interval(values: npt.ArrayLike, batches: int = BATCHES, confidence: float = CONFIDENCE) -> Interval | None:
    """The mean of a series, in its unit, with its confidence interval; None for fewer than 2 values.

    From batch means, as many as there are values where they are fewer than `batches`; Student's t with one degree of
    freedom less. The fewer values a batch holds the more batches still resemble their neighbours, so their variance is
    that of independent ones times `resemblance`. For differences too: values and limits may be negative.

    Source: as batch_means_interval; Tafazzoli, Steiger and Wilson 2011, "N-Skart: a nonsequential skewness- and
    autoregression-adjusted batch-means procedure for simulation analysis" (the autoregression adjustment).
    """
    series = series_of(values)
    count = min(batches, len(series))
    if count < 2:
        return None
    starts, sizes = _batches(len(series), count)
    mean = float(np.add.reduce(series)) / len(series)  # series.mean() takes three times as long
    means = np.add.reduceat(series, starts) / sizes
    # Each batch counts by its size, and the mean is that of all values.
    spread = float(sizes / len(series) @ (means - mean) ** 2) / (count - 1)
    reach = student_t(count - 1, confidence) * math.sqrt(spread * resemblance(means))
    return Interval(mean, mean - reach, mean + reach)


@functools.lru_cache(maxsize=1024)
def _batches(values: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(starts, sizes) of `count` batches of a series; they differ by one value at most, and none is dropped."""
    starts = np.arange(count) * values // count
    sizes = np.diff(np.append(starts, values))
    starts.flags.writeable = sizes.flags.writeable = False
    return starts, sizes


def resemblance(means: npt.ArrayLike) -> float:
    """How many times the variance of a mean grows since neighbours resemble each other: (1 + r) / (1 - r), at least 1,
    as if they were an autoregressive series of lag-1 correlation r."""
    correlation = _correlation(means)
    return (1 + correlation) / (1 - correlation)


def unseen_variance(values: npt.ArrayLike, batches: int) -> float:
    """How many times the variance of the mean is what that of batch means, were they independent, says; at least 1.

    For an autoregressive series of the lag-1 correlation that these values have, which can be told more surely from
    them than from a few batches.

    Source: Law and Kelton 1991, "Simulation Modeling and Analysis", chapter 4 (variance of the mean of a correlated
    series, and what the variance of its values makes of it).
    """
    series = series_of(values)
    correlation, blocks = _correlation(series), len(series)
    batch, whole = (_variance_of_mean(correlation, count) for count in (blocks / batches, blocks))
    return max(1.0, whole * (batches - 1) / (batch - whole))


def _correlation(values: npt.ArrayLike) -> float:
    """Lag-1 correlation without the part that so few values hide, (1 + 3 r) / n; from 0 to 0.9.

    Source: Kendall 1954, "Note on bias in the estimation of autocorrelation".
    """
    series = series_of(values)
    found = lag1_autocorrelation(series)
    return 0.0 if found is None else min(max(found + (1 + 3 * found) / len(series), 0.0), MOST_CORRELATED)


def _variance_of_mean(correlation: float, count: float) -> float:
    """Of so many values of an autoregressive series, over the variance of one."""
    past = 2 * correlation * (1 - math.pow(correlation, count)) / (count * (1 - correlation) ** 2)
    return ((1 + correlation) / (1 - correlation) - past) / count


def next_look(blocks: int) -> int:
    """The first look after `blocks` blocks: 64, 128, 256, ..., always more than `blocks`."""
    if blocks < 0:
        raise ValueError(f"a count of blocks is not negative: {blocks}")
    return FIRST_LOOK << (blocks // FIRST_LOOK).bit_length()


def precise_enough(seconds: npt.ArrayLike, samples: npt.ArrayLike, target: float) -> bool:
    """Whether measuring may stop: the relative half-width of the 95 % interval is under `target` (a share).

    True only at a look (64 * 2^k blocks) and once merging leaves uncorrelated blocks: each look is another
    chance to stop at an interval that is narrow by luck; looking after every block covers 0.70, not 0.95.
    Source: Law and Carson 1979, "A sequential procedure for determining the length of a steady-state
    simulation" (looks ever further apart, and none before the autocorrelation is small).
    """
    if not target > 0:
        raise ValueError(f"the target is a share above 0, not {target}")
    block_seconds, block_samples = _blocks(seconds, samples)
    blocks = len(block_seconds)
    if blocks == 0 or next_look(blocks - 1) != blocks:
        return False
    if uncorrelated_factor(block_seconds / block_samples) is None:
        return False
    interval = batch_means_interval(block_seconds, block_samples)
    return interval is not None and interval.relative_half_width() < target


def ratio_interval(a: Interval, b: Interval) -> Interval:
    """a / b for independent estimates at the same confidence; its unit is theirs divided.

    MOVER on the log scale, where a ratio is a difference and no limit turns negative. Values must be positive
    and limits not negative, else ValueError. A limit of 0 or infinity makes that of the ratio 0 or infinite.
    Sources: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general
    approach"; Donner and Zou 2012, "Closed-form confidence intervals for functions of the normal mean and
    standard deviation".
    """
    for part in (a, b):
        if not (part.value > 0 and part.low >= 0):
            raise ValueError(f"the ratio of intervals needs positive values, not {part}")
    value = a.value / b.value
    if value == 0:
        raise ValueError(f"{a.value} / {b.value} is too small for a float")
    down = math.hypot(_log_ratio(a.value, a.low), _log_ratio(b.high, b.value))
    up = math.hypot(_log_ratio(a.high, a.value), _log_ratio(b.value, b.low))
    # Beyond 700, exp would overflow; nothing measured has such a limit.
    return Interval(value, value * math.exp(-down), value * math.exp(up) if up < 700 else math.inf)


def scale(interval: Interval, factor: float) -> Interval:
    """The interval times a positive constant (a change of unit, or speedup to efficiency)."""
    if not 0 < factor < math.inf:
        raise ValueError(f"an interval is scaled by a positive number, not {factor}")
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def sum_interval(intervals: Sequence[Interval]) -> Interval:
    """Sum of independent estimates in one unit, at the same confidence (MOVER); ValueError for none at all.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures: a general
    approach".
    """
    if not intervals:
        raise ValueError("the sum of no intervals has no width")
    value = sum(part.value for part in intervals)
    down = math.hypot(*(part.value - part.low for part in intervals))
    up = math.hypot(*(part.high - part.value for part in intervals))
    return Interval(value, value - down, value + up)


def _log_ratio(large: float, small: float) -> float:
    return math.inf if small == 0 else math.log(large) - math.log(small)


def series_of(values: npt.ArrayLike) -> FloatArray:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"a series has one dimension, not {series.ndim}")
    # The sum of squares is finite but where a value is not or is huge; it takes a fifth of the time of the comparison.
    if not math.isfinite(series.dot(series)) and not (np.abs(series) <= LARGEST).all():
        raise ValueError("a series holds finite numbers only")
    return series


def _blocks(seconds: npt.ArrayLike, samples: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    block_seconds, block_samples = series_of(seconds), series_of(samples)
    if len(block_seconds) != len(block_samples):
        raise ValueError(f"{len(block_seconds)} block times, but {len(block_samples)} sample counts")
    if (block_seconds < 0).any() or (block_samples < 1).any():
        raise ValueError("a block takes no negative time and trains at least one sample")
    return block_seconds, block_samples
