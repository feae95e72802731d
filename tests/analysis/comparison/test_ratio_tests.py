"""Ratios of repeats: against scipy, by hand, and with too few of them."""

import math

import numpy as np
import pytest
import scipy.stats

from scalebench.analysis.comparison.ratio_tests import (
    adjust_by_holm,
    compare_independent,
    judge_ratio,
    median_with_interval,
)
from scalebench.core.stats.log_means import mean_of_repeats

A, B = [100.0, 103.0, 99.0, 101.0], [92.0, 97.0, 95.0]


def logs(values):
    return [math.log(value) for value in values]


def test_welch_agrees_with_scipy():
    actual, expected = compare_independent(A, B, "repeats"), scipy.stats.ttest_ind(logs(B), logs(A), equal_var=False)
    assert actual.test == "Welch's t, 4 and 3 repeats"
    assert actual.ratio == pytest.approx(scipy.stats.gmean(B) / scipy.stats.gmean(A))
    assert actual.p == pytest.approx(expected.pvalue)
    limits = expected.confidence_interval(0.95)
    assert (actual.interval.low, actual.interval.high) == pytest.approx((math.exp(limits.low), math.exp(limits.high)))


@pytest.mark.parametrize("b", [[92.0, 95.0], [92.0, 97.0]])
def test_two_repeats_beside_several_share_their_variance(b):
    actual, expected = compare_independent(A, b, "repeats"), scipy.stats.ttest_ind(logs(b), logs(A), equal_var=True)
    assert actual.test == "Student's t, 4 and 2 repeats"
    assert actual.p == pytest.approx(expected.pvalue)
    assert actual.interval.high == pytest.approx(math.exp(expected.confidence_interval(0.95).high))


def test_one_repeat_beside_several_is_crawford_and_howells_test():
    actual, spread = compare_independent(A, [92.0], "sessions"), np.std(logs(A), ddof=1)
    t = (math.log(92.0) - np.mean(logs(A))) / (spread * math.sqrt(1 + 1 / 4))
    assert actual.p == pytest.approx(2 * scipy.stats.t.sf(abs(t), 3))
    assert actual.test == "Student's t, 4 and 1 sessions"
    turned = compare_independent([92.0], A, "sessions")
    assert turned.p == pytest.approx(actual.p) and turned.ratio == pytest.approx(1 / actual.ratio)


@pytest.mark.parametrize(("b", "p"), [([100.0] * 3, 1.0), ([90.0] * 3, 0.0)])
def test_repeats_without_noise(b, p):
    actual = compare_independent([100.0] * 3, b, "repeats")
    assert actual.p == p and actual.interval.low == actual.interval.high == actual.ratio


def test_shared_drift_of_pairs_cancels():
    pairs = [(100.0, 95.0), (200.0, 190.4), (50.0, 47.4), (80.0, 76.1)]
    actual = judge_ratio(mean_of_repeats([b / a for a, b in pairs]), "paired t")
    expected = scipy.stats.ttest_rel(logs([b for _, b in pairs]), logs([a for a, _ in pairs]))
    assert actual.p == pytest.approx(expected.pvalue) and actual.p < 0.001
    assert actual.interval.low == pytest.approx(math.exp(expected.confidence_interval(0.95).low))


def test_holm_by_hand():
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_by_holm([0.9, 0.6]) == [1.0, 1.0]
    assert adjust_by_holm([0.03]) == [0.03] and adjust_by_holm([]) == []


@pytest.mark.parametrize(("count", "k"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (25, 8)])
def test_ranks_of_the_median_are_those_of_the_tables(count, k):
    """As tables of the sign test have them, for 95 %."""
    values = [float(number) for number in range(1, count + 1)]
    middle, interval = median_with_interval(values[::-1])
    assert middle == (count + 1) / 2
    assert (interval.low, interval.high) == (k, count + 1 - k)
    assert 2 * scipy.stats.binom.cdf(k - 1, count, 0.5) <= 0.05 < 2 * scipy.stats.binom.cdf(k, count, 0.5)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_values_give_a_median_without_an_interval(count):
    assert median_with_interval([2.0] * count) == (2.0, None)
