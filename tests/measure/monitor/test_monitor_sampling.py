"""How often the monitor samples what, on a clock of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scalebench.core.spec import write_spec
from scalebench.measure.monitor import __main__ as sampling
from scalebench.measure.monitor.__main__ import Monitor
from tests.builders.runs import simulated_spec
from tests.nvml_stand_in import put_in


class Clock:
    """Time that passes as it is told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sampling, "time", made)
    return made


@pytest.fixture
def counts(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> tuple[Monitor, dict[str, int]]:
    """A monitor, and how often it took each kind of sample."""
    put_in(monkeypatch, nvml_library)
    write_spec(simulated_spec(), tmp_path)
    monitor = Monitor(tmp_path, os.getpid())
    found: dict[str, int] = {}

    def counted(name: str):
        def part() -> None:
            found[name] = found.get(name, 0) + 1
            monitor.rows.add(1.0, "gpu0", name, 1.0)

        return part

    parts = {part: counted(part.__name__) for part in monitor._interval_s}
    for kept in ("_interval_s", "_due_s"):
        setattr(monitor, kept, {parts[part]: value for part, value in getattr(monitor, kept).items()})
    return monitor, found


def go(monitor: Monitor, clock: Clock, seconds: float) -> None:
    end_s = clock.now_s + seconds
    while clock.now_s < end_s:
        monitor.sample()
        rest_s = monitor.rest_s()
        assert 0 < rest_s <= 0.1 + 1e-9 or len(monitor.rows) > 100
        clock.now_s += rest_s


def test_each_at_its_own_pace(counts: tuple[Monitor, dict[str, int]], clock: Clock) -> None:
    monitor, found = counts
    go(monitor, clock, 10.0)
    assert {name: pytest.approx(n, abs=2) for name, n in found.items()} == {
        "sample": 100, "_host_and_processes": 20, "sample_slow": 20, "_foreign": 5,
    }  # fmt: skip


def test_after_a_stall_nothing_is_made_up_for(counts: tuple[Monitor, dict[str, int]], clock: Clock) -> None:
    monitor, found = counts
    monitor.sample()
    clock.now_s += 60.0
    go(monitor, clock, 1.0)
    assert found["sample"] <= 13


def test_a_long_run_is_sampled_less_and_less_often(
    counts: tuple[Monitor, dict[str, int]], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, found = counts
    monitor._many = 200
    monkeypatch.setattr(sampling, "MANY_ROWS", 200)
    taken = []
    for _ in range(4):
        before = found.get("sample", 0)
        go(monitor, clock, 100.0)
        taken.append(found["sample"] - before)
    assert len(monitor.rows) < 1500 and taken[0] > 200 and taken[-1] < taken[0] / 2


def test_the_last_sample_is_of_everything(counts: tuple[Monitor, dict[str, int]], clock: Clock) -> None:
    monitor, found = counts
    monitor.sample()
    clock.now_s += 0.01
    monitor.last()
    assert set(found.values()) == {2}
