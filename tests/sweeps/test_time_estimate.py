"""Estimates of how long runs will take."""

from __future__ import annotations

import math

import pytest

from scalebench.core.spec import RunSpec, StopSpec, TrainSpec
from scalebench.sweeps.time_estimate import PROBE_PHASES, SETUP_S, TimeEstimate, estimate_s, format_about, format_range
from tests.builders.runs import simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0}  # with a start of 0.3 s: 15.3 s in the middle


def spec(gpus: int = 1, strategy: str = "simulated", **changes: object) -> RunSpec:
    made = simulated_spec(gpus=gpus, measure=MEASURE, **changes)
    made.config.strategy.name = strategy
    return made


@pytest.mark.parametrize("framework", ["none", "torch", "a new one"])
def test_an_estimate_is_start_up_and_measuring(framework: str) -> None:
    one = simulated_spec(measure={"min_s": 1.0, "max_s": 5.0})
    one.config.strategy.framework = framework
    start_s = SETUP_S.get(framework, 4.0)
    assert estimate_s(one) == (1.0 + start_s, pytest.approx(5.0 + 0.1 + start_s)), "0.1 s of warm-up at the most"
    one.config.measure.probes, one.config.measure.probe_s = True, 2.0
    assert estimate_s(one)[0] == 1.0 + start_s + PROBE_PHASES * 2.0


def test_before_any_run_it_is_the_middle_of_the_estimate() -> None:
    assert TimeEstimate().expected_s(spec()) == pytest.approx(15.3)
    cannot = spec()
    cannot.unsupported = "not here"
    assert TimeEstimate().expected_s(cannot) == 0.0


def test_similar_runs_count_first_then_how_far_estimates_were_off() -> None:
    estimate = TimeEstimate()
    estimate.record_duration(spec(1), 10.0)
    estimate.record_duration(spec(2), 20.0)
    estimate.record_duration(spec(2), 30.0)
    assert estimate.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert estimate.expected_s(spec(4)) == 20.0, "the same strategy"
    assert estimate.expected_s(spec(2, "other")) == pytest.approx(60 / 3 / 15.3 * 15.3), "what the others took"


def test_a_repeat_has_its_share_of_the_time_and_the_first_one_the_probes() -> None:
    measure = {"min_s": 3.0, "max_s": 6.0, "warmup_max_s": 0.0, "probes": True, "probe_s": 2.0, "repeats": 3}
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    probes_s = PROBE_PHASES * 2.0
    assert estimate_s(first) == pytest.approx((1.3 + probes_s, 2.3 + probes_s))
    assert estimate_s(second) == pytest.approx((1.3, 2.3))
    estimate = TimeEstimate()
    estimate.record_duration(first, 2 * (1.8 + probes_s))
    assert estimate.expected_s(second) == pytest.approx(2 * 1.8), "not what the first one took, which had probes"


def test_the_rest_is_its_runs_and_their_pauses() -> None:
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
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert format_about(seconds) == words


def training(strategy: str = "simulated", gpus: int = 1, size: int = 64, **stop: float) -> RunSpec:
    return spec(gpus, strategy, train=TrainSpec(10, stop=StopSpec(**stop)), size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "estimate"),
    [
        ({"seconds": 60.0}, (60.3, 60.3)),
        ({"seconds": 60.0, "target": 0.1}, (0.3, 60.3)),
        ({"seconds": 60.0, "epochs": 2.0}, (0.3, 60.3)),
        ({"epochs": 2.0}, (0.3, math.inf)),
    ],
)
def test_a_training_lasts_as_long_as_its_stop_says(stop: dict[str, float], estimate: tuple[float, float]) -> None:
    assert estimate_s(training(**stop)) == pytest.approx(estimate)
    assert format_range(*estimate_s(training(epochs=2.0))) == "0 s and a training of unknown length"
    assert format_range(1.0, 5.0) == "1 to 5 s"


def test_trainings_are_estimated_from_trainings() -> None:
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
