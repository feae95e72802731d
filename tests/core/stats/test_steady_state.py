"""Warm-up and drift, against series of which both are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.analysis import throughput
from scalebench.core.stats import steady_state
from scalebench.core.stats.estimates import FloatArray
from tests.builders.runs import rank, record

BLOCKS, TRIALS, NOISE = 256, 250, 0.01
Rng = np.random.Generator


def white(rng: Rng) -> FloatArray:
    return rng.normal(0, NOISE, BLOCKS)


def correlated(rng: Rng) -> FloatArray:
    """Neighbours resemble each other by 0.7; the same standard deviation."""
    steps, found = rng.normal(0, NOISE * np.sqrt(1 - 0.7**2), BLOCKS), np.zeros(BLOCKS)
    for at in range(1, BLOCKS):
        found[at] = 0.7 * found[at - 1] + steps[at]
    return found


def with_spikes(rng: Rng) -> FloatArray:
    """The machine interrupts three blocks in a hundred, for as long as a block on average."""
    return white(rng) + np.where(rng.random(BLOCKS) < 0.03, rng.exponential(1.0, BLOCKS), 0.0)


@pytest.mark.parametrize("noise", [white, correlated, with_spikes])
@pytest.mark.parametrize(("length", "height"), [(0, 0.0), (1, 20.0), (5, 3.0), (20, 0.12), (100, 0.5)])
def test_a_warm_up_of_known_length_is_found(noise: object, length: int, height: float) -> None:
    """Within one block or a tenth of it, in at least 930 of 1,000 trials."""
    rng, good = np.random.default_rng(1), 0
    for _ in range(TRIALS):
        series = np.abs(1 + noise(rng))  # type: ignore[operator]
        series[:length] += height
        found = steady_state.find_warmup_length(series)
        good += found is not None and abs(found - length) <= max(1, length // 10)
    assert good / TRIALS >= 0.93


def test_a_warm_up_that_decays_is_cut_where_it_has_sunk_into_the_noise() -> None:
    rng = np.random.default_rng(2)
    at = np.arange(BLOCKS)
    found = [steady_state.find_warmup_length(1 + 2 * np.exp(-at / 8) + white(rng)) for _ in range(50)]
    left = [2 * np.exp(-length / 8) for length in found if length is not None]
    assert len(left) == 50 and max(left) < steady_state.MAX_DEVIATIONS * NOISE


@pytest.mark.parametrize("kind", ["ramp", "late"])
def test_a_series_that_still_changes_has_no_warm_up(kind: str) -> None:
    at = np.arange(BLOCKS)
    series = 2 - at / BLOCKS if kind == "ramp" else np.where(at < 0.6 * BLOCKS, 2.0, 1.0)
    assert steady_state.find_warmup_length(series + white(np.random.default_rng(3))) is None


@pytest.mark.parametrize("blocks", [0, 1, 15])
def test_too_few_blocks_say_nothing(blocks: int) -> None:
    series = [0.1] * blocks
    assert (
        steady_state.find_warmup_length(series),
        steady_state.estimate_drift(series),
        steady_state.find_unsteadiness(series, 0.01),
    ) == (None, None, None)


def test_a_constant_series() -> None:
    series = [0.1] * 64
    assert steady_state.find_warmup_length(series) == 0
    found = steady_state.estimate_drift(series)
    assert found is not None and found.value == pytest.approx(0, abs=1e-12)
    assert steady_state.find_unsteadiness(series, 0.0) == []


@pytest.mark.parametrize("noise", [white, correlated])
@pytest.mark.parametrize("change", [0.0, 0.05, -0.02])
def test_the_interval_of_a_known_drift(noise: object, change: float) -> None:
    """In it 95 times in a hundred, or nearly so where batch means are still correlated."""
    rng, inside = np.random.default_rng(4), 0
    for _ in range(TRIALS):
        line = 1 + change * (np.arange(BLOCKS) / BLOCKS - 0.5)
        found = steady_state.estimate_drift(line + noise(rng))  # type: ignore[operator]
        assert found is not None
        inside += found.low <= change <= found.high
    assert inside / TRIALS >= 0.90


@given(st.lists(st.floats(0.001, 1000.0), min_size=16, max_size=80), st.floats(0.001, 1000.0))
def test_units_do_not_matter(series: list[float], factor: float) -> None:
    once, again = steady_state.estimate_drift(series), steady_state.estimate_drift([factor * value for value in series])
    assert once is not None and again is not None
    assert again.value == pytest.approx(once.value, rel=1e-6, abs=1e-9)
    length = steady_state.find_warmup_length(series)
    assert length is None or 0 <= length <= len(series) // 2


@pytest.mark.parametrize(
    ("series", "against", "flags"),
    [
        ([0.1] * 64, [], []),
        ([0.2] * 8 + [0.1] * 56, [], ["warmup_left"]),  # left out
        ([0.1 * (1 + at / 640) for at in range(64)], ["drifts"], ["drifts"]),
        ([0.1001] * 4 + [0.1] * 60, [], []),  # there, and too little to matter
        ([0.1] * 15, None, []),
    ],
)
def test_what_a_row_is_told(series: list[float], against: list[str] | None, flags: list[str]) -> None:
    result = record(ranks=[rank(0, series)])
    assert throughput.find_drift(result, 0.01) == against
    told = throughput.evaluate_blocks(result).flags
    assert [word for word in told if word in ("warmup_left", "drifts")] == flags


@pytest.mark.parametrize("noise_s", [0.0, 1e-17, 1e-5])
def test_a_coarse_clock_shows_a_warm_up_too(noise_s: float) -> None:
    """Two values in turn: half of the blocks are alike, and the median of the differences is next to nothing."""
    series = [0.01 + 0.05 * (at < 30) + noise_s * (-1) ** at for at in range(400)]
    assert steady_state.find_warmup_length(series) == 30


def test_blocks_that_are_still_warm_up_do_not_count() -> None:
    slow_first = record(ranks=[rank(0, [2.0] * 8 + [0.1] * 56), rank(1, [0.05] * 64)])
    assert throughput.count_blocks(slow_first.ranks, 0.01).seconds == [0.1] * 56
    assert throughput.step_s(slow_first) == pytest.approx(0.05)
    assert throughput.throughput(slow_first)[0] == pytest.approx(2 * 20 / 0.1)
    assert len(throughput.count_blocks(slow_first.ranks, None).seconds) == 64
    few = record(ranks=[rank(0, [0.2] * 6 + [0.1] * 14)])
    assert len(throughput.count_blocks(few.ranks, 0.01).seconds) == 20, "of what would be left nothing could be said"
    assert throughput.find_drift(few, 0.01) == ["drifts"]
    late = record(ranks=[rank(0, [0.2] * 20 + [0.1] * 44)])
    assert len(throughput.count_blocks(late.ranks, 0.01).seconds) == 64, (
        "that is no warm-up, but a machine that changed"
    )
    assert throughput.find_drift(late, 0.01) == ["drifts"]
    assert "warmup_left" not in throughput.evaluate_blocks(late).flags


def test_runs_without_a_series_or_a_target_are_told_nothing() -> None:
    assert throughput.find_drift(record(status="failed"), 0.01) is None
    assert throughput.find_drift(record(ranks=[]), 0.01) is None
    assert throughput.find_drift(record(ranks=[rank(0, [0.1] * 64)]), None) is None


SERIES = st.lists(st.floats(0, 1e3), min_size=1, max_size=40)


@given(SERIES)
def test_medians_are_those_of_numpy(values: list[float]) -> None:
    """To the last digit: verdicts hang on them."""
    series = np.array(values)
    last = len(values) - 1
    reaches = [min(at, last - at, 2) for at in range(len(values))]
    smooth = [np.median(series[at - reach : at + reach + 1]) for at, reach in enumerate(reaches)]
    assert steady_state._median(series) == np.median(series) and steady_state._running_median(series).tolist() == smooth


@settings(deadline=None)  # the first one imports scipy
@given(st.lists(st.floats(0.1, 1e3), min_size=16, max_size=80))
def test_the_drift_is_the_slope_through_the_means_of_sixteen_batches(values: list[float]) -> None:
    starts = np.arange(17) * len(values) // 16
    means = [np.mean(part) for part in np.split(np.array(values), starts[1:-1])]
    found = steady_state.estimate_drift(values)
    slope = np.polyfit((starts[:-1] + starts[1:]) / 2 / len(values), np.array(means) / np.mean(values), 1)[0]
    assert found is not None and found.value == pytest.approx(slope, rel=1e-6, abs=1e-9)
