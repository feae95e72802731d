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

from scalebench.measure.loop import Series, Stage
from scalebench.measure.stopping import GO_ON, STOP, WARMUP_BLOCKS, enough, measuring, steps_per_block, warmup
from scalebench.spec import MeasureSpec

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


@pytest.mark.parametrize("warmup_steps", [0, 1, 4, 5, 6, 49, 50, 51])
def test_warmup_counts_whole_blocks(warmup_steps: int) -> None:
    reports: list[int] = []
    stage = warmup(dataclasses.replace(SETTINGS, warmup_steps=warmup_steps), lambda s: reports.append(len(s.seconds)))
    stage.series.steps = steps = stage.start(None)
    while True:
        stage.series.seconds.append(0.01)
        if stage.decide(stage.series):
            break
    blocks = len(stage.series.seconds)
    assert blocks <= WARMUP_BLOCKS
    assert warmup_steps <= blocks * steps < max(warmup_steps, 1) + steps
    assert reports == list(range(1, blocks + 1))


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
    monkeypatch.setattr(time, "time", lambda: clock.s)
    return clock


def measured(strategy: Any, lockstep: bool = True, reports: list[Any] | None = None) -> Stage:
    stage = measuring(strategy, SETTINGS, lockstep, (reports if reports is not None else []).append)
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
