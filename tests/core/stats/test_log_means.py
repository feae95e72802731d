"""Means of logarithms against scipy, and variances squeezed towards those of other configurations, as limma does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from scalebench.core.stats.log_means import LogMean, mean_of_logs, mean_of_repeats
from scalebench.core.stats.moderated_variance import Prior, RepeatTable, fit_prior, moderate
from tests.builders.repeat_worlds import World, make_table

RATES = st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=8)
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


@given(rates=RATES, factor=st.floats(1e-3, 1e3))
def test_unit_and_reciprocal_do_not_matter(rates, factor):
    one, other, seconds = (
        mean_of_repeats(values).to_estimate() for values in (rates, [factor * v for v in rates], [1 / v for v in rates])
    )
    scaled = [one.low * factor, one.value * factor, one.high * factor]
    assert [other.low, other.value, other.high] == pytest.approx(scaled, rel=1e-6)
    assert [1 / seconds.value, 1 / seconds.low] == pytest.approx([one.value, one.high], rel=1e-6)


def test_the_prior_is_the_distribution_that_variances_were_drawn_from():
    rng = np.random.default_rng(1)
    true_variance, true_freedom, count = 0.04, 8.0, 20_000
    variances = true_variance * true_freedom / rng.chisquare(true_freedom, count)
    observed = variances * rng.chisquare(2, count) / 2
    prior = fit_prior(observed, np.full(count, 2.0), math.inf)
    assert prior.variance == pytest.approx(true_variance, rel=0.05)
    assert prior.degrees_of_freedom == pytest.approx(true_freedom, rel=0.15)


def test_alike_variances_are_one_with_as_many_degrees_of_freedom_as_there_are():
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


def test_limits_by_the_others_of_two_repeats_or_a_single_other_configuration():
    levels = World("", 0.03).draw(np.random.default_rng(3), 4, 3)
    table = RepeatTable({0: {0: levels[0, 0], 1: levels[0, 1]}, **{k: dict(enumerate(levels[k])) for k in (1, 2, 3)}})
    assert table.mean(0, levels[0, :2]).degrees_of_freedom > 2
    assert make_table(levels[:2, :2]).mean(0, levels[0, :2]).degrees_of_freedom == 1
    levels = np.zeros((5, 3)) + np.arange(5)[:, None]
    estimate = make_table(levels).difference(1, 0, levels[1] - levels[0]).to_estimate()
    assert (estimate.low, estimate.high) == pytest.approx((math.e, math.e), rel=1e-6)
    levels = np.array([[0.0, 0.02, 0.01], [1.0, 1.0, 1.03], [2.0, 2.02, 2.06]])
    actual = make_table(levels).difference(0, 1, levels[0] - levels[1])
    own, beside = (levels[0] - levels[1]).var(ddof=1), (levels[2] - levels[:2].mean(axis=0)).var(ddof=1)
    assert actual.degrees_of_freedom == 4
    assert actual.variance == pytest.approx((own + 2 * beside / 1.5) / 2 / 3)


def test_what_the_machine_does_in_a_repeat_is_known_once():
    """Ten configurations that all follow the machine tell as much of it as one; of what differs between them, much."""
    rng = np.random.default_rng(5)
    alike = World("", 0.001, drift=0.1).draw(rng, 10, 3)
    table = make_table(alike)
    assert 2 <= table.mean(0, alike[0]).degrees_of_freedom < 2.1, "three repeats, whoever was measured in them"
    assert table.difference(0, 1, alike[0] - alike[1]).degrees_of_freedom > 8
    independent = [World("", 0.1).draw(rng, 10, 3) for _ in range(100)]
    assert np.median([make_table(each).mean(0, each[0]).degrees_of_freedom for each in independent]) > 12


def test_a_repeat_that_failed_leaves_the_others():
    levels = World("", 0.03, drift=0.2).draw(np.random.default_rng(7), 6, 4)
    full = make_table(levels).difference(0, 1, levels[0] - levels[1])
    rows = {k: dict(enumerate(row)) for k, row in enumerate(levels)}
    del rows[2][1], rows[3][0]
    partial = RepeatTable(rows).difference(0, 1, levels[0] - levels[1])
    assert partial.degrees_of_freedom < full.degrees_of_freedom
    assert math.sqrt(partial.variance / full.variance) == pytest.approx(1, rel=0.5), "drift of 20 % cancels"
