"""A training with a stop of its own, on a clock of the test and with a strategy that only records its calls, and in
sessions of the strategy that sleeps as configured."""

import dataclasses
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import FINAL_LOSS_STEPS, RankRecord
from scalebench.core.spec import DatasetSpec, MeasureSpec, ModelSpec, StopSpec, TrainSpec
from scalebench.measure import stopping_rule
from scalebench.measure.progress import ProgressFile
from scalebench.measure.session import Session
from scalebench.measure.timed_loop import StepBlock, TimedLoop, fixed_length_phase
from scalebench.measure.train_to_target import Diverged, DivergenceCheck, TrainingRun
from scalebench.strategies.base import LossPart
from scalebench.strategies.simulated import Simulated
from scalebench.workloads.source import Source
from tests.builders.runs import simulated_spec

BATCH = 4
BASE = simulated_spec()


class Trainer:
    """A rank whose step number k takes `step_s(k)` and has a loss of 1/k; evaluations and broadcasts take long."""

    def __init__(self, rank=0, from_rank_0=None, **changes):
        self.place, self.spec = SimpleNamespace(rank=rank), SimpleNamespace(device="cpu")
        self.now_s, self.steps = 0.0, 0
        self.broadcasts = []
        self.rates = []
        self.evaluations = []  # (after which step, number of the first sample)
        self._from_rank_0 = from_rank_0
        self.step_s = changes.get("step_s", lambda number: 1.0)
        self.loss = changes.get("loss", lambda number: 1 / number)
        self.metric = changes.get("metric", lambda number: 1 / number)

    def broadcast(self, value):
        self.now_s += 100.0
        self.broadcasts.append(value)
        return value if self._from_rank_0 is None else self._from_rank_0.pop(0)

    def synchronize(self):
        pass

    def set_learning_rate(self, rate):
        self.rates.append((self.steps, rate))

    def peak_memory_bytes(self):
        return [self.steps + 1000 * len(self.evaluations)]

    def evaluate(self, source):
        self.now_s += 1000.0
        self.evaluations.append((self.steps, source.first))
        return {"mse": self.metric(self.steps) / (1 if source.first else 2)}

    def train(self, loop, source):
        for batch in loop:
            self.steps += 1
            self.now_s += self.step_s(self.steps)
            loop.done(LossPart(self.loss(self.steps) * batch.samples, batch.samples))


def source(samples=40, first=0):
    rows = np.zeros((samples, 1), np.float32)
    return Source(rows, rows, global_batch=BATCH, seed=0, replica=0, replicas=1, first=first)


def training_spec(**train):
    spec = dataclasses.replace(BASE)
    stop = StopSpec(**train.pop("stop", {}))
    spec.config = dataclasses.replace(BASE.config, train=TrainSpec(BATCH, stop=stop, **train))
    spec.global_batch = BATCH
    return spec


def train(trainer=None, samples=40, warm=3, block=5, evaluates=True, **options):
    trainer = trainer or Trainer()
    data = source(samples)
    evaluated = (source(50, 40), source(10)) if evaluates else (None, None)
    training = TrainingRun(training_spec(**options), trainer, data, evaluated, lambda training: None)
    settings = MeasureSpec(block_s=float(block))
    warmup = fixed_length_phase("warmup", warm, 1)
    measure = stopping_rule.create_training_phase(trainer, settings, training.steps_between_points, None)
    loop = TimedLoop(trainer, data, [warmup, measure], clock=lambda: trainer.now_s, observer=training)
    trainer.train(loop, data)
    blocks = [*map(round, measure.series.seconds)]
    points = [point.step for point in training.curve]
    return SimpleNamespace(
        training=training, trainer=trainer, warm=warmup.series.seconds, blocks=blocks, points=points,
        block_steps=measure.series.steps,
    )  # fmt: skip


@pytest.mark.parametrize(("options", "points", "by"), [
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
])  # fmt: skip
def test_points_and_the_end_are_as_requested(options, points, by):
    run = train(**options)
    assert (run.points, run.training.stopped_by, run.trainer.steps) == (points, by, points[-1])


