"""The timed loop on a clock of the test, how long warm-up and measuring last in it, and which rank decides."""

import dataclasses
import itertools
import math
import time
from types import SimpleNamespace

import pytest

from scalebench.core.spec import MeasureSpec
from scalebench.measure import stopping_rule
from scalebench.measure.timed_loop import BlockSeries, LoopPhase, TimedLoop, fixed_length_phase
from scalebench.strategies.base import LossPart

SETTINGS = MeasureSpec(warmup_steps=50, block_s=0.05, min_s=3.0, max_s=30.0, target=0.01)


def series(seconds, steps=1):
    return BlockSeries(steps, seconds, [10] * len(seconds))


def precise(blocks=64):
    return series([0.1 + 1e-4 * (-1) ** i for i in range(blocks)])


class Rank:
    """The part of a strategy that the phases use; `from_rank_0` returns the value that rank 0 broadcasts."""

    has_program = False

    def __init__(self, rank, from_rank_0=lambda value: value):
        self.place, self.spec = SimpleNamespace(rank=rank), SimpleNamespace(device="cpu")
        self.broadcasts = []
        self._from_rank_0 = from_rank_0

    def broadcast(self, value):
        self.broadcasts.append(value)
        return self._from_rank_0(value)


@pytest.fixture
def now(monkeypatch):
    clock = SimpleNamespace(s=1000.0)
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: clock.s)
    return clock


def test_a_block_has_the_steps_that_fill_its_time():
    for seconds, steps, block_s, expected in (
        ([0.1, 0.1, 0.1], 1, 0.05, 1),
        ([9.0, 9.0, 0.01, 0.01, 0.01], 1, 0.05, 5),  # the first blocks warm up
        ([9.0, 9.0, 0.01, 9.0, 0.01], 1, 0.05, 5),  # the median: one slow block changes nothing
        ([0.1] * 5, 10, 0.054, 5),
        ([0.1] * 5, 10, 0.056, 6),
        ([0.0, 0.0], 5, 0.05, 1),  # the clock is too coarse
        ([], 5, 0.05, 1),
    ):
        chosen = stopping_rule.choose_steps_per_block(series(seconds, steps), block_s, "cpu")
        assert chosen == expected, (seconds, steps)
        assert stopping_rule.choose_steps_per_block(None, block_s, "cpu") == 1
    # On a GPU it is long beside the emptying of its queue: a quarter of a second, ten steps, or as many as fit into
    # 2.5 s, or as long as requested.
    for (step_s, block_s), expected in {
        (0.001, 0.05): 250, (0.04, 0.05): 10, (0.2, 0.05): 10, (0.5, 0.05): 5, (7.0, 0.05): 1, (0.001, 1.0): 1000,
    }.items():  # fmt: skip
        chosen = stopping_rule.choose_steps_per_block(series([step_s] * 5), block_s, "cuda")
        assert chosen == expected, (step_s, block_s)


def run_warmup(step_s, strategy=None, synchronous=True, **settings):
    clock = SimpleNamespace(s=0.0)
    changed = dataclasses.replace(SETTINGS, **settings)
    warmup = stopping_rule.Warmup(strategy or Rank(0), changed, synchronous, lambda series: None, lambda: clock.s)
    warmup.phase.series.steps = warmup.phase.start(None)
    assert warmup.phase.series.steps == 1, "so that a step that compiles is in a block of its own"
    for number in range(100_000):
        clock.s += step_s(number)
        warmup.phase.series.seconds.append(step_s(number))
        if warmup.phase.decide(warmup.phase.series):
            return warmup
    raise AssertionError("it never ends")


def jitter(number):
    return 1e-4 * math.sin(number * number)


def test_warmup_lasts_until_steady_state_is_visible_and_is_bounded():
    """Where 40 of the first 50 steps are slow, the fast ones could be the exception: a second check is needed."""
    for length, slow_s, steps in ((0, 0.1, 50), (1, 0.1, 50), (10, 0.1, 50), (30, 0.1, 100), (40, 0.012, 100)):
        warmup = run_warmup(lambda k, n=length, s=slow_s: (s if k < n else 0.01) + jitter(k), warmup_max_s=1e9)
        assert (warmup.steady_after_steps, len(warmup.phase.series.seconds)) == (length, steps)
    for length in (10, 40, 200):  # of one that fades
        fading = lambda k, n=length: 0.01 + 0.05 * math.exp(-3 * k / n) + jitter(k) / 10  # noqa: E731
        steady = run_warmup(fading, warmup_max_s=1e9).steady_after_steps
        assert length <= 3 * steady and steady <= 3 * length
    for minimum, maximum, steps in ((50, 120, 120), (50, 20, 50), (0, 0, 1), (7, 7, 7), (0, 40, 40)):
        warmup = run_warmup(lambda k: 1 / (k + 1), warmup_steps=minimum, warmup_max_steps=maximum, warmup_max_s=1e9)
        assert (warmup.steady_after_steps, len(warmup.phase.series.seconds)) == (None, steps)
    warmup = run_warmup(lambda k: 0.1 + k / 100, warmup_steps=30, warmup_max_s=5.0)
    assert (warmup.steady_after_steps, len(warmup.phase.series.seconds)) == (None, 30)
    enough = {0.1: 50, 0.5: 40, 1.0: 20, 3.0: 7, 10.0: 5, 1000.0: 5}  # as many slow steps as fit
    for step_s, steps in enough.items():
        warmup = run_warmup(lambda k, step_s=step_s: 60.0 if k == 0 else step_s, warmup_max_s=20.0)
        assert len(warmup.phase.series.seconds) == steps


