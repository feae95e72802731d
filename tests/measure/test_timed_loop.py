"""The timed loop on a clock of the test: the order of events between blocks, and that nothing happens inside."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebench.measure.timed_loop import LoopPhase, TimedLoop, fixed_length_phase
from scalebench.strategies.base import LossPart

LOADING_S, STEP_S, DEVICE_SYNC_S, BROADCAST_S, FETCH_S = 1.0, 10.0, 100.0, 1e4, 1e6


class Clock:
    def __init__(self):
        self.now_s = 0.0
        self.events = []

    def record(self, event, takes_s):
        self.events.append(event)
        self.now_s += takes_s


@pytest.fixture
def clock():
    return Clock()


class LazyLoss:
    def __init__(self, clock, value):
        self.clock, self.value = clock, value

    def __float__(self):
        self.clock.record("fetch", FETCH_S)
        return self.value


class Trainer:
    def __init__(self, clock):
        self.clock = clock
        self.drawn = self.steps = 0

    def batches(self):
        for number in itertools.count():
            self.drawn += 1
            self.clock.record("draw", LOADING_S)
            yield number

    def synchronize(self):
        self.clock.record("synchronize", DEVICE_SYNC_S)

    def step(self, batch):
        self.steps += 1
        self.clock.record("step", STEP_S)
        return LossPart(LazyLoss(self.clock, 2.0 * (batch + 1)), batch + 1)

    def train(self, loop):
        for batch in loop:
            loop.done(self.step(batch))


def create_phase(clock, name, blocks, steps):
    def start(before):
        clock.record(f"start {name}", BROADCAST_S)
        return steps

    def decide(series):
        clock.record(f"decide {name}", BROADCAST_S)
        return len(series.seconds) == blocks

    return LoopPhase(name, start, decide)


def train_through(clock, *phases, **options):
    trainer = Trainer(clock)
    trainer.train(TimedLoop(trainer, trainer.batches(), list(phases), clock=lambda: trainer.clock.now_s, **options))
    return trainer


def test_the_order_of_events(clock):
    train_through(
        clock,
        create_phase(clock, "warmup", 2, 1),
        create_phase(clock, "measure", 1, 2),
        on_phase=lambda s: clock.record(f"enter {s.name}", 0.0),
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


def test_the_loss_of_a_block_is_the_mean_over_its_samples(clock):
    for parts, samples, loss in (
        ((LossPart(6.0, 3), LossPart(10.0, 1)), 4, 4.0),  # weighted by samples
        ((LossPart(0.0, 0), LossPart(10.0, 1)), 1, 10.0),
        ((None, LossPart(6.0, 3), None), 3, 2.0),  # steps without a loss in this process
        ((None, None), 0, None),
    ):
        phase = fixed_length_phase("measure", 1, len(parts))
        loop = TimedLoop(Trainer(clock), iter(parts), [phase])
        for part in loop:
            loop.done(part)
        assert (phase.series.samples, phase.series.losses) == ([samples], [loss])


def test_each_phase_gets_the_series_of_the_one_before(clock):
    received = []
    first, second = fixed_length_phase("first", 2, 1), fixed_length_phase("second", 1, 1)
    for phase in (first, second):
        phase.start = lambda before: received.append(before) or 1
    train_through(clock, first, second)
    assert received == [None, first.series]
    assert [len(s.series.seconds) for s in (first, second)] == [2, 1]
    assert train_through(clock).drawn <= 1, "without a phase"
    loop = TimedLoop(Trainer(clock), [], [fixed_length_phase("one", 1, 1), fixed_length_phase("two", 1, 2)])
    assert list(loop) == []
    assert [loop.done(None) for _ in range(3)] == [False, False, True], "whether the loop is over"
    assert loop.done(None), "a step too many of a trainer that runs ahead changes nothing"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4))
def test_a_block_contains_only_batches_and_steps(plan, clock):
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
    """An observer that ends blocks after `limits` steps each, and the training after the last."""

    def __init__(self, clock, limits):
        self.clock, self.limits, self.over = clock, limits, False
        self.blocks = []

    def steps_left(self):
        return self.limits[0]

    def on_step(self):
        self.clock.record("on_step", 0.0)

    def on_block(self, block):
        self.clock.record("on_block", BROADCAST_S)
        self.blocks.append(block)
        self.limits[0] -= block.steps
        self.limits = self.limits if self.limits[0] else self.limits[1:]
        self.over = not self.limits


def test_an_observer_shortens_blocks_and_only_full_ones_are_kept(clock):
    observer, measure = Observer(clock, [7, 1, 3]), create_phase(clock, "measure", 99, 3)
    train_through(clock, measure, observer=observer)
    assert [block.steps for block in observer.blocks] == [3, 3, 1, 1, 3]
    assert measure.series.seconds == [3 * (LOADING_S + STEP_S) + DEVICE_SYNC_S] * 3
    assert sum(block.seconds for block in observer.blocks) == 11 * (LOADING_S + STEP_S) + 5 * DEVICE_SYNC_S
    assert clock.events.count("on_step") == 11

    class Refusing(Observer):
        def on_block(self, block):
            raise ArithmeticError

    measure = fixed_length_phase("measure", 9, 1)
    with pytest.raises(ArithmeticError):
        train_through(clock, measure, observer=Refusing(clock, [9]))
    assert measure.series.losses == [], "a block that its observer refuses is not kept"


def test_an_observer_comes_before_the_decision_of_its_phase_and_ends_the_loop(clock):
    train_through(
        clock, create_phase(clock, "warmup", 2, 1), create_phase(clock, "measure", 9, 2), observer=Observer(clock, [3])
    )
    block = ["synchronize", "draw", "step", "on_step", "synchronize", "fetch", "on_block"]
    assert clock.events == [
        "start warmup",
        *[*block, "decide warmup"],
        *[*block, "decide warmup", "start measure"],
        *block,
    ], "the last block is shortened, and its phase decides nothing any more"
