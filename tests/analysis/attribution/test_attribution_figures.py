"""Sums of figures with their limits: by hand, and against a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution.figures import Figure, combined, figure, inverse, over_launches, share
from scalebench.core.stats.estimates import Interval

A, B, WHOLE = Figure(10.0, 7.0, 14.0), Figure(4.0, 2.0, 5.0), Figure(20.0, 19.0, 22.0)
FIGURES = {"a": A, "b": B, "whole": WHOLE}


def test_each_limit_of_a_difference_is_made_of_the_limits_on_its_side() -> None:
    found = combined({"a": 2.0, "b": -3.0}, FIGURES)
    # Below: a's way down (3, twice) and b's way up (1, three times); above: 4 twice and 2 three times.
    assert found == Figure(8.0, pytest.approx(8 - math.hypot(6, 3)), pytest.approx(8 + math.hypot(8, 6)))


def test_a_share_turns_the_limits_of_the_whole_round() -> None:
    found = share({"a": 1.0, "b": 1.0}, FIGURES, "whole")
    # More of the whole is less of a share: 14 / 20, by 0.7 / 20 for each unit of it.
    low, high = math.hypot(3 / 20, 2 / 20, 2 * 0.7 / 20), math.hypot(4 / 20, 1 / 20, 1 * 0.7 / 20)
    assert found == Figure(pytest.approx(0.7), pytest.approx(0.7 - low), pytest.approx(0.7 + high))


def test_a_share_that_holds_the_whole_moves_with_it_by_what_is_left() -> None:
    found = share({"whole": 1.0, "a": -1.0}, FIGURES, "whole")
    low, high = math.hypot(1 * 0.5 / 20, 4 / 20), math.hypot(2 * 0.5 / 20, 3 / 20)
    assert found == Figure(pytest.approx(0.5), pytest.approx(0.5 - low), pytest.approx(0.5 + high))
    assert share({"whole": 1.0}, FIGURES, "whole") == Figure(1.0, 1.0, 1.0)


def test_what_has_no_limits_gives_none() -> None:
    known = {**FIGURES, "b": Figure(4.0)}
    assert combined({"a": 1.0, "b": 1.0}, known) == Figure(14.0)
    assert share({"a": 1.0}, {**known, "whole": Figure(20.0)}, "whole") == Figure(0.5)
    assert combined({"a": 1.0, "b": 0.0}, known).low is not None


@pytest.mark.parametrize("interval", [None, Interval(2.0, 1.0, math.inf), Interval(2.0, -math.inf, 3.0)])
def test_limits_that_are_infinite_are_none(interval: Interval | None) -> None:
    assert figure(2.0, interval) == Figure(2.0)


def test_seconds_are_a_rate_turned_round() -> None:
    assert inverse(50.0, Interval(50.0, 40.0, 100.0), 10) == Figure(0.2, 0.1, 0.25)
    assert inverse(50.0, None, 10) == Figure(0.2)
    assert inverse(50.0, Interval(50.0, 0.0, 100.0), 10) == Figure(0.2)


def test_over_launches_is_students_t() -> None:
    found = over_launches([1.0, -2.0, 4.0])
    # sd 3, t(0.975, 2) = 4.302653
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(1 + 4.302653 * 3 / math.sqrt(3), rel=1e-6)
    assert found.low == pytest.approx(1 - 4.302653 * 3 / math.sqrt(3), rel=1e-6)
    assert over_launches([1.0, 2.0]) == Figure(1.5) and over_launches([3.0]) == Figure(3.0)


@pytest.mark.parametrize(
    ("one", "above"),
    [(Figure(1.0), True), (Figure(1.0, -1, 3), False), (Figure(1.0, 0.5, 2), True), (Figure(0.0), False)],
)
def test_resolved_is_an_interval_above_zero(one: Figure, above: bool) -> None:
    assert one.above_zero is above


def test_a_share_is_covered_where_whole_and_parts_scatter() -> None:
    """(whole - a) / whole of normal figures: the interval holds the truth in 95 of 100."""
    rng, reach, held = np.random.default_rng(0), 1.96, 0
    for _ in range(2000):
        whole, a = rng.normal(20, 0.5), rng.normal(12, 0.4)
        known = {"whole": Figure(whole, whole - reach * 0.5, whole + reach * 0.5),
                 "a": Figure(a, a - reach * 0.4, a + reach * 0.4)}  # fmt: skip
        one = share({"whole": 1.0, "a": -1.0}, known, "whole")
        assert one.low is not None and one.high is not None
        held += one.low <= 0.4 <= one.high
    assert 1860 <= held <= 1940


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-5, 5), st.floats(0, 10), st.floats(0, 10)), min_size=1))
def test_limits_lie_round_the_value(parts: list[tuple[float, float, float, float]]) -> None:
    known = {str(n): Figure(value, value - down, value + up) for n, (value, _, down, up) in enumerate(parts)}
    found = combined({str(n): factor for n, (_, factor, _, _) in enumerate(parts)}, known)
    assert found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high
