"""Throughput, steadiness and flags of simple records with known throughput."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import throughput
from scalebench.analysis.rows import divide_throughputs, summarize_run
from scalebench.analysis.throughput import Measurement, merge_rank_blocks
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, estimate_throughput
from tests.builders.runs import rank, record


def two_ranks(independent=False):
    fast = rank(0, [1.0, 2.0, 1.0, 9.0], [10, 10, 10, 10])
    slow = rank(1, [2.0, 1.0, 2.0], [9, 10, 11])
    return record(gpus=2, ranks=[fast, slow], independent=independent)


def test_a_group_is_as_slow_as_its_slowest_rank_in_each_block():
    seconds, samples = merge_rank_blocks(two_ranks().ranks)
    assert (seconds.tolist(), samples.tolist()) == ([2.0, 2.0, 2.0], [19, 20, 21])
    assert Measurement(two_ranks()).throughput == (60 / 6.0, None)
    assert Measurement(two_ranks()).step_s == 6.0 / (3 * 2)


def test_throughput_of_replicas_adds_up_without_their_last_blocks():
    value, interval = Measurement(two_ranks(independent=True)).throughput
    assert value == pytest.approx(30 / 4.0 + 19 / 3.0) and interval is None
    single = record(gpus=2, ranks=[rank(0, [2.0], [10]), rank(1, [4.0], [10])], independent=True)
    assert Measurement(single).throughput == (10 / 2.0 + 10 / 4.0, None), "the only block of a replica counts"


def test_the_interval_is_of_batch_means_and_that_of_replicas_of_their_sum():
    result = record(gpus=2, block_s=0.1)
    seconds = result.ranks[0].block_s
    value, interval = Measurement(result).throughput
    assert value == pytest.approx(40 / 0.1)
    assert interval == estimate_throughput(seconds, [40] * len(seconds))
    assert 0 < interval.relative_half_width() < 0.02
    one = estimate_throughput(seconds[:-1], [20] * 31)
    both = combine({"first": 1.0, "second": 1.0}, {"first": one, "second": one})
    assert Measurement(record(gpus=2, block_s=0.1, independent=True)).throughput[1] == both


@pytest.mark.parametrize("status", ["failed", "oom", "timeout", "unsupported", "cancelled"])
def test_a_run_that_is_not_ok_has_no_figures(status):
    result = record(status=status)
    assert result.ranks[0].block_s
    assert Measurement(result).throughput == (None, None)
    assert Measurement(result).step_s is None


@pytest.mark.parametrize("ranks", [
    [], [rank()], [rank(0, [0.0, 0.0])], [rank(0, [1.0, -0.5])], [rank(0, [1.0], [0])], [rank(0, [1.0], [])],
    [rank(0, [1.0]), rank(1)],
])  # fmt: skip
def test_no_throughput_without_complete_blocks(ranks):
    assert Measurement(record(ranks=ranks)).throughput == (None, None)


def test_a_ratio_of_throughputs_needs_both():
    two, one, unmeasured = (
        summarize_run(result, Path("x")) for result in (record(gpus=2, block_s=0.125), record(), record(block_s=None))
    )
    assert divide_throughputs(two, one) == pytest.approx(1.6) and divide_throughputs(two, two) == 1.0
    for pair in ((two, unmeasured), (unmeasured, unmeasured), (two, None)):
        assert divide_throughputs(*pair) is None


@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=16, max_size=80), devices=st.integers(1, 4))
def test_throughput_is_samples_over_time_whatever_the_blocks(seconds, devices):
    ranks = [rank(k, seconds, list(range(1, len(seconds) + 1))) for k in range(devices)]
    value, interval = Measurement(record(gpus=devices, ranks=ranks)).throughput
    samples = devices * len(seconds) * (len(seconds) + 1) / 2
    assert value == pytest.approx(samples / sum(seconds))
    assert interval.low <= value * (1 + 1e-12) and interval.high >= value * (1 - 1e-12)


NARROW, WIDE, ENDLESS = Estimate(100, 99.5, 100.5), Estimate(100, 90, 110), Estimate(100, 10, math.inf)


@pytest.mark.parametrize(("interval", "efficiency", "device", "expected"), [
    (NARROW, None, "cuda", []), (None, None, "cuda", ["no_interval"]), (ENDLESS, None, "cuda", ["no_interval"]),
    (WIDE, None, "cuda", ["target_missed"]), (NARROW, Estimate(0.99, 0.97, 1.01), "cuda", []),
    (NARROW, Estimate(1.01, 0.99, 1.03), "cuda", ["superlinear_within_noise"]),
    (NARROW, Estimate(1.1, 1.05, 1.15), "cuda", ["superlinear"]),
    (WIDE, Estimate(1.1, 1.0, 1.2), "cuda", ["target_missed", "superlinear_within_noise"]),
    # More than so many CPU workers can do is an error of the measurement: 3.6 times as fast on two cores.
    (NARROW, Estimate(1.8, 1.7, 1.9), "cpu", ["superlinear_on_cpu"]),
    (NARROW, Estimate(1.1, 0.9, 1.2), "cpu", ["superlinear_within_noise"]),
    (NARROW, Estimate(3.0), "cpu", []), (NARROW, None, "cpu", []),
])  # fmt: skip
def test_flags_of_a_run(interval, efficiency, device, expected):
    result = record()
    result.spec["measure"] = {"target": 0.01}
    assert throughput.interval_flags(result, interval) + throughput.superlinear_flags(efficiency, device) == expected


def test_flags_of_the_run_come_first_and_failed_runs_have_no_others():
    flags = {"flags": ["oversubscribed"]}
    assert Measurement(record(ranks=[rank()], **flags)).list_flags() == ["oversubscribed", "no_interval"]
    assert Measurement(record(status="failed", **flags)).list_flags() == ["oversubscribed"]


@pytest.mark.parametrize(("repeats", "is_missed"), [(None, True), (3, False)])
def test_one_of_several_repeats_may_have_a_wider_interval(repeats, is_missed):
    """Their mean is as narrow as requested when each is sqrt(repeats) times as wide."""
    result = record()
    result.spec["measure"] = {"repeats": repeats, "target": 0.01}
    assert ("target_missed" in throughput.interval_flags(result, Estimate(100.0, 98.5, 101.5))) == is_missed


@pytest.mark.parametrize(("rates", "flags"), [([100, 109, 105], []), ([100, 112, 105], ["repeats_differ"]), ([5], [])])
def test_repeats_that_differ_by_more_than_a_tenth_are_flagged(rates, flags):
    assert throughput.repeats_differ_flags(rates) == flags


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_the_spread_of_step_times_is_over_the_means_of_blocks(count):
    block_s = [0.2 + 0.01 * (7 * n % 11) for n in range(count)]
    spread = Measurement(record(ranks=[rank(0, block_s)])).step_spread()
    if count == 0:
        assert spread == {"step_s_median": None, "step_s_p95": None, "step_cv": None}
        return
    steps_s = np.array(block_s) / 2  # two steps a block
    assert spread["step_s_median"] == pytest.approx(np.median(steps_s))
    assert spread["step_s_p95"] == pytest.approx(np.quantile(steps_s, 0.95))
    assert spread["step_cv"] == (None if count == 1 else pytest.approx(steps_s.std(ddof=1) / steps_s.mean()))
