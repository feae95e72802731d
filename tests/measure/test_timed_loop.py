"""The timed loop with a clock of our own: what happens between blocks, and that nothing happens inside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebench.measure.timed_loop import BlockSeries, LoopPhase, StepBlock, TimedLoop, fixed_length_phase
from scalebench.strategies.base import LossPart

LOADING_S, STEP_S, DEVICE_SYNC_S, BROADCAST_S, FETCH_S = 1.0, 10.0, 100.0, 1e4, 1e6


class Clock:
    """Time that passes only when something happens, and a note of what did."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[str] = []

    def happens(self, event: str, takes_s: float) -> None:
        self.events.append(event)
        self.now_s += takes_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


class LazyLoss:
    """A loss on a device: to look at it takes long."""

    def __init__(self, clock: Clock, value: float) -> None:
        self.clock, self.value = clock, value

    def __float__(self) -> float:
        self.clock.happens("fetch", FETCH_S)
        return self.value


class Trainer:
    """As much of a strategy as the loop sees, and the loop that a trainer of its own would run."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.drawn = self.steps = 0

    def batches(self) -> Iterator[int]:
        for number in itertools.count():
            self.drawn += 1
            self.clock.happens("draw", LOADING_S)
            yield number

    def synchronize(self) -> None:
        self.clock.happens("synchronize", DEVICE_SYNC_S)

    def step(self, batch: int) -> LossPart | None:
        self.steps += 1
        self.clock.happens("step", STEP_S)
        return LossPart(LazyLoss(self.clock, 2.0 * (batch + 1)), batch + 1)

    def train(self, loop: TimedLoop) -> None:
        for batch in loop:
            loop.done(self.step(batch))


def create_phase(clock: Clock, name: str, blocks: int, steps: int) -> LoopPhase:
    def start(before: BlockSeries | None) -> int:
        clock.happens(f"start {name}", BROADCAST_S)
        return steps

    def decide(series: BlockSeries) -> bool:
        clock.happens(f"decide {name}", BROADCAST_S)
        return len(series.seconds) == blocks

    return LoopPhase(name, start, decide)


def train_through(clock: Clock, *phases: LoopPhase, **options: Any) -> Trainer:
    trainer = Trainer(clock)
    trainer.train(TimedLoop(trainer, trainer.batches(), list(phases), clock=lambda: trainer.clock.now_s, **options))  # type: ignore[arg-type]
    return trainer


def test_the_order_of_everything(clock: Clock) -> None:
    train_through(
        clock,
        create_phase(clock, "warmup", 2, 1),
        create_phase(clock, "measure", 1, 2),
        on_phase=lambda s: clock.happens(f"enter {s.name}", 0.0),
    )
    block = ["draw", "step", "synchronize", "fetch"]
    assert clock.events == [
        *["start warmup", "enter warmup", "synchronize"],
        *block,
        *["decide warmup", "synchronize"],
        *block,
        *["decide warmup", "start measure", "enter measure", "synchronize"],
        *["draw", "step", "draw", "step", "synchronize", "fetch", "fetch", "decide measure"],
    ]


def test_a_block_holds_loading_steps_and_one_synchronisation(clock: Clock) -> None:
    warmup, measure = create_phase(clock, "warmup", 2, 3), create_phase(clock, "measure", 4, 5)
    train_through(clock, warmup, measure)
    assert warmup.series.seconds == [3 * (LOADING_S + STEP_S) + DEVICE_SYNC_S] * 2
    assert measure.series.seconds == [5 * (LOADING_S + STEP_S) + DEVICE_SYNC_S] * 4


def test_losses_are_averaged_by_samples(clock: Clock) -> None:
    """The step of batch k has k + 1 samples and a loss of 2 each; one more has none."""
    measure = fixed_length_phase("measure", 2, 3)
    trainer = train_through(clock, measure)
    assert trainer.steps == 6
    assert measure.series.samples == [1 + 2 + 3, 4 + 5 + 6]
    assert measure.series.losses == [2.0, 2.0]
    assert measure.series.step_losses == []


def loop_of(clock: Clock, *parts: LossPart | None, keep: bool = False) -> BlockSeries:
    phase = fixed_length_phase("measure", 1, len(parts))
    loop = TimedLoop(Trainer(clock), iter(parts), [phase], keep_step_losses=keep)  # type: ignore[arg-type]
    for part in loop:
        loop.done(part)
    return phase.series


def test_parts_of_unequal_size_weigh_by_their_samples(clock: Clock) -> None:
    series = loop_of(clock, LossPart(6.0, 3), LossPart(10.0, 1))
    assert (series.samples, series.losses) == ([4], [4.0])


def test_updates_without_a_loss_here(clock: Clock) -> None:
    series = loop_of(clock, None, LossPart(6.0, 3), None, keep=True)
    assert (series.samples, series.losses, series.step_losses) == ([3], [2.0], [2.0])
    series = loop_of(clock, None, None)
    assert (series.samples, series.losses) == ([0], [None])


def test_losses_of_single_updates_when_requested(clock: Clock) -> None:
    assert loop_of(clock, LossPart(6.0, 3), LossPart(10.0, 1), keep=True).step_losses == [2.0, 10.0]
    assert loop_of(clock, LossPart(0.0, 0), LossPart(10.0, 1), keep=True).step_losses == [None, 10.0]


def test_each_stage_sees_the_series_of_the_one_before(clock: Clock) -> None:
    seen: list[BlockSeries | None] = []
    first, second = fixed_length_phase("first", 2, 1), fixed_length_phase("second", 1, 1)
    for one in (first, second):
        one.start = lambda before: seen.append(before) or 1  # type: ignore[func-returns-value]
    train_through(clock, first, second)
    assert seen == [None, first.series]
    assert [len(s.series.seconds) for s in (first, second)] == [2, 1]


def test_done_says_when_it_is_over(clock: Clock) -> None:
    loop = TimedLoop(Trainer(clock), [], [fixed_length_phase("one", 1, 1), fixed_length_phase("two", 1, 2)])  # type: ignore[arg-type]
    assert list(loop) == []
    assert [loop.done(None) for _ in range(3)] == [False, False, True]
    assert loop.done(None), "a step too many of a trainer that runs ahead changes nothing"


def test_no_stage_draws_one_batch_at_most(clock: Clock) -> None:
    trainer = train_through(clock)
    assert trainer.drawn <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plan=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4))
def test_as_many_batches_as_updates_and_nothing_inside_a_block(plan: list[tuple[int, int]], clock: Clock) -> None:
    clock.events.clear()
    phases = [create_phase(clock, str(i), blocks, steps) for i, (blocks, steps) in enumerate(plan)]
    trainer = train_through(clock, *phases)
    expected = sum(blocks * steps for blocks, steps in plan)
    assert trainer.drawn == trainer.steps == expected
    assert [len(s.series.seconds) for s in phases] == [blocks for blocks, _ in plan]
    # One synchronization before each block and one at its end, nothing but batches and steps between them.
    borders = [i for i, event in enumerate(clock.events) if event == "synchronize"]
    assert len(borders) == 2 * sum(blocks for blocks, _ in plan)
    lengths = [steps for blocks, steps in plan for _ in range(blocks)]
    for begin, end, steps in zip(borders[::2], borders[1::2], lengths, strict=True):
        assert clock.events[begin + 1 : end] == ["draw", "step"] * steps


class Observer:
    """A training that has to be told after `limits` steps each, and is over when they are done."""

    def __init__(self, clock: Clock, limits: list[int]) -> None:
        self.clock, self.limits, self.over = clock, limits, False
        self.blocks: list[StepBlock] = []

    def steps_left(self) -> int | None:
        return self.limits[0]

    def on_step(self) -> None:
        self.clock.happens("on_step", 0.0)

    def on_block(self, block: StepBlock) -> None:
        self.clock.happens("on_block", BROADCAST_S)
        self.blocks.append(block)
        self.limits[0] -= block.steps
        self.limits = self.limits if self.limits[0] else self.limits[1:]
        self.over = not self.limits


def test_a_course_cuts_blocks_short_and_whole_ones_alone_are_kept(clock: Clock) -> None:
    observer, measure = Observer(clock, [7, 1, 3]), create_phase(clock, "measure", 99, 3)
    train_through(clock, measure, observer=observer)
    assert [block.steps for block in observer.blocks] == [3, 3, 1, 1, 3]
    assert measure.series.seconds == [3 * (LOADING_S + STEP_S) + DEVICE_SYNC_S] * 3
    assert sum(block.seconds for block in observer.blocks) == 11 * (LOADING_S + STEP_S) + 5 * DEVICE_SYNC_S
    assert clock.events.count("on_step") == 11


def test_a_course_is_told_before_its_stage_and_ends_the_loop(clock: Clock) -> None:
    train_through(
        clock, create_phase(clock, "warmup", 2, 1), create_phase(clock, "measure", 9, 2), observer=Observer(clock, [3])
    )
    block = ["synchronize", "draw", "step", "on_step", "synchronize", "fetch", "on_block"]
    assert clock.events == [
        "start warmup",
        *[*block, "decide warmup"],
        *[*block, "decide warmup", "start measure"],
        *block,
    ], "the last one is cut short, and nothing is decided any more"


def test_a_block_that_its_course_refuses_is_not_kept(clock: Clock) -> None:
    observer, measure = Observer(clock, [9]), fixed_length_phase("measure", 9, 1)

    def refuse(block: StepBlock) -> None:
        raise ArithmeticError

    observer.on_block = refuse  # type: ignore[method-assign]
    with pytest.raises(ArithmeticError):
        train_through(clock, measure, observer=observer)
    assert measure.series.losses == []
