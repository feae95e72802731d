"""The learning rate of every update, the same under every framework and strategy. Layer 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scalebench.spec import RunSpec, TrainSpec


@dataclass(frozen=True)
class Rates:
    """The learning rate over updates, which are numbered from 0.

    In the warm-up it grows linearly and has its peak with the update after it (Goyal et al. 2017, arXiv:1706.02677,
    section 2.2); after that `schedule` goes by the share of the remaining updates that are done: linear and cosine
    (Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5, one cycle down to 0), or by epochs: step.
    """

    train: TrainSpec
    peak: float
    updates_per_epoch: int

    @classmethod
    def of(cls, spec: RunSpec, updates_per_epoch: int) -> Rates:
        return cls(spec.config.train, spec.learning_rate, updates_per_epoch)

    @cached_property
    def constant(self) -> bool:
        """Whether all updates have the same."""
        return self.train.schedule == "constant" and self._warmup == 0

    def of_update(self, number: int) -> float:
        """The learning rate that update `number` is made with."""
        if number < self._warmup:
            return self.peak * (number + 1) / (self._warmup + 1)
        train = self.train
        if train.schedule == "step":
            fallen = sum(number >= round(epoch * self.updates_per_epoch) for epoch in train.decay_epochs)
            return self.peak * train.decay**fallen
        if train.schedule == "constant":
            return self.peak
        done = min(1.0, (number - self._warmup) / max(1, self._total - self._warmup))
        return self.peak * ((1 - done) if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)

    @cached_property
    def _warmup(self) -> int:
        return round(self.train.warmup_epochs * self.updates_per_epoch)

    @cached_property
    def _total(self) -> int:
        """Updates until the end that is known beforehand, which linear and cosine ask for."""
        return min(updates_of(self.train, self.updates_per_epoch) or [self._warmup + 1])


def updates_of(train: TrainSpec, updates_per_epoch: int) -> list[int]:
    """Updates until each end that is counted in updates or epochs; an epoch's part counts as far as it goes."""
    stop = train.stop
    by_epochs = [] if stop.epochs is None else [max(1, round(stop.epochs * updates_per_epoch))]
    return by_epochs if stop.steps is None else [*by_epochs, stop.steps]
