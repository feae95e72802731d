"""The timed loop with a clock of our own: what happens between blocks, and that nothing happens inside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebench.measure.timed_loop import Block, Series, Stage, TimedLoop, fixed
from scalebench.strategies.base import LossPart

LOADING_S, STEP_S, SYNC_S, TALK_S, FETCH_S = 1.0, 10.0, 100.0, 1e4, 1e6


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
        self.drawn = self.updates = 0

    def batches(self) -> Iterator[int]:
        for number in itertools.count():
            self.drawn += 1
            self.clock.happens("draw", LOADING_S)
            yield number

    def synchronize(self) -> None:
        self.clock.happens("synchronize", SYNC_S)

    def step(self, batch: int) -> LossPart | None:
        self.updates += 1
        self.clock.happens("step", STEP_S)
        return LossPart(LazyLoss(self.clock, 2.0 * (batch + 1)), batch + 1)

    def train(self, loop: TimedLoop) -> None:
        for batch in loop:
            loop.done(self.step(batch))


def stage(clock: Clock, name: str, blocks: int, steps: int) -> Stage:
    def start(before: Series | None) -> int:
        clock.happens(f"start {name}", TALK_S)
        return steps

    def decide(series: Series) -> bool:
        clock.happens(f"decide {name}", TALK_S)
        return len(series.seconds) == blocks

    return Stage(name, start, decide)


def trained(clock: Clock, *stages: Stage, **options: Any) -> Trainer:
    trainer = Trainer(clock)
    trainer.train(TimedLoop(trainer, trainer.batches(), list(stages), clock=lambda: trainer.clock.now_s, **options))  # type: ignore[arg-type]
    return trainer


def test_the_order_of_everything(clock: Clock) -> None:
    trained(
        clock,
        stage(clock, "warmup", 2, 1),
        stage(clock, "measure", 1, 2),
        on_stage=lambda s: clock.happens(f"enter {s.name}", 0.0),
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
    warmup, measure = stage(clock, "warmup", 2, 3), stage(clock, "measure", 4, 5)
    trained(clock, warmup, measure)
    assert warmup.series.seconds == [3 * (LOADING_S + STEP_S) + SYNC_S] * 2
    assert measure.series.seconds == [5 * (LOADING_S + STEP_S) + SYNC_S] * 4


def test_losses_are_averaged_by_samples(clock: Clock) -> None:
    """The update of batch k has k + 1 samples and a loss of 2 each; one more has none."""
    measure = fixed("measure", 2, 3)
    trainer = trained(clock, measure)
    assert trainer.updates == 6
    assert measure.series.samples == [1 + 2 + 3, 4 + 5 + 6]
    assert measure.series.losses == [2.0, 2.0]
    assert measure.series.step_losses == []


def loop_of(clock: Clock, *parts: LossPart | None, keep: bool = False) -> Series:
    one = fixed("measure", 1, len(parts))
    loop = TimedLoop(Trainer(clock), iter(parts), [one], keep_step_losses=keep)  # type: ignore[arg-type]
    for part in loop:
        loop.done(part)
    return one.series


def test_parts_of_unequal_size_weigh_by_their_samples(clock: Clock) -> None:
    series = loop_of(clock, LossPart(6.0, 3), LossPart(10.0, 1))
    assert (series.samples, series.losses) == ([4], [4.0])


def test_updates_without_a_loss_here(clock: Clock) -> None:
    series = loop_of(clock, None, LossPart(6.0, 3), None, keep=True)
    assert (series.samples, series.losses, series.step_losses) == ([3], [2.0], [2.0])
    series = loop_of(clock, None, None)
    assert (series.samples, series.losses) == ([0], [None])


def test_losses_of_single_updates_when_asked_for(clock: Clock) -> None:
    assert loop_of(clock, LossPart(6.0, 3), LossPart(10.0, 1), keep=True).step_losses == [2.0, 10.0]
    assert loop_of(clock, LossPart(0.0, 0), LossPart(10.0, 1), keep=True).step_losses == [None, 10.0]


def test_each_stage_sees_the_series_of_the_one_before(clock: Clock) -> None:
    seen: list[Series | None] = []
    first, second = fixed("first", 2, 1), fixed("second", 1, 1)
    for one in (first, second):
        one.start = lambda before: seen.append(before) or 1  # type: ignore[func-returns-value]
    trained(clock, first, second)
    assert seen == [None, first.series]
    assert [len(s.series.seconds) for s in (first, second)] == [2, 1]


def test_done_says_when_it_is_over(clock: Clock) -> None:
    loop = TimedLoop(Trainer(clock), [], [fixed("one", 1, 1), fixed("two", 1, 2)])  # type: ignore[arg-type]
    assert list(loop) == []
    assert [loop.done(None) for _ in range(3)] == [False, False, True]
    assert loop.done(None), "an update too many of a trainer that runs ahead changes nothing"


def test_no_stage_draws_one_batch_at_most(clock: Clock) -> None:
    trainer = trained(clock)
    assert trainer.drawn <= 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(plan=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4))
def test_as_many_batches_as_updates_and_nothing_inside_a_block(plan: list[tuple[int, int]], clock: Clock) -> None:
    clock.events.clear()
    stages = [stage(clock, str(i), blocks, steps) for i, (blocks, steps) in enumerate(plan)]
    trainer = trained(clock, *stages)
    wanted = sum(blocks * steps for blocks, steps in plan)
    assert trainer.drawn == trainer.updates == wanted
    assert [len(s.series.seconds) for s in stages] == [blocks for blocks, _ in plan]
    # One synchronisation before each block and one at its end, nothing but batches and updates between them.
    borders = [i for i, event in enumerate(clock.events) if event == "synchronize"]
    assert len(borders) == 2 * sum(blocks for blocks, _ in plan)
    lengths = [steps for blocks, steps in plan for _ in range(blocks)]
    for begin, end, steps in zip(borders[::2], borders[1::2], lengths, strict=True):
        assert clock.events[begin + 1 : end] == ["draw", "step"] * steps


class Course:
    """A training that has to be told after `rooms` updates each, and is over when they are done."""

    def __init__(self, clock: Clock, rooms: list[int]) -> None:
        self.clock, self.rooms, self.over = clock, rooms, False
        self.blocks: list[Block] = []

    def room(self) -> int | None:
        return self.rooms[0]

    def updated(self) -> None:
        self.clock.happens("updated", 0.0)

    def ended(self, block: Block) -> None:
        self.clock.happens("ended", TALK_S)
        self.blocks.append(block)
        self.rooms[0] -= block.steps
        self.rooms = self.rooms if self.rooms[0] else self.rooms[1:]
        self.over = not self.rooms


def test_a_course_cuts_blocks_short_and_whole_ones_alone_are_kept(clock: Clock) -> None:
    course, measure = Course(clock, [7, 1, 3]), stage(clock, "measure", 99, 3)
    trained(clock, measure, course=course)
    assert [block.steps for block in course.blocks] == [3, 3, 1, 1, 3]
    assert measure.series.seconds == [3 * (LOADING_S + STEP_S) + SYNC_S] * 3
    assert sum(block.seconds for block in course.blocks) == 11 * (LOADING_S + STEP_S) + 5 * SYNC_S
    assert clock.events.count("updated") == 11


def test_a_course_is_told_before_its_stage_and_ends_the_loop(clock: Clock) -> None:
    trained(clock, stage(clock, "warmup", 2, 1), stage(clock, "measure", 9, 2), course=Course(clock, [3]))
    block = ["synchronize", "draw", "step", "updated", "synchronize", "fetch", "ended"]
    assert clock.events == [
        "start warmup",
        *[*block, "decide warmup"],
        *[*block, "decide warmup", "start measure"],
        *block,
    ], "the last one is cut short, and nothing is decided any more"


def test_a_block_that_its_course_refuses_is_not_kept(clock: Clock) -> None:
    course, measure = Course(clock, [9]), fixed("measure", 9, 1)

    def refuse(block: Block) -> None:
        raise ArithmeticError

    course.ended = refuse  # type: ignore[method-assign]
    with pytest.raises(ArithmeticError):
        trained(clock, measure, course=course)
    assert measure.series.losses == []
