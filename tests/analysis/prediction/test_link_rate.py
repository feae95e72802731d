"""The link's two figures come back from exchanges that were made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.prediction.cost_model import MeasuredSync, fit_link_rate

latencies = st.floats(1e-6, 1e-2)
bandwidths = st.floats(1e6, 1e12)


def taken(devices: int, messages: int, size_bytes: float, latency_s: float, bytes_per_s: float) -> MeasuredSync:
    """A ring: each message in 2 (n - 1) rounds, all bytes but the own part sent twice."""
    seconds = messages * 2 * (devices - 1) * latency_s + 2 * (devices - 1) / devices * size_bytes / bytes_per_s
    return MeasuredSync(devices, messages, size_bytes, seconds)


@given(latencies, bandwidths, st.integers(2, 16))
def test_latency_and_rate_come_back(latency_s: float, bytes_per_s: float, devices: int) -> None:
    """Of sizes around the one where half of the time is latency."""
    half = latency_s * bytes_per_s
    actual = fit_link_rate([taken(devices, 1, size * half, latency_s, bytes_per_s) for size in (0.1, 1, 10)])
    assert actual is not None and actual.latency_s is not None and actual.syncs == 3
    assert actual.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert actual.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)


@given(bandwidths, st.floats(1.0, 1e9))
def test_one_size_gives_the_rate_alone(bytes_per_s: float, size: float) -> None:
    actual = fit_link_rate([taken(2, 1, size, 0.0, bytes_per_s)] * 2)
    assert actual is not None and actual.latency_s is None
    assert actual.bytes_per_s == pytest.approx(bytes_per_s)


def test_a_latency_below_zero_is_none() -> None:
    actual = fit_link_rate(
        [MeasuredSync(2, 1, 1e3, 0.5e-6), MeasuredSync(2, 1, 1e6, 1e-3)]
    )  # the small one is twice as fast a byte
    assert actual is not None and actual.latency_s == 0.0
    assert 1e9 < actual.bytes_per_s < 2e9


def test_nothing_exchanged_is_no_link() -> None:
    assert fit_link_rate([]) is None
    assert (
        fit_link_rate([MeasuredSync(1, 1, 1e6, 1e-3), MeasuredSync(2, 1, 0.0, 1e-3), MeasuredSync(2, 1, 1e6, 0.0)])
        is None
    )
    assert (
        fit_link_rate([MeasuredSync(2, 1, 1e6, 1e-3), MeasuredSync(2, 1, 1e3, 2e-3)]) is None
    )  # more bytes, less time
