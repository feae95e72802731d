"""Estimates with confidence limits: throughput and means of block times, ratios, sums, and when to stop measuring.

A run is a series of blocks: `seconds[i]` is the wall time of block i, `samples[i]` the samples trained in it. Blocks
follow each other in one process, so neighbours resemble each other; treating them as independent gives intervals that
are far too narrow. Hence batch means, and a stopping rule that looks rarely.

Every function is free of state and of randomness, never returns nan, and raises ValueError for anything but a series of
measurements (nan, infinite or negative times, wrong shape, lengths that differ).
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

CONFIDENCE = 0.95
FIRST_CHECK_BLOCKS = 64  # the stopping rule looks at 64, 128, 256, ... blocks
# Blocks of so many steps, as on GPUs, are nearly independent where steps are not, and it looks at 16 and 32, too: in
# simulations 0.94 to 0.96 of intervals held the truth for steps of white, lognormal and spiky noise and AR(1) of up to
# 0.8, 0.92 to 0.96 of 0.95 and 0.99. A look after 8 blocks held it in 0.87, blocks of ten steps with spikes in 0.77.
MANY_STEPS, FIRST_CHECK_OF_MANY = 100, 16
BATCHES = 16
MIN_BLOCKS_FOR_LIMITS = 5  # fewer cannot show how far they resemble each other
AUTOCORRELATION_LIMIT = 0.2
MAX_AUTOCORRELATION = 0.9  # between neighbours; beyond it too few independent values are left for an interval
MAX_VALUE = 1e300  # beyond any measurement, and low enough that no sum of blocks overflows
# Student's t at 95 % for 1 to 30 degrees of freedom, as scipy.special.stdtrit gives it: importing that takes longer
# than making the table of a hundred runs.
T_QUANTILES = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776,
    2.1199052992212546, 2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864,
    2.0796138447276795, 2.0738730679040254, 2.0686576104190486, 2.0638985616280245, 2.0595385527532972,
    2.0555294386428735, 2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378,
)  # fmt: skip


class Estimate(msgspec.Struct, frozen=True):  # made four times as fast as a dataclass: each run has two dozen
    """A value between its confidence limits, all three in one unit.

    `value` is finite. A limit that the data cannot give is infinite; by default neither is given. ValueError unless
    low <= value <= high.
    """

    value: float
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        # Written so that nan, which compares false with everything, is refused too.
        if not (self.low <= self.value <= self.high and math.isfinite(self.value)):
            raise ValueError(f"not an estimate: {self.low} <= {self.value} <= {self.high} does not hold")

    @property
    def has_limits(self) -> bool:
        """True if both limits are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def limits(self) -> tuple[float, float] | tuple[None, None]:
        """Both limits where both are finite, else None for each, as tables and records have them."""
        return (self.low, self.high) if self.has_limits else (None, None)

    def relative_half_width(self) -> float:
        """Return half the width over the value (a share); infinite where a limit is, or where the value is 0."""
        return math.inf if self.value == 0 else (self.high - self.low) / 2 / abs(self.value)


@functools.lru_cache(maxsize=1024)
def student_t(degrees_of_freedom: float, confidence: float) -> float:
    """Return the two-sided quantile of Student's t: |t| stays below it with probability `confidence`.

    The degrees of freedom need not be a whole number.
    """
    if confidence == CONFIDENCE and degrees_of_freedom in range(1, len(T_QUANTILES) + 1):
        return T_QUANTILES[int(degrees_of_freedom) - 1]
    from scipy.special import stdtrit  # not scipy.stats, which takes 0.6 s to import

    return float(stdtrit(degrees_of_freedom, (1 + confidence) / 2))


def correlate_neighbours(series: FloatArray) -> float | None:
    """Return the correlation of a series with itself one position later, in [-1, 1]; None for fewer than 3 values.

    A constant series counts as uncorrelated (0.0): its mean is known exactly, there is nothing to wait for.
    Source: Box and Jenkins 1970, "Time Series Analysis: Forecasting and Control" (r_1 = c_1 / c_0).
    """
    if len(series) < 3:
        return None
    # Differences to the first value are exact where values are close; differences to a rounded mean are not,
    # and their common error would make a nearly constant series look perfectly correlated.
    deviation = series - series[0]
    largest = np.maximum.reduce(np.abs(deviation))
    if largest == 0:
        return 0.0
    deviation /= largest
    deviation -= np.add.reduce(deviation) / len(deviation)  # deviation.mean() takes three times as long
    return float(deviation[:-1] @ deviation[1:] / (deviation @ deviation))


