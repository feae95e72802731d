"""Ratios of repeats, against scipy and by hand."""

import math

import numpy as np
import pytest
import scipy.stats

from scalebench.analysis.comparison import sessions

A, B = [100.0, 103.0, 99.0, 101.0], [92.0, 97.0, 95.0]


def logs(values):
    return [math.log(value) for value in values]


# Two repeats beside several share their variance.
@pytest.mark.parametrize(("b", "name"), [(B, "Welch"), ([92.0, 95.0], "Student"), ([92.0, 97.0], "Student")])
def test_ratios_agree_with_scipy(b, name):
    actual = sessions.compare_independent(A, b, "repeats")
    expected = scipy.stats.ttest_ind(logs(b), logs(A), equal_var=name == "Student")
    assert actual.test == f"{name}'s t, 4 and {len(b)} repeats"
    assert actual.ratio == pytest.approx(scipy.stats.gmean(b) / scipy.stats.gmean(A))
    assert actual.p == pytest.approx(expected.pvalue)
    limits = expected.confidence_interval(0.95)
    assert (actual.interval.low, actual.interval.high) == pytest.approx((math.exp(limits.low), math.exp(limits.high)))


def test_one_repeat_beside_several_is_crawford_and_howells_test():
    actual, spread = sessions.compare_independent(A, [92.0], "sessions"), np.std(logs(A), ddof=1)
    t = (math.log(92.0) - np.mean(logs(A))) / (spread * math.sqrt(1 + 1 / 4))
    assert actual.p == pytest.approx(2 * scipy.stats.t.sf(abs(t), 3))
    assert actual.test == "Student's t, 4 and 1 sessions"
    turned = sessions.compare_independent([92.0], A, "sessions")
    assert turned.p == pytest.approx(actual.p) and turned.ratio == pytest.approx(1 / actual.ratio)


@pytest.mark.parametrize(("b", "p"), [([100.0] * 3, 1.0), ([90.0] * 3, 0.0)])
def test_repeats_without_noise(b, p):
    actual = sessions.compare_independent([100.0] * 3, b, "repeats")
    assert actual.p == p and actual.interval.low == actual.interval.high == actual.ratio


def test_holm_by_hand():
    assert sessions.adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert sessions.adjust_by_holm([0.9, 0.6]) == [1.0, 1.0]
    assert sessions.adjust_by_holm([0.03]) == [0.03] and sessions.adjust_by_holm([]) == []


@pytest.mark.parametrize(("count", "k"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (25, 8)])
def test_ranks_of_the_median_are_those_of_the_tables(count, k):
    """As tables of the sign test have them, for 95 %."""
    middle, interval = sessions.median_with_interval([float(number) for number in range(count, 0, -1)])
    assert middle == (count + 1) / 2
    assert (interval.low, interval.high) == (k, count + 1 - k)
    assert 2 * scipy.stats.binom.cdf(k - 1, count, 0.5) <= 0.05 < 2 * scipy.stats.binom.cdf(k, count, 0.5)
    assert all(sessions.median_with_interval([2.0] * few) == (2.0, None) for few in (1, 2, 5))
