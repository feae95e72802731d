"""A training with a stop of its own: its learning rate, the points of its curve, and when it is over.

Everything here runs between the timed blocks, except changes of the learning rate, which may come with every step and
are timed with it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from scalebench.core.result import FINAL_LOSS_STEPS, CurvePoint, reaches_target
from scalebench.core.spec import ModelSpec, RunSpec
from scalebench.measure.timed_loop import StepBlock
from scalebench.strategies.base import Strategy
from scalebench.workloads import user_code
from scalebench.workloads.learning_rate import LearningRateSchedule, list_step_limits
from scalebench.workloads.source import Source

KEEP_TRAINING, EVALUATE, END_TRAINING = 0.0, 1.0, 2.0  # decisions between blocks


class Diverged(RuntimeError):
    """A loss or metric is not finite, so that training further would be pointless."""


class DivergenceCheck:
    """The observer of a run without a stop of its own: it checks that losses are finite, and keeps the last ones."""

    over = False

    def __init__(self, model: ModelSpec) -> None:
        self.steps = 0  # in blocks that have ended
        # (loss sum, samples) of steps: blocks hold more steps in a fast run than in a slow one.
        self.last_steps: deque[tuple[float, int]] = deque(maxlen=FINAL_LOSS_STEPS)
        function = model.loss if ":" in model.loss else model.name
        # A network of the user's may come with an optimizer, whose rate no key sets.
        is_users = user_code.is_user_model(model)
        self._whose = f" with {function}" if is_users else ""
        self._advice = "lower the learning rate" if is_users else "lower train.learning_rate"

    def steps_left(self) -> int | None:
        return None

    def on_step(self) -> None:
        pass

    def on_block(self, block: StepBlock) -> None:
        """Raise Diverged where a loss of the block is not finite."""
        for step, (loss_sum, _) in enumerate(block.parts, self.steps + 1):
            if loss_sum is not None and not math.isfinite(loss_sum):
                advice = self._advice
                if step == 1:  # which no update came before
                    advice = "check the samples, the initial weights and the loss function"
                raise Diverged(f"the loss of step {step}{self._whose} is {loss_sum:g}; {advice}")
        self.steps += block.steps
        self.last_steps.extend((loss_sum, samples) for loss_sum, samples in block.parts if loss_sum is not None)

    def check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Raise Diverged where a metric of an evaluation is not finite: the last update may have spoilt the weights."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value:g} after step {self.steps}; {self._advice}")


class TrainingRun(DivergenceCheck):
    """The training of one rank; all ranks take the same decisions at the same steps."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        train: Source,
        evaluated: tuple[Source | None, Source | None],
        report: Callable[[TrainingRun], None],
    ) -> None:
        """`evaluated` are the validation samples, and as many of the training samples; `report` is called after each
        block and each evaluation, as a sign of life."""
        super().__init__(spec.config.model)
        self.spec, self.strategy, self.train, self.evaluated, self.report = spec, strategy, train, evaluated, report
        self.stop, self.settings = spec.config.train.stop, spec.config.train
        self.rates = LearningRateSchedule.from_spec(spec, train.steps_per_epoch)
        self.curve: list[CurvePoint] = []
        self.over = False
        self.stopped_by: str | None = None
        self.first_step_s: float | None = None
        self.train_s = 0.0  # of all steps but the first, on this rank
        self.samples = 0  # likewise
        self.peak_memory_bytes: list[int | None] | None = None  # before the first evaluation
        self._issued_steps = 0
        self._loss_sum, self._loss_samples = 0.0, 0
        self._epoch_points = 0  # points so far that were due by epochs
        self._step_limits = list_step_limits(self.settings, train.steps_per_epoch)
        self._by_time = self.stop.seconds is not None or self.settings.evaluate_s is not None
        every = self.settings.evaluate_epochs
        self._interval_steps = None if every is None else max(1.0, every * train.steps_per_epoch)
        self._rate: float | None = None  # the one set last; the strategy begins with the schedule's highest
        if not self.rates.is_constant:
            self._set_rate()

    def steps_left(self) -> int | None:
        """Return the steps until the next point or the end, as far as these are counted in steps."""
        limits = [*self._step_limits, *self._next_point()]
        return min(limits) - self.steps if limits else None

    def steps_between_points(self) -> int | None:
        """Return the fewest steps from a point to the next one, or to the end if that comes first; None where only
        seconds count."""
        steps = [limit - self.steps for limit in self._step_limits]
        if self._interval_steps is not None:
            steps.append(int(self._interval_steps))
        return min(steps, default=None)

    def on_step(self) -> None:
        """Set the learning rate of the next step."""
        if not self.rates.is_constant:
            self._issued_steps += 1
            self._set_rate()

    def on_block(self, block: StepBlock) -> None:
        """Evaluate and end the training where that is due."""
        super().on_block(block)
        self._add(block)
        self.report(self)
        decision = self._decide()
        if decision == KEEP_TRAINING:
            return
        self._evaluate()
        at_target = self._is_at_target()
        if decision == END_TRAINING or at_target:
            self.over = True
            self.stopped_by = "target" if at_target else self._stop_reason()

    def _set_rate(self) -> None:
        rate = self.rates.at_step(self._issued_steps)
        if rate != self._rate:
            self.strategy.set_learning_rate(rate)
            self._rate = rate

    def _add(self, block: StepBlock) -> None:
        if self.first_step_s is None:
            self.first_step_s = block.seconds  # blocks of warm-up have one step
        else:
            self.train_s += block.seconds
            self.samples += block.samples
        for loss_sum, samples in block.parts:
            assert loss_sum is not None, "a program of the user's has no stop"
            self._loss_sum, self._loss_samples = self._loss_sum + loss_sum, self._loss_samples + samples

    def _decide(self) -> float:
        """Return the decision on what is due now. Rank 0 decides by seconds for all ranks, since their clocks
        differ."""
        decision = END_TRAINING if self.steps >= min(self._step_limits, default=math.inf) else KEEP_TRAINING
        if self.steps in self._next_point():
            self._epoch_points += 1
            decision = max(decision, EVALUATE)
        if not self._by_time:
            return decision
        if self.strategy.place.rank == 0:
            decision = max(decision, self._decide_by_time())
        return self.strategy.broadcast(decision)

    def _decide_by_time(self) -> float:
        if self.stop.seconds is not None and self.train_s >= self.stop.seconds:
            return END_TRAINING
        since_s = self.train_s - (self.curve[-1].train_s if self.curve else 0.0)
        is_due = self.settings.evaluate_s is not None and since_s >= self.settings.evaluate_s
        return EVALUATE if is_due else KEEP_TRAINING

    def _stop_reason(self) -> str:
        if self.steps < min(self._step_limits, default=math.inf):
            return "seconds"
        by_epochs = self.stop.epochs is not None and self._step_limits[0] <= self.steps
        return "epochs" if by_epochs else "steps"

    def _next_point(self) -> list[int]:
        """Return the step after which the next point is due; none, where only seconds count. Points are at least one
        step apart, so that no two of them are rounded to the same step."""
        return [] if self._interval_steps is None else [round((self._epoch_points + 1) * self._interval_steps)]

    def _evaluate(self) -> None:
        at_s, start_s = time.time(), time.perf_counter()
        if self.peak_memory_bytes is None and self.steps > 1:  # the first step allocates the optimizer's state
            self.peak_memory_bytes = self.strategy.peak_memory_bytes()
        validation, trained = [self._evaluate_on(source) for source in self.evaluated]
        self.strategy.synchronize()
        epochs, rest = divmod(self.steps, self.train.steps_per_epoch)
        samples = epochs * self.train.samples + rest * self.train.global_batch
        self.curve.append(
            CurvePoint(
                step=self.steps,
                epochs=samples / self.train.samples,
                samples=samples,
                train_s=self.train_s,
                learning_rate=self.rates.at_step(self.steps - 1),
                loss=self._loss_sum / self._loss_samples if self._loss_samples else None,
                loss_samples=self._loss_samples,
                metrics=validation,
                train_metrics=trained,
                evaluate_s=time.perf_counter() - start_s,
                at_s=at_s,
            )
        )
        self._loss_sum, self._loss_samples = 0.0, 0

    def _evaluate_on(self, source: Source | None) -> dict[str, float]:
        if source is None or not self.spec.config.measure.evaluate:
            return {}
        metrics = self.strategy.evaluate(source)
        self.report(self)
        self.check_metrics(metrics)
        return metrics

    def _is_at_target(self) -> bool:
        metric, target = self.spec.config.model.metric, self.stop.target
        value = self.curve[-1].metrics.get(metric)
        return target is not None and value is not None and reaches_target(metric, value, target)
