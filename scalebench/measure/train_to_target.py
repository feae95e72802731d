"""A training on its way to a stop: its learning rate, the points of its curve, and when it is over. Layer 2.

All of it happens between blocks but the learning rate, which may change with every update and is part of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from scalebench.core.result import CurvePoint, reached
from scalebench.core.spec import RunSpec
from scalebench.measure.timed_loop import Block
from scalebench.strategies.base import Strategy
from scalebench.workloads.learning_rate import LearningRateSchedule, list_step_limits
from scalebench.workloads.source import Source

GO_ON, EVALUATE, STOP = 0.0, 1.0, 2.0


class Diverged(RuntimeError):
    """The loss is no number any more: whatever follows is no training."""


class Finite:
    """The course of a run that has no stop of its own: as far as its losses are numbers."""

    over = False

    def __init__(self) -> None:
        self.updates = 0  # that have ended

    def room(self) -> int | None:
        return None

    def updated(self) -> None:
        pass

    def ended(self, block: Block) -> None:
        for number, (loss_sum, _) in enumerate(block.parts, self.updates + 1):
            if not math.isfinite(loss_sum):
                raise Diverged(f"the loss of update {number} is {loss_sum:g}; lower train.learning_rate")
        self.updates += block.steps


class Training(Finite):
    """Of one rank; all ranks take the same decisions at the same updates."""

    def __init__(
        self,
        spec: RunSpec,
        strategy: Strategy,
        train: Source,
        looks: tuple[Source | None, Source | None],
        report: Callable[[Training], None],
    ) -> None:
        """`train` is what is trained on; `looks` are validation samples and as many of the training ones; `report` is
        called after each block and before each evaluation, for whoever waits for a sign of life."""
        super().__init__()
        self.spec, self.strategy, self.train, self.looks, self.report = spec, strategy, train, looks, report
        self.stop, self.settings = spec.config.train.stop, spec.config.train
        self.rates = LearningRateSchedule.from_spec(spec, train.steps_per_epoch)
        self.curve: list[CurvePoint] = []
        self.over = False
        self.stopped_by: str | None = None
        self.first_step_s: float | None = None
        self.train_s = 0.0  # of all updates but the first, on this rank
        self.samples = 0  # likewise
        self.peak_memory_bytes: list[int | None] | None = None  # before anything was looked at
        self._issued = 0
        self._loss_sum, self._loss_samples = 0.0, 0
        self._points_made = 0  # that are counted in epochs
        self._ends = list_step_limits(self.settings, train.steps_per_epoch)
        self._by_time = self.stop.seconds is not None or self.settings.evaluate_s is not None
        every = self.settings.evaluate_epochs
        self._interval = None if every is None else max(1.0, every * train.steps_per_epoch)
        self._rate: float | None = None  # that was set last; the strategy begins with its highest
        if not self.rates.is_constant:
            self._set_rate()

    def room(self) -> int | None:
        """Until the next point or the end, as far as they are counted in updates."""
        known = [*self._ends, *self._next_point()]
        return min(known) - self.updates if known else None

    def between(self) -> int | None:
        """Updates from a point to the next one, at the least, or to the end if that comes first; None: not counted."""
        known = [end - self.updates for end in self._ends]
        if self._interval is not None:
            known.append(int(self._interval))
        return min(known, default=None)

    def updated(self) -> None:
        if not self.rates.is_constant:
            self._issued += 1
            self._set_rate()

    def ended(self, block: Block) -> None:
        super().ended(block)
        self._add(block)
        self.report(self)
        word = self._word()
        if word == GO_ON:
            return
        self._evaluate()
        at_target = self._at_target()
        if word == STOP or at_target:
            self.over = True
            self.stopped_by = "target" if at_target else self._ended_by()

    def _set_rate(self) -> None:
        rate = self.rates.at_step(self._issued)
        if rate != self._rate:
            self.strategy.set_learning_rate(rate)
            self._rate = rate

    def _add(self, block: Block) -> None:
        if self.first_step_s is None:
            self.first_step_s = block.seconds  # of one update: warm-up is of single ones
        else:
            self.train_s += block.seconds
            self.samples += block.samples
        for loss_sum, samples in block.parts:
            self._loss_sum, self._loss_samples = self._loss_sum + loss_sum, self._loss_samples + samples

    def _word(self) -> float:
        """What is due now. What goes by seconds is for rank 0 to say, since clocks differ."""
        word = STOP if self.updates >= min(self._ends, default=math.inf) else GO_ON
        if self.updates in self._next_point():
            self._points_made += 1
            word = max(word, EVALUATE)
        if not self._by_time:
            return word
        if self.strategy.place.rank == 0:
            word = max(word, self._by_clock())
        return self.strategy.broadcast(word)

    def _by_clock(self) -> float:
        if self.stop.seconds is not None and self.train_s >= self.stop.seconds:
            return STOP
        since_s = self.train_s - (self.curve[-1].train_s if self.curve else 0.0)
        return EVALUATE if self.settings.evaluate_s is not None and since_s >= self.settings.evaluate_s else GO_ON

    def _ended_by(self) -> str:
        if self.updates < min(self._ends, default=math.inf):
            return "seconds"
        by_epochs = self.stop.epochs is not None and self._ends[0] <= self.updates
        return "epochs" if by_epochs else "steps"

    def _next_point(self) -> list[int]:
        """The update that the next point is due after; none, where only seconds count. Points are an update apart at
        the least, so that rounding gives each of them one of its own."""
        return [] if self._interval is None else [round((self._points_made + 1) * self._interval)]

    def _evaluate(self) -> None:
        at_s, start_s = time.time(), time.perf_counter()
        if self.peak_memory_bytes is None and self.updates > 1:  # the first one makes what the optimizer keeps
            self.peak_memory_bytes = self.strategy.peak_memory_bytes()
        validation, trained = [self._look(source) for source in self.looks]
        self.strategy.synchronize()
        epochs, rest = divmod(self.updates, self.train.steps_per_epoch)
        samples = epochs * self.train.samples + rest * self.train.global_batch
        self.curve.append(
            CurvePoint(
                step=self.updates,
                epochs=samples / self.train.samples,
                samples=samples,
                train_s=self.train_s,
                learning_rate=self.rates.at_step(self.updates - 1),
                loss=self._loss_sum / self._loss_samples if self._loss_samples else None,
                loss_samples=self._loss_samples,
                metrics=validation,
                train_metrics=trained,
                evaluate_s=time.perf_counter() - start_s,
                at_s=at_s,
            )
        )
        self._loss_sum, self._loss_samples = 0.0, 0

    def _look(self, source: Source | None) -> dict[str, float]:
        if source is None or not self.spec.config.measure.evaluate:
            return {}
        found = self.strategy.evaluate(source)
        self.report(self)
        for name, value in found.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value:g} after update {self.updates}; lower train.learning_rate")
        return found

    def _at_target(self) -> bool:
        metric, target = self.spec.config.model.metric, self.stop.target
        found = self.curve[-1].metrics.get(metric)
        return target is not None and found is not None and reached(metric, found, target)