def uncorrelated_factor(
    seconds_per_sample: npt.ArrayLike, limit: float = AUTOCORRELATION_LIMIT, min_blocks: int = FIRST_CHECK_BLOCKS
) -> int | None:
    """Return the smallest power of two by which blocks must be merged to bring lag-1 autocorrelation under `limit`.

    None while there are too few blocks to tell: at least `min_blocks` (3 or more) must remain after merging.
    Source: Fishman 1978, "Grouping observations in digital simulation" (groups doubled until uncorrelated).
    """
    series = as_series(seconds_per_sample)
    factor = 1
    while len(series) // factor >= min_blocks:
        merged = len(series) // factor
        correlation = correlate_neighbours(series[: merged * factor].reshape(merged, factor).sum(axis=1))
        if correlation is not None and correlation < limit:
            return factor
        factor *= 2
    return None


def estimate_throughput(
    seconds: npt.ArrayLike, samples: npt.ArrayLike, batches: int = BATCHES, confidence: float = CONFIDENCE
) -> Estimate | None:
    """Estimate throughput in samples/s by batch means, or by the blocks themselves where they are fewer than `batches`;
    None with fewer than MIN_BLOCKS_FOR_LIMITS.

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
    block_seconds, block_samples = _blocks(seconds, samples)
    blocks = len(block_seconds)
    if blocks < MIN_BLOCKS_FOR_LIMITS:
        return None
    batches = min(batches, blocks)
    total_seconds, total_samples = float(np.add.reduce(block_seconds)), float(np.add.reduce(block_samples))
    if total_seconds == 0:
        raise ValueError("no time passed in any block")
    starts, _ = batch_bounds(blocks, batches)
    excess = np.add.reduceat(block_seconds, starts) / total_seconds
    excess -= np.add.reduceat(block_samples, starts) / total_samples
    standard_error = math.sqrt(batches / (batches - 1) * float(excess @ excess))
    inflation = batch_variance_inflation(block_seconds / block_samples, batches)
    half_width = student_t(batches - 1, confidence) * standard_error * math.sqrt(inflation)
    value = total_samples / total_seconds
    return Estimate(value, value / (1 + half_width), value / (1 - half_width) if half_width < 1 else math.inf)


def estimate_mean(values: npt.ArrayLike, batches: int = BATCHES, confidence: float = CONFIDENCE) -> Estimate | None:
    """Estimate the mean of a series, in its unit; None for fewer than 2 values.

    Uses batch means, one for each value where there are fewer than `batches`, and Student's t with one degree of
    freedom less. The fewer values a batch holds the more batches still resemble their neighbours, so their variance is
    that of independent ones times `autocorrelation_inflation`. Values and limits may be negative, as for differences.

    Sources: Law and Kelton 1991, "Simulation Modeling and Analysis" (batch means); Tafazzoli, Steiger and Wilson 2011,
    "N-Skart: a nonsequential skewness- and autoregression-adjusted batch-means procedure for simulation analysis" (the
    autoregression adjustment).
    """
    series = as_series(values)
    count = min(batches, len(series))
    if count < 2:
        return None
    mean = float(np.add.reduce(series)) / len(series)  # series.mean() takes three times as long
    starts, sizes = batch_bounds(len(series), count)
    means = np.add.reduceat(series, starts) / sizes
    spread = float(sizes @ (means - mean) ** 2) / len(series) / (count - 1)  # each batch counts by its size
    half_width = student_t(count - 1, confidence) * math.sqrt(spread * autocorrelation_inflation(means))
    return Estimate(mean, mean - half_width, mean + half_width)


@functools.lru_cache(maxsize=1024)
def batch_bounds(values: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the starts and sizes of `count` batches, whose sizes differ by at most one; no value is dropped."""
    starts = np.arange(count) * values // count
    sizes = np.diff(np.append(starts, values))
    starts.flags.writeable = sizes.flags.writeable = False
    return starts, sizes


def autocorrelation_inflation(means: FloatArray) -> float:
    """Return the factor (1 + r) / (1 - r), at least 1, by which autocorrelation inflates the variance of a mean.

    The values count as an autoregressive series of lag-1 correlation r.
    """
    correlation = _correct_correlation(correlate_neighbours(means), len(means))
    return (1 + correlation) / (1 - correlation)


def batch_variance_inflation(series: FloatArray, batches: int) -> float:
    """Return the factor, at least 1, by which the variance of the mean exceeds what independent batch means imply.

    It holds for an autoregressive series of the lag-1 correlation of these values, which are more and so estimate it
    better than a few batch means do.

    Source: Law and Kelton 1991, "Simulation Modeling and Analysis", chapter 4 (variance of the mean of a correlated
    series, and what the variance of its values makes of it).
    """
    blocks = len(series)
    correlation = _correct_correlation(correlate_neighbours(series), blocks)
    of_batch, of_series = (_variance_of_mean(correlation, count) for count in (blocks / batches, blocks))
    return max(1.0, of_series * (batches - 1) / (of_batch - of_series))


