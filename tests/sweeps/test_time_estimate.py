"""How long runs will take."""

from __future__ import annotations

import math

import pytest

from scalebench.core.spec import RunSpec, StopSpec, TrainSpec
from scalebench.sweeps.time_estimate import PROBES, SETUP_S, Outlook, between, estimate_s, in_words
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
    assert estimate_s(one)[0] == 1.0 + start_s + PROBES * 2.0


def test_before_any_run_it_is_the_middle_of_the_estimate() -> None:
    assert Outlook().expected_s(spec()) == pytest.approx(15.3)
    cannot = spec()
    cannot.unsupported = "not here"
    assert Outlook().expected_s(cannot) == 0.0


def test_runs_alike_say_most_and_others_by_how_far_they_were_off() -> None:
    outlook = Outlook()
    outlook.took(spec(1), 10.0)
    outlook.took(spec(2), 20.0)
    outlook.took(spec(2), 30.0)
    assert outlook.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert outlook.expected_s(spec(4)) == 20.0, "the same strategy"
    assert outlook.expected_s(spec(2, "other")) == pytest.approx(60 / 3 / 15.3 * 15.3), "what the others took"


def test_the_rest_is_its_runs_and_their_pauses() -> None:
    paused = spec()
    paused.config.measure.cool_down_s = 5.0
    cannot = spec()
    cannot.unsupported, cannot.config.measure.cool_down_s = "not here", 5.0
    assert Outlook().rest_s([spec(), paused, cannot]) == pytest.approx(15.3 + 20.3)


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
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


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
    assert between(*estimate_s(training(epochs=2.0))) == "0 s and a training of unknown length"
    assert between(1.0, 5.0) == "1 to 5 s"


def test_trainings_are_told_by_trainings() -> None:
    outlook, short, long = Outlook(), training(epochs=2.0), training(epochs=4.0)
    assert not outlook.knows(short) and outlook.expected_s(short) == pytest.approx(0.3 + 20.0), "a guess"
    assert outlook.knows(spec()) and outlook.knows(training(seconds=5.0))
    outlook.took(spec(), 50.0)
    assert not outlook.knows(short), "how long its throughput took to measure says nothing of it"
    outlook.took(short, 10.3)
    assert outlook.knows(long) and outlook.expected_s(long) == pytest.approx(20.3)
    assert outlook.expected_s(training(epochs=2.0, size=128)) == pytest.approx(20.3)
    assert outlook.expected_s(training(steps=5)) == pytest.approx(0.3 + 10.0 * 50 / 96)
    assert outlook.expected_s(spec()) == 50.0
    assert not outlook.knows(training("other", epochs=2.0))
