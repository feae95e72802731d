"""Estimates of how long runs will take."""

import dataclasses
import math

import pytest

from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.measure.progress import RankProgress
from scalebench.sweeps import time_estimate
from scalebench.sweeps.pace import StepEstimate
from scalebench.sweeps.time_estimate import (
    PROBE_PHASES,
    SETUP_S,
    TimeEstimate,
    estimate_left_s,
    estimate_phases,
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


@pytest.mark.parametrize("framework", ["none", "torch", "a new one"])
def test_an_estimate_is_start_up_and_measuring(framework):
    one = simulated_spec(measure={"min_s": 1.0, "max_s": 5.0})
    one.config.strategy.framework = framework
    start_s = SETUP_S.get(framework, 4.0)
    assert estimate_s(one) == (1.0 + start_s, pytest.approx(5.0 + 0.1 + start_s)), "0.1 s of warm-up at the most"
    one.config.measure.probes, one.config.measure.probe_s = True, 2.0
    assert estimate_s(one)[0] == 1.0 + start_s + PROBE_PHASES * 2.0


def test_before_any_run_it_is_the_middle_of_the_estimate():
    assert TimeEstimate().expected_s(spec()) == pytest.approx(15.3)
    cannot = spec()
    cannot.unsupported = "not here"
    assert TimeEstimate().expected_s(cannot) == 0.0


def test_similar_runs_count_first_then_how_far_estimates_were_off():
    estimate = TimeEstimate()
    estimate.record_duration(spec(1), 10.0)
    estimate.record_duration(spec(2), 20.0)
    estimate.record_duration(spec(2), 30.0)
    assert estimate.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert estimate.expected_s(spec(4)) == 20.0, "the same strategy"
    assert estimate.expected_s(spec(2, "other")) == pytest.approx(60 / 3 / 15.3 * 15.3), "what the others took"


def test_a_repeat_has_its_share_of_the_time_and_the_first_one_the_probes():
    measure = {"min_s": 3.0, "max_s": 6.0, "warmup_max_s": 0.0, "probes": True, "probe_s": 2.0, "repeats": 3}
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    probes_s = PROBE_PHASES * 2.0
    assert estimate_s(first) == pytest.approx((1.3 + probes_s, 2.3 + probes_s))
    assert estimate_s(second) == pytest.approx((1.3, 2.3))
    estimate = TimeEstimate()
    estimate.record_duration(first, 2 * (1.8 + probes_s))
    assert estimate.expected_s(second) == pytest.approx(2 * 1.8), "not what the first one took, which had probes"


def test_the_rest_is_its_runs_and_their_pauses():
    paused = spec()
    paused.config.measure.cool_down_s = 5.0
    cannot = spec()
    cannot.unsupported, cannot.config.measure.cool_down_s = "not here", 5.0
    assert TimeEstimate().total_s([spec(), paused, cannot]) == pytest.approx(15.3 + 20.3)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "about 1 s"),
        (89.0, "about 89 s"),
        (90.0, "about 2 min"),
        (5399.0, "about 90 min"),
        (5400.0, "about 1.5 h"),
    ],
)
def test_durations_are_rounded(seconds, words):
    assert format_about(seconds) == words


def step(low_s, high_s=None):
    return StepEstimate(low_s, low_s, low_s if high_s is None else high_s)


MEASURED = {"warmup_steps": 20, "warmup_max_steps": 400, "warmup_max_s": 4.0, "min_s": 1.0, "max_s": 8.0}


@pytest.mark.parametrize(
    ("step_s", "repeats", "phases"),
    [
        # 16 samples validate, of batches of 10, and the forward pass is a third of a step.
        (0.001, 1, {"warmup": (0.02, 0.4), "measure": (3.2, 8.0), "evaluate": 0.001 * 1.6 / 3, "probes": 3.504}),
        (0.1, 1, {"warmup": (2.0, 4.0), "measure": (6.4, 8.0), "evaluate": 0.1 * 1.6 / 3, "probes": 5.9}),
        # Of slow steps five warm up, and few are measured; as many of all repeats together as fit.
        (
            12.0,
            1,
            {"warmup": (60.0, 60.0), "measure": (12.0, 12.0), "evaluate": 12.0 * 1.6 / 3, "probes": (72.0, 144.0)},
        ),
        (1.5, 3, {"warmup": (7.5, 7.5), "measure": (9.0, 9.0), "evaluate": 1.5 * 1.6 / 3, "probes": (9.0, 18.0)}),
    ],
)
def test_the_phases_of_a_run_follow_from_its_steps(step_s, repeats, phases):
    """As runs of 0.07 to 5 s a step have shown, whose probes took 59 and 67 steps, and slow ones 7 to 12."""
    measure = {**MEASURED, "block_s": 0.05, "evaluate": True, "probes": True, "probe_s": 1.0, "repeats": repeats}
    found = estimate_phases(simulated_spec(measure=measure), step_s)
    expected = {name: times if isinstance(times, tuple) else (times, times) for name, times in phases.items()}
    assert found == {name: pytest.approx(times) for name, times in expected.items()}