def test_limits_in_seconds_count_at_the_end_of_a_block():
    """Of three steps of warm-up, the first of which does not count, and blocks of five. Rank 0 decides for all."""
    for options, points, first_s in (
        ({"stop": {"seconds": 8.5}, "evaluate_epochs": None}, [13], 12.0),
        ({"stop": {"seconds": 7.0}, "evaluate_epochs": None}, [8], 7.0),
        # of four, as 27 are left
        ({"stop": {"steps": 30}, "evaluate_epochs": None, "evaluate_s": 7.0}, [11, 19, 27, 30], 10.0),
        ({"stop": {"steps": 30}, "evaluate_s": 7.0}, [8, 10, 20, 30], 7.0),
    ):
        run = train(**options)
        assert (run.points, run.training.curve[0].train_s) == (points, first_s)
        assert run.training.stopped_by == next(iter(options["stop"]))
    slow = Trainer(1, [0.0, 0.0, 0.0, 1.0, 2.0], step_s=lambda number: 100.0)
    assert train(slow, warm=50, stop={"seconds": 8.5}, evaluate_epochs=None).points == [4, 5]


def test_a_point_has_the_state_of_the_training():
    """42 samples in batches of 4: the last of an epoch has 2. Time between blocks does not count."""
    run = train(samples=42, stop={"steps": 13}, schedule="linear")
    first, last = run.training.curve
    assert (first.step, first.epochs, first.samples, first.train_s) == (11, 1.0, 42, 10.0)
    assert (last.step, last.samples, last.train_s) == (13, 50, 12.0)
    assert last.epochs == pytest.approx(50 / 42)
    assert first.loss == pytest.approx((sum(4 / k for k in range(1, 11)) + 2 / 11) / 42)
    assert (first.loss_samples, last.loss_samples) == (42, 8)
    assert last.loss == pytest.approx((1 / 12 + 1 / 13) / 2)
    assert last.learning_rate == pytest.approx(1e-3 / 13), "the one that step 13 was spec with"
    assert first.metrics == {"mse": 1 / 11} and first.train_metrics == {"mse": 1 / 22}
    assert run.trainer.evaluations == [(11, 40), (11, 0), (13, 40), (13, 0)]
    assert run.training.first_step_s == 1.0
    run = train(Trainer(step_s=lambda k: 50.0 if k == 1 else 1.0), stop={"steps": 40, "seconds": 1e6})
    assert run.training.curve[-1].train_s == 39.0 and run.training.first_step_s == 50.0
    assert run.trainer.now_s > 3000.0, "a broadcast takes 100 s, an evaluation 1000 s"
    assert train(stop={"epochs": 2}).training.peak_memory_bytes == [10], "of steps, not of evaluations"
    early = train(stop={"steps": 3}, evaluate_epochs=0.1).training
    assert early.peak_memory_bytes == [2002], "the first step is left out"
    (point,) = train(evaluates=False, stop={"epochs": 1}).training.curve
    assert (point.metrics, point.train_metrics) == ({}, {}) and point.loss is not None
    silent = training_spec(stop={"steps": 3})
    silent.config.measure = dataclasses.replace(silent.config.measure, evaluate=False)
    trainer, data = Trainer(), source()
    training = TrainingRun(silent, trainer, data, (data, data), lambda training: None)
    trainer.train(TimedLoop(trainer, data, [fixed_length_phase("one", 9, 1)], observer=training), data)
    assert trainer.evaluations == [] and training.curve[-1].metrics == {}


def test_blocks_fit_between_points_and_only_full_ones_are_kept():
    run = train(stop={"epochs": 4}, block=7)
    assert run.block_steps == 5, "two of them to an epoch of ten steps, where seven would be one and a part"
    # Three steps of warm-up leave seven of the first epoch: a full block, and two in a shortened one.
    assert run.blocks == [5] + [5, 5] * 3
    assert run.training.curve[-1].train_s == 39.0
    assert train(stop={"steps": 9}, block=100).block_steps == 6, "until the end"
    assert train(stop={"seconds": 9}, evaluate_epochs=None, block=4).block_steps == 4
    run = train(warm=50, stop={"epochs": 2})
    assert run.points == [10, 20] and run.blocks == [] and len(run.warm) == 20, "it ends within warm-up"


