"""Warm-up and drift, against series of which both are known."""

import numpy as np
import pytest

from scalebench.analysis.throughput import Measurement, count_blocks
from scalebench.core.stats import steady_state
from tests.builders.runs import rank, record

BLOCKS, TRIALS, NOISE = 256, 250, 0.01


def white(rng):
    return rng.normal(0, NOISE, BLOCKS)


def correlated(rng):
    steps, noise = rng.normal(0, NOISE * np.sqrt(1 - 0.7**2), BLOCKS), np.zeros(BLOCKS)
    for at in range(1, BLOCKS):
        noise[at] = 0.7 * noise[at - 1] + steps[at]
    return noise


def with_spikes(rng):
    """Simulate interruptions of three blocks in a hundred, each as long as a block on average."""
    return white(rng) + np.where(rng.random(BLOCKS) < 0.03, rng.exponential(1.0, BLOCKS), 0.0)


@pytest.mark.parametrize("noise", [white, correlated, with_spikes])
@pytest.mark.parametrize(("length", "height"), [(0, 0.0), (1, 20.0), (5, 3.0), (20, 0.12), (100, 0.5)])
def test_the_length_of_a_warm_up_is_detected(noise, length, height):
    """The error is at most one block or a tenth, in at least 930 of 1,000 trials."""
    rng, good = np.random.default_rng(1), 0
    for _ in range(TRIALS):
        series = np.abs(1 + noise(rng))
        series[:length] += height
        detected = steady_state.find_warmup_length(series)
        good += detected is not None and abs(detected - length) <= max(1, length // 10)
    assert good / TRIALS >= 0.93


def test_a_decaying_warm_up_ends_where_it_is_within_the_noise_and_one_that_still_changes_has_no_end():
    rng, at = np.random.default_rng(2), np.arange(BLOCKS)
    lengths = [steady_state.find_warmup_length(1 + 2 * np.exp(-at / 8) + white(rng)) for _ in range(50)]
    assert max(2 * np.exp(-length / 8) for length in lengths) < steady_state.MAX_DEVIATIONS * NOISE
    for series in (2 - at / BLOCKS, np.where(at < 0.6 * BLOCKS, 2.0, 1.0)):  # a ramp, and a late change
        assert steady_state.find_warmup_length(series + white(np.random.default_rng(3))) is None
    for noise_s in (0.0, 1e-17, 1e-5):  # of a coarse clock: half of the blocks are equal, the median deviation nearly 0
        coarse = [0.01 + 0.05 * (at < 30) + noise_s * (-1) ** at for at in range(400)]
        assert steady_state.find_warmup_length(coarse) == 30


def test_a_constant_series_and_too_few_blocks():
    series = [0.1] * 64
    assert steady_state.find_warmup_length(series) == 0
    assert steady_state.estimate_drift(np.array(series)).value == pytest.approx(0, abs=1e-12)
    assert steady_state.find_unsteadiness(series, 0.0) == []
    for blocks in (0, 1, 15):
        assert steady_state.find_warmup_length(series[:blocks]) is None
        assert steady_state.estimate_drift(np.array(series[:blocks])) is None
        assert steady_state.find_unsteadiness(series[:blocks], 0.01) is None


@pytest.mark.parametrize("noise", [white, correlated])
@pytest.mark.parametrize("change", [0.0, 0.05, -0.02])
def test_the_interval_of_a_drift_has_its_coverage(noise, change):
    """The coverage is 95 %, or nearly so where batch means are still correlated."""
    rng, inside = np.random.default_rng(4), 0
    for _ in range(TRIALS):
        line = 1 + change * (np.arange(BLOCKS) / BLOCKS - 0.5)
        drift = steady_state.estimate_drift(line + noise(rng))
        inside += drift.low <= change <= drift.high
    assert inside / TRIALS >= 0.90


def measure(*series, target=0.01, **changes):
    result = record(ranks=[rank(number, seconds) for number, seconds in enumerate(series)], **changes)
    result.spec["measure"] = {"target": target}
    return Measurement(result)


def test_flags_of_a_result_and_blocks_that_are_still_warm_up():
    for series, steady, flags in (
        ([0.1] * 64, True, []),
        ([0.2] * 8 + [0.1] * 56, True, ["warmup_left"]),  # left out
        ([0.1 * (1 + at / 640) for at in range(64)], False, ["drifts"]),
        ([0.1001] * 4 + [0.1] * 60, True, []),  # too little to matter
        ([0.1] * 15, None, []),
        ([0.2] * 6 + [0.1] * 14, False, ["drifts"]),  # too few blocks would be left
        ([0.2] * 20 + [0.1] * 44, False, ["drifts"]),  # that is not warm-up: the machine changed
    ):
        measured = measure(series)
        assert measured.steady is steady
        assert [flag for flag in measured.list_flags() if flag in ("warmup_left", "drifts")] == flags
        assert len(measured.step_blocks_s) == len(series) - (8 if "warmup_left" in flags else 0)
    for measured in (measure([0.1] * 64, status="failed"), measure(), measure([0.1] * 64, target=None)):
        assert measured.steady is None
    slow_first = measure([2.0] * 8 + [0.1] * 56, [0.05] * 64)
    assert slow_first.step_s == pytest.approx(0.05) and slow_first.throughput.value == pytest.approx(2 * 20 / 0.1)
    assert len(count_blocks(slow_first.result.ranks, None).seconds) == 64


def test_blocks_that_resemble_their_neighbours_rarely_look_like_a_drift():
    """AR(1) 0.8 between 64 blocks: 0.24 of the series if batch means counted as independent."""
    random = np.random.default_rng(5)
    noise = random.standard_normal((400, 264))
    for at in range(1, 264):
        noise[:, at] = 0.8 * noise[:, at - 1] + 0.6 * noise[:, at]
    series = 1 + 0.05 * noise[:, 200:]
    flagged = sum("drifts" in steady_state.find_unsteadiness(each, 0.01) for each in series)
    assert flagged <= 60
    drifting = 1 + 0.05 * noise[:, 200:] / 5 + np.linspace(0, 0.06, 64)
    assert sum("drifts" in steady_state.find_unsteadiness(each, 0.01) for each in drifting) >= 360
