"""Estimates against known truth: simulated series, published figures, scipy, and properties of all input."""

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.special import stdtrit
from scipy.stats import ttest_1samp, ttest_ind

from scalebench.core.stats import estimates
from scalebench.core.stats.estimate_arithmetic import combine, divide_by_total, rate_to_seconds
from scalebench.core.stats.estimates import T_QUANTILES, Estimate, estimate_throughput, precise_enough, student_t
from scalebench.core.stats.log_means import LogMean, mean_of_logs, mean_of_repeats, mean_over_repeats
from scalebench.core.stats.moderated_variance import Prior, RepeatTable, fit_prior, moderate
from tests.builders.repeat_worlds import World, make_table

TRUE_S = 0.01  # seconds per sample in every simulation
SAMPLES = 50
ALTERNATING = (0.5, 1.5, 0.5, 1.5)  # no positive autocorrelation


def autoregressive_s(runs, blocks, phi, seed, spread=0.1):
    """Simulate block times of runs: AR(1) around TRUE_S * SAMPLES, of relative standard deviation `spread`."""
    noise = np.random.default_rng(seed).standard_normal((blocks, runs))
    noise[1:] *= math.sqrt(1 - phi**2)  # the first row is drawn from the stationary distribution
    for block in range(1, blocks):
        noise[block] += phi * noise[block - 1]
    return TRUE_S * SAMPLES * (1 + spread * noise.T)


def find_coverage(intervals, truth=1 / TRUE_S):
    return float(np.mean([interval.low <= truth <= interval.high for interval in intervals]))


def stopped_by_rule(run_s, target):
    """Return the estimate of a run that stops at the first check that is precise enough, or with its last block."""
    samples = np.full(len(run_s), SAMPLES)
    blocks = estimates.next_check(0)
    while blocks < len(run_s) and not precise_enough(run_s[:blocks], samples[:blocks], target):
        blocks = estimates.next_check(blocks)
    return estimate_throughput(run_s[:blocks], samples[:blocks])


def test_the_interval_of_independent_blocks_has_its_coverage():
    """Also with a short block at the end of each epoch."""
    for blocks, confidence, epoch in ((31, 0.95, 200), (64, 0.95, 200), (100, 0.95, 7), (64, 0.8, 200)):
        samples = np.where(np.arange(blocks) % epoch == epoch - 1, 10, SAMPLES)
        runs = autoregressive_s(3000, blocks, phi=0.0, seed=blocks) * samples / SAMPLES
        covered = find_coverage(estimate_throughput(run, samples, confidence=confidence) for run in runs)
        assert confidence - 0.025 <= covered <= confidence + 0.025


@pytest.mark.parametrize("runs", [500, pytest.param(1500, marks=pytest.mark.slow)])
def test_the_stopping_rule_covers_correlated_and_independent_blocks(runs):
    correlated = autoregressive_s(runs, 4096, phi=0.5, seed=1)
    assert find_coverage(stopped_by_rule(run, target=0.01) for run in correlated) >= 0.90
    independent = autoregressive_s(runs, 2048, phi=0.0, seed=2)
    assert 0.92 <= find_coverage(stopped_by_rule(run, target=0.01) for run in independent) <= 0.98


@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_the_stopping_rule_may_look_at_a_few_blocks_of_many_steps(phi):
    """The noise of steps, of 5 %, in blocks of 100: the first look, after 16 blocks, stops most of these runs."""
    noise = np.random.default_rng(3).standard_normal((600, 64 * estimates.MANY_STEPS))
    noise[:, 1:] *= math.sqrt(1 - phi**2)
    runs = (1 + 0.05 * lfilter([1.0], [1.0, -phi], noise)).reshape(600, 64, -1).sum(axis=2)
    steps, intervals, stopped = estimates.MANY_STEPS, [], []
    for run in runs * TRUE_S * SAMPLES:
        samples = np.full(64, SAMPLES * steps)
        looks = (n for n in (16, 32) if precise_enough(run[:n], samples[:n], 0.02, steps))
        stopped.append(next(looks, 64))
        intervals.append(estimate_throughput(run[: stopped[-1]], samples[: stopped[-1]]))
    assert find_coverage(intervals) >= 0.93 and np.mean(stopped) < 30
    checks = {n for n in range(200) if precise_enough(np.full(n, 0.5), np.full(n, SAMPLES), 0.01, steps)}
    assert checks == {16, 32, 64, 128}