def test_the_learning_rate_is_set_before_each_step_where_it_changes():
    assert train(stop={"epochs": 1}).trainer.rates == [], "the strategy begins with its only one"
    run = train(stop={"epochs": 3}, schedule="step", decay_epochs=[1.0, 2.0], decay=0.5)
    assert run.trainer.rates == [(0, 1e-3), (10, 5e-4), (20, 2.5e-4)]
    run = train(stop={"steps": 6}, warmup_epochs=0.2)
    assert run.trainer.rates == [(0, pytest.approx(1e-3 / 3)), (1, pytest.approx(2e-3 / 3)), (2, 1e-3)]


def test_a_loss_or_metric_that_is_not_finite_ends_the_training_and_is_named():
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(Diverged, match=f"the loss of step 17 is {bad:g}; lower train.learning_rate"):
            train(Trainer(loss=lambda number, bad=bad: bad if number == 17 else 1.0), stop={"epochs": 3})
    trainer = Trainer(metric=lambda number: math.nan if number == 20 else 1.0)
    with pytest.raises(Diverged, match="mse is nan after step 20; lower"):
        train(trainer, stop={"epochs": 3})
    for loss, named in (("mse", "mine:build"), ("module", "mine:build"), ("mine:loss", "mine:loss")):
        check = DivergenceCheck(ModelSpec("mine:build", torch="mine:build", loss=loss))
        with pytest.raises(Diverged, match=rf"^the loss of step 1 with {named} is nan; check the samples, "):
            check.on_block(StepBlock(2, 1.0, [(math.nan, 2), (math.nan, 2)]))
        check.on_block(StepBlock(2, 1.0, [(3.0, 2), (4.0, 2)]))
        with pytest.raises(Diverged, match=rf"^the loss of step 4 with {named} is nan; lower the learning rate$"):
            check.on_block(StepBlock(2, 1.0, [(3.0, 2), (math.nan, 2)]))


def run_session(folder, stop=None, options=None, measure=None, size=640, share=0.25):
    train = TrainSpec(batch_per_device=10, stop=StopSpec(**(stop or {})))
    data = DatasetSpec("materials", size=size)
    spec = simulated_spec(1, {"step_s": 0.001, **(options or {})}, measure, train=train, dataset=data)
    spec.config.dataset = dataclasses.replace(data, validation_share=share)
    record = RankRecord(0, "here", os.getpid())
    Session(spec, Simulated(spec, 0), record, ProgressFile(folder, 0, os.getpid())).run()
    return record


def test_the_last_loss_of_a_session_is_of_the_same_steps_at_any_speed(tmp_path):
    last = range(61 - FINAL_LOSS_STEPS, 61)
    for step_s in (0.001, 0.02):
        record = run_session(tmp_path, {"steps": 60}, {"step_s": step_s})
        mean = sum(1 / step for step in last) / len(last)
        assert record.last_loss_sum / record.last_loss_samples == pytest.approx(mean)
        assert [point.step for point in record.curve] == [48, 60] and record.stopped_by == "steps"
        blocks_s = sum(record.warmup_block_s[1:]) + sum(record.block_s)
        assert 0 < blocks_s <= record.curve[-1].train_s + 1e-9, "and what was cut short"
    record = run_session(tmp_path, {"steps": 3}, measure={"probes": True})
    assert not record.block_s and record.probes.sync_on_s, "over within warm-up, and probes come nevertheless"
    assert record.last_loss_sum / record.last_loss_samples == pytest.approx(record.curve[-1].loss), "all that there are"


def test_a_session_fails_with_a_loss_that_is_no_number_or_too_few_samples_to_validate(tmp_path):
    """How many samples a file has is not known before."""
    for stop in ({"epochs": 3}, {}):  # and of a run that measures throughput
        with pytest.raises(Diverged, match=r"^the loss of step 30 is nan; lower train.learning_rate$"):
            run_session(tmp_path, stop, {"diverge_step": 29}, {"min_s": 9.0, "max_s": 9.0})
    with pytest.raises(InputError, match="fewer samples to validate than replicas"):
        run_session(tmp_path, {"target": 0.1, "steps": 40}, share=0.0)