def test_an_estimate_covers_the_length_of_its_steps():
    """The probes of steps longer than measure.probe_s are fewer, so that the longest steps need not take longest."""
    measure = {**MEASURED, "evaluate": False, "probes": True, "probe_s": 1.0}
    one = simulated_spec(measure=measure)
    totals = [estimate_s(one, step(step_s)) for step_s in (0.9, 1.0, 1.001, 1.2)]
    least_s, most_s = estimate_s(one, step(0.9, 1.2))
    assert totals[2][0] < totals[0][0] and totals[1][1] > totals[3][1]
    assert (least_s, most_s) == pytest.approx((totals[2][0], totals[1][1]))
    started = dataclasses.replace(step(0.1), first_step_s=9.0, start_s=20.0)
    assert estimate_s(one, started)[0] == pytest.approx(estimate_s(one, step(0.1))[0] + 29.0 - SETUP_S["none"])


def test_a_planned_run_is_estimated_from_the_pace_of_this_machine(monkeypatch):
    calls = []
    monkeypatch.setattr(time_estimate, "estimate_step", lambda spec, pace: calls.append(pace) or step(2.0, 8.0))
    estimate, one = TimeEstimate(["of the cache"]), spec()
    assert estimate.range_s(one) == pytest.approx(estimate_s(one, step(2.0, 8.0)))
    likely_s = sum(estimate_s(one, step(2.0))) / 2
    assert estimate.expected_s(one) == pytest.approx(likely_s) and calls == [["of the cache"]]


@pytest.mark.parametrize(
    ("phase", "elapsed_s", "since_s", "left_s"),
    [
        ("warmup", 20.0, 4.0, 26.0 + 20.0 + 40.0),  # five steps, then two, then four for the record's facts
        ("warmup", 90.0, 2.0, 8.0 + 20.0 + 40.0),  # one more step at least
        ("measure", 5.0, 100.0, 40.0),
        ("probes", 0.0, 0.0, 40.0),
        ("setup", 0.0, 0.0, None),
    ],
)
def test_steps_so_far_tell_how_long_a_run_still_takes(phase, elapsed_s, since_s, left_s):
    one = simulated_spec(measure={**MEASURED, "max_s": 20.0, "warmup_max_s": 4.0, "evaluate": False})
    first = RankProgress(0, 1, phase, 100.0, 2, 1.0, elapsed_s, step_s=10.0)
    second = RankProgress(1, 1, "setup", 0.0)
    found = estimate_left_s(one, [second, first], 100.0 + since_s)
    assert found == (None if left_s is None else pytest.approx(left_s))


def test_a_training_is_over_at_its_stop():
    first = RankProgress(0, 1, "measure", 0.0, 2, 1.0, 20.0, step_s=0.5)
    # 48 training samples in batches of 10, twice; four steps more for the facts of its record.
    assert estimate_left_s(training(epochs=20.0), [first], 0.0) == pytest.approx(20 * 4.8 * 0.5 - 20.0 + 2.0)
    assert estimate_left_s(training(seconds=60.0), [first], 0.0) == pytest.approx(42.0)
    assert estimate_left_s(training(seconds=60.0, target=0.1), [first], 0.0) is None
    assert estimate_s(training(epochs=20.0), step(0.5)) == pytest.approx((50.3, 50.3))
    assert estimate_left_s(training(epochs=20.0), [], 0.0) is None


def training(strategy="simulated", gpus=1, size=64, **stop):
    return spec(gpus, strategy, train=TrainSpec(10, stop=StopSpec(**stop)), size=size)


@pytest.mark.parametrize(
    ("stop", "estimate"),
    [
        ({"seconds": 60.0}, (60.3, 60.3)),
        ({"seconds": 60.0, "target": 0.1}, (0.3, 60.3)),
        ({"seconds": 60.0, "epochs": 2.0}, (0.3, 60.3)),
        ({"epochs": 2.0}, (0.3, math.inf)),
    ],
)
def test_a_training_lasts_as_long_as_its_stop_says(stop, estimate):
    assert estimate_s(training(**stop)) == pytest.approx(estimate)
    assert format_range(*estimate_s(training(epochs=2.0))) == "0 s and a training of unknown length"
    assert format_range(1.0, 5.0) == "1 to 5 s" and format_range(95.0, 590.0) == "95 to 590 s"
    assert format_range(95.0, 900.0) == "95 s to 15 min" and format_range(600.0, 900.0) == "10 to 15 min"
    assert format_range(900.0, 9000.0) == "15 min to 2.5 h"


def test_trainings_are_estimated_from_trainings():
    estimate, short, long = TimeEstimate(), training(epochs=2.0), training(epochs=4.0)
    assert not estimate.has_basis(short) and estimate.expected_s(short) == pytest.approx(0.3 + 20.0), "a guess"
    assert estimate.has_basis(spec()) and estimate.has_basis(training(seconds=5.0))
    estimate.record_duration(spec(), 50.0)
    assert not estimate.has_basis(short), "how long its throughput took to measure says nothing of it"
    estimate.record_duration(short, 10.3)
    assert estimate.has_basis(long) and estimate.expected_s(long) == pytest.approx(20.3)
    assert estimate.expected_s(training(epochs=2.0, size=128)) == pytest.approx(20.3)
    assert estimate.expected_s(training(steps=5)) == pytest.approx(0.3 + 10.0 * 50 / 96)
    assert estimate.expected_s(spec()) == 50.0
    assert not estimate.has_basis(training("other", epochs=2.0))
