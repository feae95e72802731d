"""A training on its way to a stop, with a clock of our own and a strategy that only notes what is asked of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebench.core.result import CurvePoint
from scalebench.core.spec import MeasureSpec, RunSpec, StopSpec, TrainSpec
from scalebench.measure import stopping_rule
from scalebench.measure.timed_loop import Block, TimedLoop, fixed
from scalebench.measure.train_to_target import Diverged, Finite, Training
from scalebench.strategies.base import LossPart
from scalebench.workloads.source import Source
from tests.builders.runs import simulated_spec

BATCH = 4
BASE = simulated_spec()


class Trainer:
    """A rank whose update number k takes `step_s(k)` and has a loss of 1/k; looks and talk take long."""

    def __init__(self, rank: int = 0, heard: list[float] | None = None, **changes: Any) -> None:
        self.place, self.now_s, self.steps = SimpleNamespace(rank=rank), 0.0, 0
        self.said: list[float] = []
        self.rates: list[tuple[int, float]] = []
        self.looks: list[tuple[int, int]] = []  # after which update, and of which samples: the first one's number
        self._heard = heard
        self.step_s: Callable[[int], float] = changes.get("step_s", lambda number: 1.0)
        self.loss: Callable[[int], float] = changes.get("loss", lambda number: 1 / number)
        self.metric: Callable[[int], float] = changes.get("metric", lambda number: 1 / number)

    def broadcast(self, value: float) -> float:
        self.now_s += 100.0
        self.said.append(value)
        return value if self._heard is None else self._heard.pop(0)

    def synchronize(self) -> None:
        pass

    def set_learning_rate(self, rate: float) -> None:
        self.rates.append((self.steps, rate))

    def peak_memory_bytes(self) -> list[int | None]:
        return [self.steps + 1000 * len(self.looks)]

    def evaluate(self, source: Source) -> dict[str, float]:
        self.now_s += 1000.0
        self.looks.append((self.steps, source.first))
        return {"mse": self.metric(self.steps) / (1 if source.first else 2)}

    def train(self, loop: TimedLoop, source: Source) -> None:
        for batch in loop:
            self.steps += 1
            self.now_s += self.step_s(self.steps)
            loop.done(LossPart(self.loss(self.steps) * batch.samples, batch.samples))


@dataclasses.dataclass
class Trained:
    training: Training
    trainer: Trainer
    warm: list[float]
    blocks: list[int]
    block_steps: int


def source(samples: int = 40, first: int = 0) -> Source:
    rows = np.zeros((samples, 1), np.float32)
    return Source(rows, rows, global_batch=BATCH, seed=0, replica=0, replicas=1, first=first)


def run_spec(**train: Any) -> RunSpec:
    made = dataclasses.replace(BASE)
    stop = StopSpec(**train.pop("stop", {}))
    made.config = dataclasses.replace(BASE.config, train=TrainSpec(BATCH, stop=stop, **train))
    made.global_batch = BATCH
    return made


def trained(
    trainer: Trainer | None = None, samples: int = 40, warm: int = 3, block: int = 5, looks: bool = True, **train: Any
) -> Trained:
    trainer = trainer or Trainer()
    data = source(samples)
    looked = (source(50, 40), source(10)) if looks else (None, None)
    training = Training(run_spec(**train), trainer, data, looked, lambda training: None)  # type: ignore[arg-type]
    settings = MeasureSpec(block_s=float(block))
    warmup = fixed("warmup", warm, 1)
    measure = stopping_rule.until_over(trainer, settings, training.between, None)  # type: ignore[arg-type]
    loop = TimedLoop(trainer, data, [warmup, measure], clock=lambda: trainer.now_s, course=training)  # type: ignore[arg-type]
    trainer.train(loop, data)
    return Trained(
        training, trainer, warmup.series.seconds, [*map(round, measure.series.seconds)], measure.series.steps
    )


def steps_of(curve: list[CurvePoint]) -> list[int]:
    return [point.step for point in curve]


@pytest.mark.parametrize(
    ("train", "points", "by"),
    [
        ({"stop": {"epochs": 3}}, [10, 20, 30], "epochs"),
        ({"stop": {"epochs": 2.5}}, [10, 20, 25], "epochs"),
        ({"stop": {"epochs": 0.1}}, [1], "epochs"),
        ({"stop": {"epochs": 1e-9}}, [1], "epochs"),
        ({"stop": {"epochs": 1}, "evaluate_epochs": 0.5}, [5, 10], "epochs"),
        ({"stop": {"epochs": 1}, "evaluate_epochs": 0.25}, [2, 5, 8, 10], "epochs"),
        ({"stop": {"epochs": 7}, "evaluate_epochs": 3}, [30, 60, 70], "epochs"),
        ({"stop": {"steps": 4}, "evaluate_epochs": 1e-12}, [1, 2, 3, 4], "steps"),
        ({"stop": {"steps": 1}}, [1], "steps"),
        ({"stop": {"steps": 33}, "evaluate_epochs": None}, [33], "steps"),
        ({"stop": {"steps": 10, "epochs": 1}}, [10], "epochs"),
        ({"stop": {"steps": 9, "epochs": 1}}, [9], "steps"),
        ({"stop": {"steps": 90, "epochs": 1}}, [10], "epochs"),
        ({"stop": {"target": 0.1, "epochs": 3}}, [10], "target"),
        ({"stop": {"target": 0.051, "epochs": 3}}, [10, 20], "target"),
        ({"stop": {"target": 1 / 30, "epochs": 3}}, [10, 20, 30], "target"),
        ({"stop": {"target": 1e-9, "epochs": 3}}, [10, 20, 30], "epochs"),
    ],
)
def test_points_and_the_end_are_where_they_were_asked_for(train: dict[str, Any], points: list[int], by: str) -> None:
    found = trained(**train)
    assert steps_of(found.training.curve) == points
    assert (found.training.stopped_by, found.trainer.steps) == (by, points[-1])


def test_seconds_end_it_with_the_block_that_they_are_over_in() -> None:
    """Of three updates of warm-up, the first of which does not count, and blocks of five."""
    found = trained(stop={"seconds": 8.5}, evaluate_epochs=None)
    assert steps_of(found.training.curve) == [13] and found.training.stopped_by == "seconds"
    assert found.training.curve[0].train_s == 12.0
    assert steps_of(trained(stop={"seconds": 7.0}, evaluate_epochs=None).training.curve) == [8]


def test_points_by_seconds_of_training() -> None:
    found = trained(stop={"steps": 30}, evaluate_epochs=None, evaluate_s=7.0)
    assert steps_of(found.training.curve) == [11, 19, 27, 30], "at the end of the block: of four, as 27 are left"
    assert trained(stop={"steps": 30}, evaluate_s=7.0).training.curve[0].train_s == 7.0
    assert steps_of(trained(stop={"steps": 30}, evaluate_s=7.0).training.curve) == [8, 10, 20, 30]


def test_seconds_are_for_rank_0_to_say() -> None:
    """Though this one's own updates take a hundred times as long."""
    slow = Trainer(1, [0.0, 0.0, 0.0, 1.0, 2.0], step_s=lambda number: 100.0)
    assert steps_of(trained(slow, warm=50, stop={"seconds": 8.5}, evaluate_epochs=None).training.curve) == [4, 5]


