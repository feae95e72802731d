"""The learning rate of every training step, the same under every framework and strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scalebench.core.spec import RunSpec, TrainSpec


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning rate over training steps, which are numbered from 0.

    In the warm-up the rate grows linearly and reaches its peak with the first step after it (Goyal et al. 2017,
    arXiv:1706.02677, section 2.2). After that `train.schedule` decides: "constant"; "linear" and "cosine" (Loshchilov
    and Hutter 2017, arXiv:1608.03983, equation 5, one cycle down to 0) by the completed share of the remaining steps;
    "step" by a factor after certain epochs.
    """

    train: TrainSpec
    peak: float
    steps_per_epoch: int

    @classmethod
    def from_spec(cls, spec: RunSpec, steps_per_epoch: int) -> LearningRateSchedule:
        """Return the schedule of a run, whose peak already follows the learning-rate rule for its global batch."""
        return cls(spec.config.train, spec.learning_rate, steps_per_epoch)

    @cached_property
    def is_constant(self) -> bool:
        """Return whether all steps have the same learning rate."""
        return self.train.schedule == "constant" and self._warmup_steps == 0

    def at_step(self, step: int) -> float:
        """Return the learning rate with which step `step` (from 0) is made."""
        if step < self._warmup_steps:
            return self.peak * (step + 1) / (self._warmup_steps + 1)
        train = self.train
        if train.schedule == "step":
            decays = sum(step >= round(epoch * self.steps_per_epoch) for epoch in train.decay_epochs)
            return self.peak * train.decay**decays
        if train.schedule == "constant":
            return self.peak
        progress = min(1.0, (step - self._warmup_steps) / max(1, self._total_steps - self._warmup_steps))
        return self.peak * ((1 - progress) if train.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)

    @cached_property
    def _warmup_steps(self) -> int:
        return round(self.train.warmup_epochs * self.steps_per_epoch)

    @cached_property
    def _total_steps(self) -> int:
        """Steps until the earliest end that is fixed in advance, at which "linear" and "cosine" reach 0."""
        return min(list_step_limits(self.train, self.steps_per_epoch) or [self._warmup_steps + 1])


def list_step_limits(train: TrainSpec, steps_per_epoch: int) -> list[int]:
    """Return the steps until each end of the training that is set in steps or epochs; fractions of an epoch count."""
    stop = train.stop
    from_epochs = [] if stop.epochs is None else [max(1, round(stop.epochs * steps_per_epoch))]
    return from_epochs if stop.steps is None else [*from_epochs, stop.steps]
