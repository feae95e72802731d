"""How often the monitor takes each kind of sample, on a clock of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalebench.core.spec import write_spec
from scalebench.measure.monitor import __main__ as sampling
from scalebench.measure.monitor.__main__ import Sampler
from tests.builders.runs import simulated_spec
from tests.nvml_stand_in import put_in


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sampling, "time", clock)
    return clock


@pytest.fixture
def counts(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> tuple[Sampler, dict[str, int]]:
    """Return a sampler, and how often it took each kind of sample."""
    put_in(monkeypatch, nvml_library)
    write_spec(simulated_spec(), tmp_path)
    sampler = Sampler(tmp_path, os.getpid())
    taken_by_name: dict[str, int] = {}

    def count(name: str):
        def part() -> None:
            taken_by_name[name] = taken_by_name.get(name, 0) + 1
            sampler.rows.add(1.0, "gpu0", name, 1.0)

        return part

    parts = {part: count(part.__name__) for part in sampler._interval_s}
    for name in ("_interval_s", "_due_s"):
        setattr(sampler, name, {parts[part]: value for part, value in getattr(sampler, name).items()})
    return sampler, taken_by_name


def sample_for(sampler: Sampler, clock: Clock, seconds: float) -> None:
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        sampler.sample()
        rest_s = sampler.seconds_to_next()
        assert 0 < rest_s <= 0.1 + 1e-9 or len(sampler.rows) > 100
        clock.now_s += rest_s


def test_each_kind_of_sample_has_its_interval(counts: tuple[Sampler, dict[str, int]], clock: Clock) -> None:
    sampler, taken_by_name = counts
    sample_for(sampler, clock, 10.0)
    assert {name: pytest.approx(n, abs=2) for name, n in taken_by_name.items()} == {
        "sample": 100, "_sample_host": 20, "sample_slow": 20, "_count_foreign_processes": 5,
    }  # fmt: skip


def test_samples_missed_in_a_stall_are_not_made_up_for(counts: tuple[Sampler, dict[str, int]], clock: Clock) -> None:
    sampler, taken_by_name = counts
    sampler.sample()
    clock.now_s += 60.0
    sample_for(sampler, clock, 1.0)
    assert taken_by_name["sample"] <= 13


def test_a_long_run_is_sampled_less_and_less_often(
    counts: tuple[Sampler, dict[str, int]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, taken_by_name = counts
    sampler._slowing_rows = 200
    monkeypatch.setattr(sampling, "ROWS_BEFORE_SLOWING", 200)
    per_period = []
    for _ in range(4):
        before = taken_by_name.get("sample", 0)
        sample_for(sampler, clock, 100.0)
        per_period.append(taken_by_name["sample"] - before)
    assert len(sampler.rows) < 1500 and per_period[0] > 200 and per_period[-1] < per_period[0] / 2


def test_sample_all_takes_every_kind_of_sample(counts: tuple[Sampler, dict[str, int]], clock: Clock) -> None:
    sampler, taken_by_name = counts
    sampler.sample()
    clock.now_s += 0.01
    sampler.sample_all()
    assert set(taken_by_name.values()) == {2}