def test_student_t_is_that_of_scipy_and_its_table_needs_none(monkeypatch):
    for freedom in (*range(1, len(T_QUANTILES) + 3), 1000, 2.5, 4.0, 30.5, math.inf):
        for confidence in (0.5, 0.95, 0.99):
            wanted = float(stdtrit(freedom, (1 + confidence) / 2))
            assert student_t(freedom, confidence) == pytest.approx(wanted, rel=1e-12), (freedom, confidence)
    student_t.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert student_t(15, 0.95) == pytest.approx(2.1314495)
    with pytest.raises(ImportError):
        student_t(15, 0.9)
    program = "import sys, scalebench.core.stats.estimates; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_interval_and_autocorrelation_are_the_textbook_ones():
    batch_s = np.linspace(0.9, 1.1, 16)
    interval = estimate_throughput(np.outer(batch_s / 4, ALTERNATING).ravel(), np.full(64, 25))
    reach_s = 2.1314495 * batch_s.std(ddof=1) / 4
    figures = [interval.value, interval.low, interval.high]
    assert figures == pytest.approx([100.0, 100 / (1 + reach_s), 100 / (1 - reach_s)], rel=1e-7)
    assert estimates.correlate_neighbours(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.25)
    assert estimates.correlate_neighbours(np.array([1.0, 2.0])) is None
    almost_constant = [0.1] * 999 + [math.nextafter(0.1, 1)]
    assert abs(estimates.correlate_neighbours(np.array(almost_constant)) or 0.0) < 0.01


def test_autocorrelation_widens_an_interval():
    assert all(
        estimates.autocorrelation_inflation(np.array(values)) == 1 for values in ([1.0, 2.0], [1.0, 3.0, 1.0, 3.0])
    )
    # Of an autoregressive series of 0.5 the mean varies three times as much as of an independent one.
    runs = autoregressive_s(200, 4096, phi=0.5, seed=9)
    assert np.mean([estimates.autocorrelation_inflation(run) for run in runs]) == pytest.approx(3, rel=0.02)
    assert estimates.batch_variance_inflation(np.array(ALTERNATING * 16), 16) == 1
    short = autoregressive_s(4000, 64, phi=0.8, seed=10)
    batches = short.reshape(-1, 16, 4).mean(axis=2)
    truth = short.mean(axis=1).var() / np.mean(batches.var(axis=1, ddof=1) / 16)
    assert np.median([estimates.batch_variance_inflation(run, 16) for run in short]) == pytest.approx(truth, rel=0.15)
    for count, phi in ((2, 0.0), (8, 0.0), (64, 0.0), (64, 0.5), (400, 0.8)):
        runs = autoregressive_s(2000, count, phi, seed=count) / (TRUE_S * SAMPLES)
        assert 0.93 <= find_coverage((estimates.estimate_mean(run - 1) for run in runs), 0) <= 0.985
    assert estimates.estimate_mean([1.0]) is None


def test_blocks_are_merged_until_uncorrelated_or_too_few():
    series = autoregressive_s(1, 8192, phi=0.5, seed=8)[0]
    assert estimates.uncorrelated_factor(series) == 8  # theory: 0.50, 0.38, 0.21, 0.10 at 1, 2, 4, 8
    assert estimates.uncorrelated_factor(series[:128]) is None
    assert estimates.uncorrelated_factor(series, limit=0.45) == 2
    assert estimates.uncorrelated_factor(np.ones(64)) == 1
    assert estimates.uncorrelated_factor(np.ones(63)) is None


def test_checks_are_rare_and_wait_for_precision_and_for_uncorrelated_blocks():
    checks = {0: 64, 1: 64, 63: 64, 64: 128, 65: 128, 127: 128, 128: 256, 255: 256, 256: 512}
    assert {n: estimates.next_check(n) for n in checks} == checks
    steady = {n for n in range(600) if precise_enough(np.full(n, 0.5), np.full(n, SAMPLES), 0.01)}
    assert steady == {64, 128, 256, 512}
    samples = np.full(64, SAMPLES)
    rough_s = 1 + 0.1 * np.random.default_rng(0).standard_normal(64)
    width = estimate_throughput(rough_s, samples).relative_half_width()
    assert precise_enough(rough_s, samples, width * 1.01)
    assert not precise_enough(rough_s, samples, width * 0.99)
    assert not precise_enough(np.linspace(1.0, 1.001, 64), samples, 0.5), "it drifts"


