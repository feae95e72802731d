"""Clock offsets from broadcasts, in a simulation with known clocks and delays."""

from __future__ import annotations

import dataclasses
import random
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from scalebench.core.spec import RankPlacement, RunSpec
from scalebench.measure import clock_sync
from tests.builders.runs import rank, simulated_spec

NOON_S = 1_799_999_937.25  # a float32 misses it by a minute


def two_nodes() -> RunSpec:
    """Ranks 0 and 1 on node 0, rank 2 on node 1."""
    places = [
        RankPlacement(0, 0, 0, [0], [], 1),
        RankPlacement(1, 1, 0, [1], [], 1),
        RankPlacement(2, 0, 1, [0], [], 1),
    ]
    return dataclasses.replace(simulated_spec(), nodes=2, places=places)


class SimulatedGroup:
    """Rank 0, and one other, whose clock is `offset_s` ahead; a message takes `delays_s()` each way."""

    def __init__(self, offset_s: float, delays_s: Callable[[], float], kind: Callable[[float], float] = float) -> None:
        self.true_s, self._offset_s, self._delays_s, self._kind = NOON_S, offset_s, delays_s, kind
        self._rank_0 = self._broadcasts()

    def time(self) -> float:
        return self.true_s + self._offset_s

    def broadcast(self, value: float) -> float:
        return next(self._rank_0)

    def _broadcasts(self) -> Iterator[float]:
        """Yield the broadcasts of rank 0, which starts each when the last one is over; that needs the other rank."""
        base = NOON_S // clock_sync.BASE_STEP_S  # rank 0 may get back its exact value
        sent, base_s, started_s = self._kind(base), base * clock_sync.BASE_STEP_S, self.true_s
        while True:
            met_s = max(self.true_s + self._delays_s(), started_s)  # the message of the other rank has arrived
            self.true_s = met_s + self._delays_s()
            yield sent
            started_s = met_s + self._delays_s()
            sent = self._kind(started_s - base_s)


def measure_offset(monkeypatch: pytest.MonkeyPatch, world: SimulatedGroup, number: int = 2) -> float | None:
    monkeypatch.setattr(clock_sync, "time", SimpleNamespace(time=world.time))
    return clock_sync.measure_clock_offset_s(two_nodes(), number, world.broadcast)


@pytest.mark.parametrize("offset_s", [0.0, 2.5, -86400.0])
@pytest.mark.parametrize("kind", [float, lambda value: float(np.float32(value))], ids=["float64", "float32"])
def test_the_offset_is_measured(
    monkeypatch: pytest.MonkeyPatch, offset_s: float, kind: Callable[[float], float]
) -> None:
    world = SimulatedGroup(offset_s, lambda: 0.001, kind)
    assert measure_offset(monkeypatch, world) == pytest.approx(offset_s, abs=0.0016)


def test_the_quickest_round_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rounds take a tenth of a second, one way more than the other."""
    at_random = random.Random(0)
    quiet = iter([*[0.05] * 15, *[0.001] * 8, *[0.05] * 100])
    world = SimulatedGroup(3.0, lambda: next(quiet) * at_random.uniform(0.2, 2.0))
    assert measure_offset(monkeypatch, world) == pytest.approx(3.0, abs=0.01)


def test_rank_0_and_runs_on_one_node_have_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_offset(monkeypatch, SimulatedGroup(5.0, lambda: 0.001), number=1) is None  # rank 0's host
    assert measure_offset(monkeypatch, SimulatedGroup(5.0, lambda: 0.001), number=0) is None
    assert clock_sync.measure_clock_offset_s(two_nodes(), 2, lambda value: value) is None  # nothing comes from rank 0

    def not_asked(value: float) -> float:
        raise AssertionError

    assert (
        clock_sync.measure_clock_offset_s(simulated_spec(2), 1, not_asked) is None
    )  # on one node nobody is kept waiting


def test_every_rank_asks_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one would wait for ever."""
    counts = []
    for number in range(3):
        asked: list[float] = []

        def broadcast(value: float, asked: list[float] = asked) -> float:
            asked.append(value)
            return 1.0

        clock_sync.measure_clock_offset_s(two_nodes(), number, broadcast)
        counts.append(len(asked))
    assert counts == [clock_sync.CLOCK_ROUNDS + 1] * 3


def test_times_of_day_of_two_hosts() -> None:
    here = socket.gethostname()
    first, same = rank(0, hostname="a"), rank(1, hostname="a")
    ahead = rank(2, hostname="b", clock_offset_s=5.0)
    ours = rank(3, hostname=here, clock_offset_s=-2.0)
    assert clock_sync.to_rank_0_clock_s(105.0, ahead) == clock_sync.to_rank_0_clock_s(100.0, same) == 100.0
    assert (
        clock_sync.are_comparable([first, same, ahead])
        and clock_sync.are_comparable([first])
        and clock_sync.are_comparable([])
    )
    assert clock_sync.are_comparable([rank(2, hostname="b"), rank(3, hostname="b")])  # one host, whatever its clock
    assert not clock_sync.are_comparable([first, rank(2, hostname="b")])
    assert clock_sync.to_this_host_clock_s(105.0, ahead, [first, ahead, ours]) == 98.0
    assert clock_sync.to_this_host_clock_s(7.0, ours, [first, ours]) == 7.0
    assert clock_sync.to_this_host_clock_s(105.0, ahead, [first, ahead]) == 100.0  # nothing ran here
    assert not clock_sync.clocks_differ([first, rank(2, clock_offset_s=0.09)]) and clock_sync.clocks_differ(
        [first, ahead]
    )
    assert clock_sync.clocks_differ(
        [rank(1, clock_offset_s=0.06), rank(2, clock_offset_s=-0.06)]
    ) and not clock_sync.clocks_differ([])
