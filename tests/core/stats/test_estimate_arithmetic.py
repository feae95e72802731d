"""Arithmetic on estimates: by hand, and against a simulation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.stats.estimate_arithmetic import (
    combine,
    divide_by_total,
    estimate_around,
    mean_over_repeats,
    rate_to_seconds,
)
from scalebench.core.stats.estimates import Estimate

ESTIMATES = {"a": Estimate(10.0, 7.0, 14.0), "b": Estimate(4.0, 2.0, 5.0), "total": Estimate(20.0, 19.0, 22.0)}
HALF = math.sqrt(3) * 4.302653  # of the mean of three values with sd 3: t(0.975, 2) = 4.302653


# a's distance down is 3, b's up is 1; up they are 4 and 2. A larger total makes a share smaller: 14 / 20 falls by
# 0.7 / 20 for each unit of it; a share that includes the total moves with it by what is left.
@pytest.mark.parametrize(
    ("estimate", "value", "down", "up"),
    [
        (combine({"a": 2.0, "b": -3.0}, ESTIMATES), 8.0, math.hypot(6, 3), math.hypot(8, 6)),
        (
            divide_by_total({"a": 1.0, "b": 1.0}, ESTIMATES, "total"),
            *(0.7, math.hypot(3 / 20, 2 / 20, 2 * 0.7 / 20), math.hypot(4 / 20, 1 / 20, 1 * 0.7 / 20)),
        ),
        (
            divide_by_total({"total": 1.0, "a": -1.0}, ESTIMATES, "total"),
            *(0.5, math.hypot(1 * 0.5 / 20, 4 / 20), math.hypot(2 * 0.5 / 20, 3 / 20)),
        ),
        (divide_by_total({"total": 1.0}, ESTIMATES, "total"), 1.0, 0.0, 0.0),
        (mean_over_repeats([1.0, -2.0, 4.0]), 1.0, HALF, HALF),
    ],
)
def test_limits_come_from_the_limits_on_the_side_that_they_move_to(
    estimate: Estimate, value: float, down: float, up: float
) -> None:
    assert dataclasses.astuple(estimate) == pytest.approx((value, value - down, value + up), rel=1e-6)


def test_an_estimate_without_limits_gives_none() -> None:
    estimates = {**ESTIMATES, "b": Estimate(4.0)}
    assert combine({"a": 1.0, "b": 1.0}, estimates) == Estimate(14.0)
    assert divide_by_total({"a": 1.0}, {**estimates, "total": Estimate(20.0)}, "total") == Estimate(0.5)
    assert combine({"a": 1.0, "b": 0.0}, estimates).has_limits
    assert mean_over_repeats([1.0, 2.0]) == Estimate(1.5) and mean_over_repeats([3.0]) == Estimate(3.0)


@pytest.mark.parametrize("limits", [None, Estimate(2.0, 1.0, math.inf), Estimate(2.0, -math.inf, 3.0)])
def test_one_infinite_limit_leaves_none(limits: Estimate | None) -> None:
    assert estimate_around(2.0, limits) == Estimate(2.0)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Estimate(50.0, 40.0, 100.0), Estimate(0.2, 0.1, 0.25)),
        (None, Estimate(0.2)),
        (Estimate(50.0, 0.0, 100.0), Estimate(0.2)),
    ],
)
def test_a_rate_gives_seconds(limits: Estimate | None, seconds: Estimate) -> None:
    assert rate_to_seconds(50.0, limits, 10) == seconds


@pytest.mark.parametrize(
    ("estimate", "above"),
    [(Estimate(1.0), True), (Estimate(1.0, -1, 3), False), (Estimate(1.0, 0.5, 2), True), (Estimate(0.0), False)],
)
def test_an_estimate_is_above_zero_if_its_interval_is(estimate: Estimate, above: bool) -> None:
    assert estimate.is_above_zero is above


def test_the_interval_of_a_share_covers_the_truth_in_95_of_100() -> None:
    rng, reach, covered = np.random.default_rng(0), 1.96, 0
    for _ in range(2000):
        total, a = rng.normal(20, 0.5), rng.normal(12, 0.4)
        estimates = {"total": Estimate(total, total - reach * 0.5, total + reach * 0.5),
                     "a": Estimate(a, a - reach * 0.4, a + reach * 0.4)}  # fmt: skip
        share = divide_by_total({"total": 1.0, "a": -1.0}, estimates, "total")
        covered += share.low <= 0.4 <= share.high
    assert 1860 <= covered <= 1940


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-5, 5), st.floats(0, 10), st.floats(0, 10)), min_size=1))
def test_limits_enclose_the_value(terms: list[tuple[float, float, float, float]]) -> None:
    estimates = {str(n): Estimate(value, value - down, value + up) for n, (value, _, down, up) in enumerate(terms)}
    total = combine({str(n): factor for n, (_, factor, _, _) in enumerate(terms)}, estimates)
    assert total.has_limits and total.low <= total.value <= total.high
