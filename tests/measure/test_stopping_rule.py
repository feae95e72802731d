"""How long warm-up and measuring last, and who says stop."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.spec import MeasureSpec
from scalebench.measure.stopping_rule import GO_ON, STOP, Warmup, enough, fitted, measuring, steps_per_block, until_over
from scalebench.measure.timed_loop import Series, Stage

SETTINGS = MeasureSpec(warmup_steps=50, block_s=0.05, min_s=3.0, max_s=30.0, target=0.01)


def series(seconds: list[float], steps: int = 1) -> Series:
    return Series(steps, seconds, [10] * len(seconds))


def precise(blocks: int = 64) -> Series:
    return series([0.1 + 1e-4 * (-1) ** i for i in range(blocks)])


@pytest.mark.parametrize(
    ("seconds", "steps", "block_s", "expected"),
    [
        ([0.1, 0.1, 0.1], 1, 0.05, 1),
        ([0.01, 0.01], 1, 0.05, 5),
        ([9.0, 9.0, 0.01, 0.01, 0.01], 1, 0.05, 5),  # the first blocks warm up
        ([9.0, 9.0, 0.01, 9.0, 0.01], 1, 0.05, 5),  # the median: one slow block changes nothing
        ([0.1] * 5, 10, 0.05, 5),
        ([0.1] * 5, 10, 0.054, 5),
        ([0.1] * 5, 10, 0.056, 6),
        ([0.0, 0.0], 5, 0.05, 1),  # a clock too coarse
        ([], 5, 0.05, 1),
    ],
)
def test_steps_per_block(seconds: list[float], steps: int, block_s: float, expected: int) -> None:
    assert steps_per_block(series(seconds, steps), block_s) == expected


def test_steps_per_block_without_any_warmup() -> None:
    assert steps_per_block(None, 0.05) == 1


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=20), st.integers(1, 100), st.floats(1e-3, 1))
def test_a_block_lasts_about_as_long_as_asked(seconds: list[float], steps: int, block_s: float) -> None:
    chosen = steps_per_block(series(seconds, steps), block_s)
    later = seconds[len(seconds) // 2 :]
    assert chosen >= 1
    assert chosen == 1 or (chosen - 1) * min(later) / steps < block_s < (chosen + 1) * max(later) / steps


@pytest.mark.parametrize(
    ("blocks", "elapsed_s", "expected"),
    [(64, 2.9, False), (64, 3.0, True), (63, 3.0, False), (65, 29.9, False), (128, 3.0, True), (1, 30.0, True)],
)
def test_enough_is_precise_after_the_minimum_or_the_maximum(blocks: int, elapsed_s: float, expected: bool) -> None:
    assert enough(precise(blocks), SETTINGS, elapsed_s) is expected


def test_enough_goes_on_while_the_interval_is_wide() -> None:
    wide = series([0.1 + 0.09 * (-1) ** i for i in range(64)] + [0.5] * 64)
    assert not enough(wide, SETTINGS, 10.0)
    assert enough(wide, SETTINGS, 30.0)


class Rank:
    """As much of a strategy as the measured stage sees; `heard` is what rank 0 says."""

    def __init__(self, rank: int, heard: Callable[[float], float] = lambda own: own) -> None:
        self.place = SimpleNamespace(rank=rank)
        self.said: list[float] = []
        self._heard = heard

    def broadcast(self, value: float) -> float:
        self.said.append(value)
        return self._heard(value)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(s=1000.0)
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: clock.s)
    return clock


def warmed(step_s: Callable[[int], float], strategy: Any = None, lockstep: bool = True, **settings: Any) -> Warmup:
    """A warm-up that went on until it was over; update k takes `step_s(k)`."""
    clock = SimpleNamespace(s=0.0)
    chosen = dataclasses.replace(SETTINGS, **settings)
    warmup = Warmup(strategy or Rank(0), chosen, lockstep, lambda series: None, lambda: clock.s)
    warmup.stage.series.steps = warmup.stage.start(None)
    assert warmup.stage.series.steps == 1, "so that an update that compiles is a block of its own"
    for number in range(100_000):
        clock.s += step_s(number)
        warmup.stage.series.seconds.append(step_s(number))
        if warmup.stage.decide(warmup.stage.series):
            return warmup
    raise AssertionError("it never ends")


def jitter(number: int) -> float:
    return 1e-4 * math.sin(number * number)


@pytest.mark.parametrize(("length", "updates"), [(0, 50), (1, 50), (10, 50), (30, 100)])
def test_warmup_lasts_until_steady_state_can_be_seen(length: int, updates: int) -> None:
    warmup = warmed(lambda k: (0.1 if k < length else 0.01) + jitter(k), warmup_max_s=1e9)
    assert warmup.found_steps == length
    assert len(warmup.stage.series.seconds) == updates


@pytest.mark.parametrize("lasts", [10, 40, 200])
def test_a_warmup_that_fades_is_waited_for(lasts: int) -> None:
    warmup = warmed(lambda k: 0.01 + 0.05 * math.exp(-3 * k / lasts) + jitter(k) / 10, warmup_max_s=1e9)
    assert warmup.found_steps is not None
    assert lasts <= 3 * warmup.found_steps and warmup.found_steps <= 3 * lasts


def test_a_warmup_that_goes_on_for_most_of_a_look_is_not_taken_for_steady() -> None:
    """Seen from its first 50 updates, 40 of which are slow, the fast ones could be the exception."""
    assert warmed(lambda k: (0.012 if k < 40 else 0.01) + jitter(k), warmup_max_s=1e9).found_steps == 40


@pytest.mark.parametrize(
    ("least", "most", "updates"), [(50, 120, 120), (50, 20, 50), (0, 0, 1), (7, 7, 7), (0, 40, 40)]
)
def test_warmup_is_bounded_in_updates(least: int, most: int, updates: int) -> None:
    warmup = warmed(lambda k: 1 / (k + 1), warmup_steps=least, warmup_max_steps=most, warmup_max_s=1e9)
    assert (warmup.found_steps, len(warmup.stage.series.seconds)) == (None, updates)


def test_warmup_is_bounded_in_time_once_its_steps_are_done() -> None:
    warmup = warmed(lambda k: 0.1 + k / 100, warmup_steps=30, warmup_max_s=5.0)
    assert (warmup.found_steps, len(warmup.stage.series.seconds)) == (None, 30)


@pytest.mark.parametrize(("step_s", "updates"), [(0.1, 50), (0.5, 40), (1.0, 20), (3.0, 7), (10.0, 5), (1000.0, 5)])
def test_of_slow_updates_as_many_as_fit_are_enough(step_s: float, updates: int) -> None:
    warmup = warmed(lambda k: 60.0 if k == 0 else step_s, warmup_max_s=20.0)  # the first one compiles
    assert len(warmup.stage.series.seconds) == updates


def test_rank_0_says_how_many_slow_updates_are_enough() -> None:
    words = [6.2, -1.0, 1.0]
    other = warmed(lambda k: 1e-3 + jitter(k), Rank(1, lambda own: words.pop(0)))
    assert len(other.stage.series.seconds) == 7


def test_rank_0_ends_the_warmup_of_all() -> None:
    rank_0, told = Rank(0), []
    first = warmed(lambda k: (0.1 if k < 10 else 0.01) + jitter(k), rank_0)
    told = list(rank_0.said)
    other = warmed(lambda k: 0.01 * (k + 1), Rank(1, lambda own: told.pop(0)))
    assert (first.found_steps, other.found_steps) == (10, 10)
    assert len(first.stage.series.seconds) == len(other.stage.series.seconds)


def test_replicas_warm_up_without_talk() -> None:
    alone = Rank(1)
    assert warmed(lambda k: 0.01 + jitter(k), alone, lockstep=False).found_steps == 0
    assert alone.said == []


def measured(strategy: Any, lockstep: bool = True, reports: list[Any] | None = None) -> Stage:
    reported = (reports if reports is not None else []).append
    stage = measuring(strategy, SETTINGS, lockstep, reported, lambda: time.perf_counter())
    stage.series.steps = stage.start(series([0.01] * 5))
    return stage


def test_rank_0_decides_in_lockstep(now: SimpleNamespace) -> None:
    strategy, reports = Rank(0), []
    stage = measured(strategy, reports=reports)
    assert (stage.name, stage.limit_s, stage.series.steps) == ("measure", 30.0, 5)
    assert strategy.said == [5.0]
    assert not stage.decide(precise())
    now.s += 3.0
    assert not stage.decide(precise(65))
    assert stage.decide(precise())
    assert strategy.said[1:] == [GO_ON, GO_ON, STOP]
    assert len(reports) == 3


def test_the_other_ranks_obey_whatever_they_see(now: SimpleNamespace) -> None:
    words = [7.0, GO_ON, STOP]
    strategy = Rank(1, lambda own: words.pop(0))
    stage = measured(strategy)
    assert stage.series.steps == 7, "blocks are as long as those of rank 0"
    now.s += 100.0
    assert not stage.decide(precise())
    assert stage.decide(series([0.1]))
    assert strategy.said[1:] == [GO_ON, GO_ON], "only rank 0 has a say"


@pytest.mark.parametrize("rank", [0, 1])
def test_replicas_stop_at_the_common_deadline_without_talk(rank: int, now: SimpleNamespace) -> None:
    strategy = Rank(rank, lambda own: own if own < 100 else 998.0)  # rank 0 began 2 s ago
    stage = measured(strategy, lockstep=False)
    assert strategy.said == [5.0, 1000.0]
    now.s = 998.0 + 29.9
    assert not stage.decide(precise())
    now.s = 998.0 + 30.0
    assert stage.decide(precise(3))
    assert len(strategy.said) == 2


def test_at_the_maximum_measuring_stops_in_any_case(now: SimpleNamespace) -> None:
    stage = measured(Rank(0))
    now.s = math.nextafter(1030.0, 0)
    assert not stage.decide(series([0.1]))
    now.s = 1030.0
    assert stage.decide(series([0.1]))


@pytest.mark.parametrize(
    ("steps", "between", "expected"),
    [(5, None, 5), (5, 100, 5), (60, 100, 50), (60, 101, 50), (4, 7, 3), (50, 10, 10), (1, 10, 1), (7, 1, 1)],
)
def test_blocks_are_fitted_between_two_points(steps: int, between: int | None, expected: int) -> None:
    assert fitted(steps, between) == expected


@given(st.integers(1, 300), st.integers(1, 300))
def test_hardly_an_update_is_left_over(steps: int, between: int) -> None:
    found = fitted(steps, between)
    blocks = between // found
    assert 1 <= found <= steps and between - blocks * found < blocks + 1


def test_a_training_to_a_stop_is_not_ended_by_its_figures() -> None:
    words = [7.0]
    stage = until_over(Rank(1, lambda own: words.pop(0)), SETTINGS, lambda: 10, 4.0)  # type: ignore[arg-type]
    assert (stage.name, stage.limit_s, stage.start(series([0.01] * 5))) == ("measure", 4.0, 5)
    assert not stage.decide(precise()), "and no rank talks"
