"""Means of logarithms: Student's t and Welch's test as scipy has them, and limits only where the variance is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind

from scalebench.core.stats.log_means import LogMean, mean_of_repeats

RATES = st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=8)
ONE, OTHER = [100.0, 103.0, 98.0, 101.0], [90.0, 97.0, 93.0]


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_a_mean_over_repeats_has_students_t(confidence):
    estimate = mean_of_repeats(ONE).to_estimate(confidence)
    expected = ttest_1samp(np.log(ONE), 0).confidence_interval(confidence)
    assert (estimate.low, estimate.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert estimate.value == pytest.approx(math.prod(ONE) ** 0.25)


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_the_ratio_of_independent_repeats_is_welchs(confidence):
    estimate = mean_of_repeats(ONE).minus(mean_of_repeats(OTHER)).to_estimate(confidence)
    expected = ttest_ind(np.log(ONE), np.log(OTHER), equal_var=False).confidence_interval(confidence)
    assert (estimate.low, estimate.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_a_single_repeat_has_no_limits():
    single = mean_of_repeats([3.0]).to_estimate()
    assert single.value == pytest.approx(3.0) and not single.has_limits
    assert mean_of_repeats([3.0, 4.0]).to_estimate().high == pytest.approx(12**0.5 * (4 / 3) ** (12.706 / 2), rel=1e-3)
    assert not mean_of_repeats(ONE).minus(mean_of_repeats([3.0])).to_estimate().has_limits
    assert not LogMean(0.0, 1.0, 0.9).to_estimate().has_limits


def test_what_overflows_is_infinite():
    assert LogMean(0.0, 1e5, 2).to_estimate().high == math.inf


def test_equal_repeats_have_no_width():
    certain = LogMean(math.log(2), 0.0, 4)
    assert certain.minus(LogMean(0.0, 0.0, 3)) == LogMean(math.log(2), 0.0, 7)
    assert certain.to_estimate().low == certain.to_estimate().high == pytest.approx(2)


@given(value=st.floats(1e-3, 1e6), repeats=st.integers(3, 8))
def test_identical_repeats_have_their_value(value, repeats):
    estimate = mean_of_repeats([value] * repeats).to_estimate()
    assert [estimate.low, estimate.value, estimate.high] == pytest.approx([value] * 3)


@given(rates=RATES, factor=st.floats(1e-3, 1e3))
def test_unit_and_reciprocal_do_not_matter(rates, factor):
    one, other, seconds = (
        mean_of_repeats(values).to_estimate() for values in (rates, [factor * v for v in rates], [1 / v for v in rates])
    )
    scaled = [one.low * factor, one.value * factor, one.high * factor]
    assert [other.low, other.value, other.high] == pytest.approx(scaled, rel=1e-6)
    assert [1 / seconds.value, 1 / seconds.low] == pytest.approx([one.value, one.high], rel=1e-6)


@given(RATES, RATES)
def test_there_and_back_is_the_same(one, other):
    there, back = (mean_of_repeats(a).minus(mean_of_repeats(b)).to_estimate() for a, b in ((one, other), (other, one)))
    assert (there.value, there.low) == (pytest.approx(1 / back.value), pytest.approx(1 / back.high, rel=1e-6))