def test_missing_limits_are_infinite_not_negative():
    wild = estimate_throughput([1e-6] * 15 + [1.0], [1] * 16)
    assert wild.high == wild.relative_half_width() == math.inf and wild.low > 0
    exact = Estimate(1.0, 1.0, 1.0)
    assert estimates.scale_estimate(wild, 2).high == math.inf
    assert not combine({"wild": 1.0, "exact": 1.0}, {"wild": wild, "exact": exact}).has_limits
    assert Estimate(0.0, -1.0, 1.0).relative_half_width() == math.inf
    assert Estimate(2.0, 1.0, 4.0).relative_half_width() == 0.75, "half the width over the value"
    assert estimate_throughput([1.0] * 4, [1] * 4) is None
    assert rate_to_seconds(Estimate(50.0, 40.0, 100.0), 10) == Estimate(0.2, 0.1, 0.25)
    for limits in ((), (0.0, 100.0), (40.0, math.inf)):
        assert rate_to_seconds(Estimate(50.0, *limits), 10) == Estimate(0.2)


@pytest.mark.parametrize(("message", "call"), [
    ("not an estimate", lambda: Estimate(1.0, 1.1, 1.2)),
    ("not an estimate", lambda: Estimate(1.0, math.nan, 1.2)),
    ("not an estimate", lambda: Estimate(math.inf, 1.0, math.inf)),
    ("finite numbers", lambda: estimates.as_series([1.0, math.nan, 2.0])),
    ("finite numbers", lambda: estimates.as_series([1e301])),
    ("one dimension", lambda: estimates.as_series([[1.0, 2.0, 3.0]])),
    ("16 block times, but 15", lambda: estimate_throughput([1.0] * 16, [1] * 15)),
    ("no negative time", lambda: estimate_throughput([-1.0] + [1.0] * 15, [1] * 16)),
    ("at least one sample", lambda: estimate_throughput([1.0] * 16, [0] + [1] * 15)),
    ("no time passed", lambda: estimate_throughput([0.0] * 16, [1] * 16)),
])  # fmt: skip
def test_invalid_input_is_an_error(message, call):
    with pytest.raises(ValueError, match=message):
        call()


positive = st.floats(min_value=0, max_value=1e300, exclude_min=True)
counts = st.integers(min_value=1, max_value=10**9)


@given(st.lists(st.tuples(positive, counts), min_size=1, max_size=130), st.integers(min_value=3, max_value=200))
def test_no_positive_finite_input_gives_nan(blocks, count):
    seconds, samples = (np.array(column, dtype=float) for column in zip(*blocks, strict=True))
    assert estimates.correlate_neighbours(np.full(count, seconds[0])) == 0, "constant"
    correlation = estimates.correlate_neighbours(np.array(seconds))
    assert correlation is None or -1 <= correlation <= 1
    assert isinstance(precise_enough(seconds, samples, 0.01), bool)
    assume(seconds.sum() > 1e-290)  # below, the throughput itself is too large for a float: an error, not nan
    interval = estimate_throughput(seconds, samples)
    assert interval is None or 0 < interval.low <= interval.value <= interval.high
    assert interval is None or interval.relative_half_width() >= 0


def test_limits_come_from_the_limits_on_the_side_that_they_move_to():
    measured = {"a": Estimate(10.0, 7.0, 14.0), "b": Estimate(4.0, 2.0, 5.0), "total": Estimate(20.0, 19.0, 22.0)}
    half = math.sqrt(3) * 4.302653  # of the mean of three values with sd 3: t(0.975, 2) = 4.302653
    # a's distance down is 3, b's up is 1; up they are 4 and 2. A larger total makes a share smaller: 14 / 20 falls by
    # 0.7 / 20 for each unit of it; a share that includes the total moves with it by what is left.
    of_both, rest = {"a": 1.0, "b": 1.0}, {"total": 1.0, "a": -1.0}
    share_down, share_up = math.hypot(3 / 20, 2 / 20, 2 * 0.7 / 20), math.hypot(4 / 20, 1 / 20, 1 * 0.7 / 20)
    for estimate, value, down, up in (
        (combine({"a": 2.0, "b": -3.0}, measured), 8.0, math.hypot(6, 3), math.hypot(8, 6)),
        (divide_by_total(of_both, measured, "total"), 0.7, share_down, share_up),
        (divide_by_total(rest, measured, "total"), 0.5, math.hypot(0.5 / 20, 4 / 20), math.hypot(1 / 20, 3 / 20)),
        (divide_by_total({"total": 1.0}, measured, "total"), 1.0, 0.0, 0.0),
        (mean_over_repeats([1.0, -2.0, 4.0]), 1.0, half, half),
    ):
        assert msgspec.structs.astuple(estimate) == pytest.approx((value, value - down, value + up), rel=1e-6)
    measured["b"] = Estimate(4.0)  # one without limits gives none
    assert combine({"a": 1.0, "b": 1.0}, measured) == Estimate(14.0)
    assert divide_by_total({"a": 1.0}, {**measured, "total": Estimate(20.0)}, "total") == Estimate(0.5)
    assert combine({"a": 1.0, "b": 0.0}, measured).has_limits
    assert mean_over_repeats([1.0, 2.0]) == Estimate(1.5) and mean_over_repeats([3.0]) == Estimate(3.0)