def test_a_point_holds_where_the_training_stood() -> None:
    """42 samples in batches of 4: the last of an epoch has 2."""
    found = trained(samples=42, stop={"steps": 13}, schedule="linear")
    first, last = found.training.curve
    assert (first.step, first.epochs, first.samples, first.train_s) == (11, 1.0, 42, 10.0)
    assert (last.step, last.samples, last.train_s) == (13, 50, 12.0)
    assert last.epochs == pytest.approx(50 / 42)
    assert first.loss == pytest.approx((sum(4 / k for k in range(1, 11)) + 2 / 11) / 42)
    assert (first.loss_samples, last.loss_samples) == (42, 8)
    assert last.loss == pytest.approx((1 / 12 + 1 / 13) / 2)
    assert last.learning_rate == pytest.approx(1e-3 / 13), "the one that update 13 was made with"
    assert first.metrics == {"mse": 1 / 11} and first.train_metrics == {"mse": 1 / 22}
    assert found.trainer.looks == [(11, 40), (11, 0), (13, 40), (13, 0)]
    assert found.training.first_step_s == 1.0


def test_nothing_between_blocks_is_training() -> None:
    """Talk takes 100 s and a look 1000."""
    found = trained(Trainer(step_s=lambda k: 50.0 if k == 1 else 1.0), stop={"steps": 40, "seconds": 1e6})
    assert found.training.curve[-1].train_s == 39.0 and found.training.first_step_s == 50.0
    assert found.trainer.now_s > 3000.0


def test_blocks_are_fitted_in_between_points_and_whole_ones_are_kept() -> None:
    found = trained(stop={"epochs": 4}, block=7)
    assert found.block_steps == 5, "two of them to an epoch of ten updates, where seven would be one and a part"
    # Three updates of warm-up leave seven of the first epoch: a whole block, and two in one cut short.
    assert found.blocks == [5] + [5, 5] * 3
    assert found.training.curve[-1].train_s == 39.0
    assert trained(stop={"steps": 9}, block=100).block_steps == 6, "until the end"
    assert trained(stop={"seconds": 9}, evaluate_epochs=None, block=4).block_steps == 4


def test_a_training_that_is_over_within_warm_up_measures_nothing() -> None:
    found = trained(warm=50, stop={"epochs": 2})
    assert steps_of(found.training.curve) == [10, 20] and found.blocks == [] and len(found.warm) == 20


def test_without_anything_to_look_at_a_point_still_has_its_loss() -> None:
    found = trained(looks=False, stop={"epochs": 1})
    (point,) = found.training.curve
    assert (point.metrics, point.train_metrics) == ({}, {}) and point.loss is not None
    silent = run_spec(stop={"steps": 3})
    silent.config.measure = dataclasses.replace(silent.config.measure, evaluate=False)
    trainer, data = Trainer(), source()
    training = Training(silent, trainer, data, (data, data), lambda training: None)  # type: ignore[arg-type]
    trainer.train(TimedLoop(trainer, data, [fixed("one", 9, 1)], course=training), data)  # type: ignore[arg-type]
    assert trainer.looks == [] and training.curve[-1].metrics == {}