def _correct_correlation(r: float | None, count: int) -> float:
    """Return a lag-1 correlation corrected for its bias in short series, (1 + 3 r) / n, within 0 to 0.9.

    Source: Kendall 1954, "Note on bias in the estimation of autocorrelation".
    """
    return 0.0 if r is None else min(max(r + (1 + 3 * r) / count, 0.0), MAX_AUTOCORRELATION)


def _variance_of_mean(correlation: float, count: float) -> float:
    """Return the variance of the mean of `count` values of an autoregressive series, over the variance of one value."""
    past = 2 * correlation * (1 - math.pow(correlation, count)) / (count * (1 - correlation) ** 2)
    return ((1 + correlation) / (1 - correlation) - past) / count


def next_check(blocks: int, first: int = FIRST_CHECK_BLOCKS) -> int:
    """Return the next number of blocks at which the rule looks: first, 2 first, 4 first, ..., always more than
    `blocks`."""
    return first << (blocks // first).bit_length()


def precise_enough(seconds: npt.ArrayLike, samples: npt.ArrayLike, target: float, steps: int = 1) -> bool:
    """Return whether measuring may stop: the relative half-width of the 95 % interval is under `target` (a share).
    Blocks are of that many steps.

    True only at a look (64 * 2^k blocks, 16 * 2^k of MANY_STEPS) and once merging leaves uncorrelated blocks: each look
    is another chance to stop at an interval that is narrow by luck; looking after every block covers 0.70, not 0.95.
    Source: Law and Carson 1979, "A sequential procedure for determining the length of a steady-state
    simulation" (looks ever further apart, and none before the autocorrelation is small).
    """
    block_seconds, block_samples = _blocks(seconds, samples)
    blocks, first = len(block_seconds), FIRST_CHECK_OF_MANY if steps >= MANY_STEPS else FIRST_CHECK_BLOCKS
    if blocks == 0 or next_check(blocks - 1, first) != blocks:
        return False
    if uncorrelated_factor(block_seconds / block_samples, min_blocks=min(blocks, FIRST_CHECK_BLOCKS)) is None:
        return False
    throughput = estimate_throughput(block_seconds, block_samples)
    return throughput is not None and throughput.relative_half_width() < target


def estimate_ratio_over_rounds(rates: npt.ArrayLike, reference_rates: npt.ArrayLike) -> Estimate | None:
    """Estimate the ratio of two throughputs that were measured in the same rounds; None for fewer than 2 rounds.

    The value is the geometric mean of the ratios within rounds, so that a change of the machine that lasts for a round
    cancels. The interval is over these rounds: it holds for the two processes that were measured, and says nothing
    about another start of them. Rates are positive, in any unit.

    Source: Box, Hunter and Hunter 2005, "Statistics for Experimenters", chapter 3 (paired comparisons in blocks).
    """
    differences = np.log(as_series(rates)) - np.log(as_series(reference_rates))
    mean = estimate_mean(differences)
    return None if mean is None else Estimate(*(math.exp(part) for part in (mean.value, mean.low, mean.high)))


def scale_estimate(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate times a positive constant (a change of unit, or speedup to efficiency)."""
    return Estimate(estimate.value * factor, estimate.low * factor, estimate.high * factor)


def as_series(values: npt.ArrayLike) -> FloatArray:
    """Return the values as an array; ValueError unless they are a series of finite numbers."""
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"a series has one dimension, not {series.ndim}")
    # The sum of squares is finite unless a value is infinite, nan or huge; it takes a fifth of the comparison's time.
    # Unlike dot, vdot does not warn of an overflow.
    if not math.isfinite(np.vdot(series, series)) and not (np.abs(series) <= MAX_VALUE).all():
        raise ValueError("a series holds finite numbers only")
    return series


def _blocks(seconds: npt.ArrayLike, samples: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    block_seconds, block_samples = as_series(seconds), as_series(samples)
    if len(block_seconds) != len(block_samples):
        raise ValueError(f"{len(block_seconds)} block times, but {len(block_samples)} sample counts")
    if len(block_seconds) and (np.minimum.reduce(block_seconds) < 0 or np.minimum.reduce(block_samples) < 1):
        raise ValueError("a block takes no negative time and trains at least one sample")
    return block_seconds, block_samples