ONE, OTHER = [100.0, 103.0, 98.0, 101.0], [90.0, 97.0, 93.0]


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_a_mean_over_repeats_has_students_t_and_a_ratio_of_independent_ones_welchs(confidence):
    mean, ratio = mean_of_repeats(ONE), mean_of_repeats(ONE).minus(mean_of_repeats(OTHER))
    for logs, test in (
        (mean, ttest_1samp(np.log(ONE), 0)), (ratio, ttest_ind(np.log(ONE), np.log(OTHER), equal_var=False)),
    ):  # fmt: skip
        estimate, expected = logs.to_estimate(confidence), test.confidence_interval(confidence)
        assert (estimate.low, estimate.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert mean.to_estimate(confidence).value == pytest.approx(math.prod(ONE) ** 0.25)


def test_one_repeat_has_no_limits_equal_ones_no_width_and_what_overflows_is_infinite():
    single = mean_of_repeats([3.0]).to_estimate()
    assert single.value == pytest.approx(3.0) and not single.has_limits
    assert mean_of_repeats([3.0, 4.0]).to_estimate().high == pytest.approx(12**0.5 * (4 / 3) ** (12.706 / 2), rel=1e-3)
    assert not mean_of_repeats(ONE).minus(mean_of_repeats([3.0])).to_estimate().has_limits
    assert not LogMean(0.0, 1.0, 0.9).to_estimate().has_limits
    certain = LogMean(math.log(2), 0.0, 4)
    assert certain.minus(LogMean(0.0, 0.0, 3)) == LogMean(math.log(2), 0.0, 7)
    assert certain.to_estimate().low == certain.to_estimate().high == pytest.approx(2)
    assert LogMean(0.0, 1e5, 2).to_estimate().high == math.inf


def test_the_prior_is_the_distribution_that_variances_were_drawn_from_and_of_alike_ones_one():
    rng = np.random.default_rng(1)
    true_variance, true_freedom, count = 0.04, 8.0, 20_000
    variances = true_variance * true_freedom / rng.chisquare(true_freedom, count)
    observed = variances * rng.chisquare(2, count) / 2
    prior = fit_prior(observed, np.full(count, 2.0), math.inf)
    assert prior.variance == pytest.approx(true_variance, rel=0.05)
    assert prior.degrees_of_freedom == pytest.approx(true_freedom, rel=0.15)
    assert fit_prior(np.array([1.0, 1.0, 4.0]), np.array([2.0, 2.0, 2.0]), 6.0) == Prior(pytest.approx(2.0), 6.0)
    assert fit_prior(np.array([1.0]), np.array([2.0]), 6.0) is None
    unlike = fit_prior(np.array([1e-6, 1.0, 1e6]), np.array([9.0] * 3), 27.0)
    assert unlike.degrees_of_freedom < 1


def test_a_variance_is_the_mean_of_both_by_degrees_of_freedom_unless_it_is_wilder_than_the_others():
    logs, prior = [0.0, 0.02, 0.04], Prior(0.0008, 6.0)
    actual = moderate(logs, prior)
    assert actual.variance == pytest.approx((6 * 0.0008 + 2 * 0.0004) / 8 / 3) and actual.degrees_of_freedom == 8
    assert moderate(logs, None) == mean_of_logs(logs)
    assert moderate([0.1], prior) == mean_of_logs([0.1])
    logs = [0.0, 0.02, 0.04]  # variance 0.0004; 2.6 times another's is seen in 10.0 % of all cases with 2 and 30 of 30
    assert moderate(logs, Prior(0.0004 / 2.4, 30.0)).degrees_of_freedom == 32
    assert moderate(logs, Prior(0.0004 / 2.6, 30.0)) == mean_of_logs(logs)


def test_a_repeat_that_failed_leaves_the_others():
    levels = World("", 0.03, drift=0.2).draw(np.random.default_rng(7), 6, 4)
    full = make_table(levels).difference(0, 1, levels[0] - levels[1])
    rows = {k: dict(enumerate(row)) for k, row in enumerate(levels)}
    del rows[2][1], rows[3][0]
    partial = RepeatTable(rows).difference(0, 1, levels[0] - levels[1])
    assert partial.degrees_of_freedom < full.degrees_of_freedom
    assert math.sqrt(partial.variance / full.variance) == pytest.approx(1, rel=0.5), "drift of 20 % cancels"