def test_the_learning_rate_is_set_before_each_update_that_has_another() -> None:
    assert trained(stop={"epochs": 1}).trainer.rates == [], "the strategy begins with its only one"
    found = trained(stop={"epochs": 3}, schedule="step", decay_epochs=[1.0, 2.0], decay=0.5)
    assert found.trainer.rates == [(0, 1e-3), (10, 5e-4), (20, 2.5e-4)]
    found = trained(stop={"steps": 6}, warmup_epochs=0.2)
    assert found.trainer.rates == [(0, pytest.approx(1e-3 / 3)), (1, pytest.approx(2e-3 / 3)), (2, 1e-3)]


def test_memory_is_that_of_updates_and_not_of_looks() -> None:
    assert trained(stop={"epochs": 2}).training.peak_memory_bytes == [10]
    assert trained(stop={"steps": 3}, evaluate_epochs=0.1).training.peak_memory_bytes == [2002], "not of the first one"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_it_with_the_updates_number(bad: float) -> None:
    with pytest.raises(Diverged, match=f"the loss of update 17 is {bad:g}; lower train.learning_rate"):
        trained(Trainer(loss=lambda number: bad if number == 17 else 1.0), stop={"epochs": 3})


def test_a_metric_that_is_no_number_ends_it_too() -> None:
    trainer = Trainer(metric=lambda number: math.nan if number == 20 else 1.0)
    with pytest.raises(Diverged, match="mse is nan after update 20; lower"):
        trained(trainer, stop={"epochs": 3})


def test_a_run_that_measures_its_throughput_is_watched_as_well() -> None:
    course = Finite()
    course.updated()
    course.ended(Block(2, 1.0, [(0.5, 4), (0.5, 4)]))
    assert (course.room(), course.over) == (None, False)
    with pytest.raises(Diverged, match="of update 4 is inf"):
        course.ended(Block(2, 1.0, [(0.5, 4), (math.inf, 4)]))


STOPS = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.floats(0.05, 4.0),
        "steps": st.integers(1, 60),
        "seconds": st.floats(0.5, 60.0),
        "target": st.floats(0.01, 1.0),
    },
).filter(lambda stop: set(stop) & {"epochs", "steps", "seconds"})


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    stop=STOPS, every=st.none() | st.floats(0.05, 3.0), every_s=st.none() | st.floats(0.5, 20.0),
    samples=st.integers(4, 50), warm=st.integers(1, 20), block=st.integers(1, 12), slow=st.floats(0.1, 3.0),
)  # fmt: skip
def test_whatever_is_asked_for(
    stop: dict[str, Any], every: float | None, every_s: float | None, samples: int, warm: int, block: int, slow: float
) -> None:
    """Every update counts once, no point is missed, and a second rank with another clock does all the same."""
    asked = {"stop": stop, "evaluate_epochs": every, "evaluate_s": every_s}
    first = trained(Trainer(), samples, warm, block, **asked)
    other = trained(Trainer(1, list(first.trainer.said), step_s=lambda k: slow), samples, warm, block, **asked)
    assert other.trainer.looks == first.trainer.looks and other.trainer.steps == first.trainer.steps
    assert other.training.stopped_by == first.training.stopped_by

    training, steps = first.training, first.trainer.steps
    data, found = source(samples), steps_of(training.curve)
    assert found == sorted(set(found)) and found[-1] == steps and training.over
    ends = [end for end in (stop.get("steps"), _updates(stop.get("epochs"), data)) if end is not None]
    assert steps <= min(ends, default=math.inf)
    if every is not None:
        per = max(1.0, every * data.steps_per_epoch)
        multiples = {round(m * per) for m in range(1, steps + 2) if round(m * per) <= steps}
        assert multiples <= set(found)
    if every_s is None:
        assert every is not None or found == [steps]
    assert training.curve[-1].train_s == pytest.approx(steps - 1), "all but the first"
    assert sum(point.loss_samples for point in training.curve) == training.curve[-1].samples
    assert set(first.blocks) <= {first.block_steps}, "whole ones alone"
    reason = training.stopped_by
    if reason in ("steps", "epochs"):
        assert steps == min(ends)
    elif reason == "seconds":
        assert training.train_s >= stop["seconds"] and training.train_s - stop["seconds"] < max(1, first.block_steps)
    else:
        assert reason == "target" and training.curve[-1].metrics["mse"] <= stop["target"]
    reached = [point.step for point in training.curve if point.metrics["mse"] <= stop.get("target", -1.0)]
    assert reached in ([], [steps]), "it ends at the first point that is as good"


def _updates(epochs: float | None, data: Source) -> int | None:
    return None if epochs is None else max(1, round(epochs * data.steps_per_epoch))
