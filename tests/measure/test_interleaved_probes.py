"""Interleaved variants of a step, on a clock of the test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from scalebench.measure.probes import InterleavedLoop, Variant
from scalebench.strategies.base import Probes

STEP_S, SYNC_S, LOADING_S, SWITCH_S = 1.0, 10.0, 100.0, 1e4
ON, OFF, FIXED = Variant("on"), Variant("off", sync=False), Variant("fixed", sync=False, new_batches=False)


class Trainer(Probes):
    """The part of a strategy that the loop uses; the first step after a switch costs more."""

    def __init__(self, ahead: int = 0) -> None:
        self.now_s = 0.0
        self.syncing = True
        self.events: list[str] = []
        self._ahead, self._switched = ahead, False

    def batches(self) -> Iterator[int]:
        for number in itertools.count():
            self.now_s += LOADING_S
            yield number

    def set_gradient_sync(self, on: bool) -> None:
        self.events.append("on" if on else "off")
        self.syncing, self._switched = on, True

    def broadcast(self, value: float) -> float:
        self.events.append("barrier")
        return value

    def synchronize(self) -> None:
        self.events.append("synchronize")

    def step(self, batch: int) -> None:
        self.events.append(f"step {batch}")
        self.now_s += STEP_S + (SYNC_S if self.syncing else 0) + (SWITCH_S if self._switched else 0)
        self._switched = False

    def train(self, loop: InterleavedLoop) -> None:
        drawn: list[Any] = []
        for batch in loop:
            drawn.append(batch)
            if len(drawn) > self._ahead:
                self.step(drawn.pop(0))
                if loop.done(None):
                    return


def loop(trainer: Trainer, variants: list[Variant], steps: int, rounds: int) -> InterleavedLoop:
    interleaved = InterleavedLoop(trainer, trainer.batches(), variants, steps, rounds, lambda: trainer.now_s)  # type: ignore[arg-type]
    trainer.train(interleaved)
    return interleaved


@pytest.mark.parametrize(("steps", "rounds"), [(1, 1), (1, 4), (3, 2), (5, 3)])
def test_each_variant_is_timed_as_often_without_its_first_update(steps: int, rounds: int) -> None:
    seconds = loop(Trainer(), [ON, OFF, FIXED], steps, rounds).seconds
    step_seconds = {"on": STEP_S + SYNC_S + LOADING_S, "off": STEP_S + LOADING_S, "fixed": STEP_S}
    assert seconds == {name: [steps * step_s] * rounds for name, step_s in step_seconds.items()}


def test_every_second_round_runs_in_reverse() -> None:
    trainer = Trainer()
    loop(trainer, [ON, OFF], 1, 2)
    assert [event for event in trainer.events if event in ("on", "off")] == ["on", "off", "off", "on"]


def test_ranks_begin_each_block_together_and_wait_for_the_device_at_both_ends() -> None:
    trainer = Trainer()
    loop(trainer, [ON, OFF], 2, 1)
    block = ["barrier", "step", "synchronize", "step", "step", "synchronize"]
    assert [event.split()[0] for event in trainer.events] == ["on", *block, "off", *block]


def test_a_held_batch_is_the_one_drawn_last() -> None:
    trainer = Trainer()
    last = loop(trainer, [ON, FIXED], 2, 2).last_batch
    steps = [int(event.split()[1]) for event in trainer.events if event.startswith("step")]
    assert steps == [0, 1, 2, 2, 2, 2, 2, 2, 2, 3, 4, 5]
    assert last == 5


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_trainer_that_draws_ahead_gets_the_batches_of_each_block(ahead: int) -> None:
    trainer = Trainer(ahead)
    loop(trainer, [ON, FIXED], 3, 1)
    steps = [int(event.split()[1]) for event in trainer.events if event.startswith("step")]
    assert steps == [0, 1, 2, 3, 3, 3, 3, 3]