def test_rank_0_ends_the_warmup_of_all_ranks_that_synchronize():
    rank_0 = Rank(0)
    first = run_warmup(lambda k: (0.1 if k < 10 else 0.01) + jitter(k), rank_0)
    decisions = list(rank_0.broadcasts)
    other = run_warmup(lambda k: 0.01 * (k + 1), Rank(1, lambda value: decisions.pop(0)))
    assert (first.steady_after_steps, other.steady_after_steps) == (10, 10)
    assert len(first.phase.series.seconds) == len(other.phase.series.seconds)
    enough = [6.2, -1.0, 1.0]  # slow steps, and then no end yet
    other = run_warmup(lambda k: 1e-3 + jitter(k), Rank(1, lambda value: enough.pop(0)))
    assert len(other.phase.series.seconds) == 7
    replica = Rank(1)
    assert run_warmup(lambda k: 0.01 + jitter(k), replica, synchronous=False).steady_after_steps == 0
    assert replica.broadcasts == []


def start_measuring(strategy, synchronous=True, reports=None):
    report = (reports if reports is not None else []).append
    phase = stopping_rule.create_measure_phase(strategy, SETTINGS, synchronous, report, lambda: time.perf_counter())
    phase.series.steps = phase.start(series([0.01] * 5))
    return phase


def test_measuring_stops_when_precise_after_the_minimum_or_at_the_maximum(now):
    for (blocks, elapsed_s), stops in {
        (64, 2.9): False, (64, 3.0): True, (63, 3.0): False, (65, 29.9): False, (128, 3.0): True, (1, 30.0): True,
    }.items():  # fmt: skip
        phase = start_measuring(Rank(0))
        now.s += elapsed_s
        assert phase.decide(precise(blocks)) is stops, (blocks, elapsed_s)
    # A third of the time may be too short for eight blocks: a repeat takes longer then, but not longer than all three
    # may take together.
    settings = dataclasses.replace(SETTINGS, max_s=10.0, repeats=3)
    cases = {(8, 9.9): False, (8, 10.0): True, (7, 10.0): False, (1, 29.9): False, (1, 30.0): True}
    assert {case: stopping_rule.is_long_enough(precise(case[0]), settings, case[1]) for case in cases} == cases
    wide = series([0.1 + 0.09 * (-1) ** i for i in range(64)] + [0.5] * 64)
    phase, begin_s = start_measuring(Rank(0)), now.s
    for now.s, stops in ((math.nextafter(begin_s + 30.0, 0), False), (begin_s + 30.0, True)):
        assert phase.decide(wide) is stops


def test_rank_0_decides_for_synchronous_ranks(now):
    strategy, reports = Rank(0), []
    phase = start_measuring(strategy, reports=reports)
    assert (phase.name, phase.limit_s, phase.series.steps) == ("measure", 30.0, 5)
    assert strategy.broadcasts == [5.0]
    assert not phase.decide(precise())
    now.s += 3.0
    assert phase.decide(precise())
    assert strategy.broadcasts[1:] == [0.0, 1.0] and len(reports) == 2
    decisions = [7.0, 0.0, 1.0]
    other = Rank(1, lambda value: decisions.pop(0))
    phase = start_measuring(other)
    assert phase.series.steps == 7, "blocks are as long as those of rank 0"
    now.s += 100.0
    assert not phase.decide(precise())
    assert phase.decide(series([0.1]))
    assert other.broadcasts[1:] == [0.0, 0.0], "only rank 0 decides"


@pytest.mark.parametrize("rank", [0, 1])
def test_replicas_without_synchronization_stop_at_a_common_deadline(rank, now):
    strategy = Rank(rank, lambda value: value if value < 100 else 998.0)  # rank 0 began 2 s ago
    phase = start_measuring(strategy, synchronous=False)
    assert strategy.broadcasts == [5.0, 1000.0]
    now.s = 998.0 + 29.9
    assert not phase.decide(precise())
    now.s = 998.0 + 30.0
    assert phase.decide(precise(3))
    assert len(strategy.broadcasts) == 2


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


def test_pauses_use_up_no_time_of_a_program():
    settings = MeasureSpec(min_s=0.0, max_s=10.0, target=0.01)
    series = BlockSeries(1, [1.0] * 9 + [30.0], [8] * 10, [None] * 10, pauses=[""] * 9 + ["evaluation"])
    assert not stopping_rule.is_long_enough(series, settings, 39.0)
    assert stopping_rule.is_long_enough(series, settings, 40.5)
