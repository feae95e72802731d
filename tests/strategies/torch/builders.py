"""Trainings with a learning rate for each update and evaluations in their midst, for adapters of any framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from scalebench.core.spec import RunSpec, StopSpec
from scalebench.workloads.learning_rate import LearningRateSchedule
from scalebench.workloads.source import Source


def features(count: int) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets) that the materials CNN can learn from: the targets are features of the inputs."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 200, 3)).astype(np.float32)
    targets = np.stack([inputs[:, :100, 0].mean(1), np.abs(inputs[:, :, 1]).mean(1)], 1)
    return inputs, targets


def pictures(count: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images of 32 x 32 bytes in 3 colours, and their labels, after which they differ in brightness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 60, (count, 32, 32, 3)) + 13 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def scheduled(spec: RunSpec, updates: int, steps_per_epoch: int) -> list[float]:
    """The learning rate of each update of a run that warms up for an epoch and falls to 0 along a cosine."""
    train = dataclasses.replace(spec.config.train, schedule="cosine", warmup_epochs=1.0, stop=StopSpec(steps=updates))
    rates = LearningRateSchedule(train, spec.learning_rate, steps_per_epoch)
    return [rates.at_step(number) for number in range(updates)]


class Lesson:
    """A Loop of so many updates, as strategy.Loop has it. What it did: `losses`, mean per sample of each update on this
    process, and `found`, metrics by the number of updates before them."""

    def __init__(
        self,
        strategy: Any,
        batches: Iterable[Any],
        updates: int,
        rates: Sequence[float] = (),
        looks: Collection[int] = (),
        validation: Source | None = None,
    ) -> None:
        """`rates`: of each update; none: the strategy keeps its own. `looks`: after how many updates to evaluate on
        `validation`."""
        self._strategy, self._batches, self._updates = strategy, batches, updates
        self._rates, self._looks, self._validation = rates, looks, validation
        self.losses: list[float] = []
        self.sums: list[float] = []
        self.found: dict[int, dict[str, float]] = {}
        self._set_rate()

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield batch
            if len(self.losses) == self._updates:
                return

    def done(self, part: Any) -> bool:
        self.sums.append(float(part.loss_sum))
        self.losses.append(self.sums[-1] / part.samples)
        made = len(self.losses)
        if made in self._looks:
            self.found[made] = self._strategy.evaluate(self._validation)
        if made < self._updates:
            self._set_rate()
        return made == self._updates

    def _set_rate(self) -> None:
        if self._rates:
            self._strategy.set_learning_rate(self._rates[len(self.losses)])


def taught(strategy: Any, source: Source, updates: int, **settings: Any) -> Lesson:
    """The lesson, over; `settings` are Lesson's."""
    lesson = Lesson(strategy, strategy.feed(source), updates, **settings)
    strategy.train(lesson)
    return lesson
