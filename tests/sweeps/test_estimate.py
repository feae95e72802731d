"""Estimates of how long runs will take."""

import math

import pytest

from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.sweeps.estimate import (
    PROBE_PHASES,
    TimeEstimate,
    estimate_s,
    format_about,
    format_range,
)
from tests.builders.runs import simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0}  # with a start of 0.3 s: 15.3 s in the middle


def spec(gpus=1, strategy="simulated", **changes):
    made = simulated_spec(gpus=gpus, measure=MEASURE, **changes)
    made.config.strategy.name = strategy
    return made


def test_similar_runs_count_before_the_settings():
    cannot = spec()
    cannot.unsupported = "not here"
    for each, expected_s in ((spec(), 15.3), (cannot, 0.0)):  # the middle of the range
        assert TimeEstimate().expected_s(each) == pytest.approx(expected_s)
    estimate = TimeEstimate()
    estimate.record_duration(spec(1), 10.0)
    estimate.record_duration(spec(2), 20.0)
    estimate.record_duration(spec(2), 30.0)
    assert estimate.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert estimate.expected_s(spec(4)) == 20.0, "the same strategy"
    assert estimate.expected_s(spec(2, "other")) == pytest.approx(15.3)


def test_a_repeat_has_its_share_of_the_time_and_the_first_one_the_probes():
    measure = {"min_s": 3.0, "max_s": 6.0, "warmup_max_s": 0.0, "probes": True, "probe_s": 2.0, "repeats": 3}
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    probes_s = PROBE_PHASES * 2.0
    assert estimate_s(first) == pytest.approx((1.3 + probes_s, 2.3 + probes_s))
    assert estimate_s(second) == pytest.approx((1.3, 2.3))
    estimate = TimeEstimate()
    estimate.record_duration(first, 2 * (1.8 + probes_s))
    assert estimate.expected_s(second) == pytest.approx(1.8), "not what the first one took, which had probes"


def test_durations_have_one_unit():
    words = {0.0: "about 1 s", 89.0: "about 89 s", 90.0: "about 1.5 min", 5399.0: "about 90 min", 5400.0: "about 1.5 h"}
    assert {seconds: format_about(seconds) for seconds in words} == words
    assert format_range(1.0, 5.0) == "1 to 5 s" and format_range(2.2, 2.4) == "2 s"
    assert format_range(30.0, 900.0) == "0.5 to 15 min" and format_range(900.0, 9000.0) == "0.2 to 2.5 h"


def training(strategy="simulated", gpus=1, size=64, **stop):
    return spec(gpus, strategy, train=TrainSpec(10, stop=StopSpec(**stop)), size=size)


def test_a_training_lasts_as_long_as_its_stop_says():
    for stop, estimate in (
        ({"seconds": 60.0}, (60.3, 60.3)),
        ({"seconds": 60.0, "target": 0.1}, (0.3, 60.3)),
        ({"seconds": 60.0, "epochs": 2.0}, (0.3, 60.3)),
        ({"epochs": 2.0}, (0.3, math.inf)),
    ):
        assert estimate_s(training(**stop)) == pytest.approx(estimate)
        assert format_range(*estimate_s(training(epochs=2.0))) == "0 s or more, unknown until a run has ended"


def test_trainings_are_estimated_from_trainings_with_the_same_end():
    estimate, short = TimeEstimate(), training(epochs=2.0)
    assert not estimate.has_basis(short) and estimate.expected_s(short) == pytest.approx(0.3 + 20.0), "a guess"
    assert estimate.has_basis(spec()) and estimate.has_basis(training(seconds=5.0))
    estimate.record_duration(spec(), 50.0)
    assert not estimate.has_basis(short), "how long its throughput took to measure says nothing of it"
    estimate.record_duration(short, 10.3)
    assert estimate.has_basis(short) and estimate.expected_s(training(gpus=2, epochs=2.0)) == 10.3
    assert estimate.expected_s(spec()) == 50.0
    for other in (training(epochs=4.0), training(epochs=2.0, size=128), training("other", epochs=2.0)):
        assert not estimate.has_basis(other)
