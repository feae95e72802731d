"""Actions in blocks that all ranks begin together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.measure.timing import repeats_within, time_blocks, time_warm_call


def group(now: SimpleNamespace, events: list[str]) -> SimpleNamespace:
    def synchronize() -> None:
        events.append("synchronize")
        now.s += 10.0

    def broadcast(value: float) -> float:
        events.append("barrier")
        now.s += 1000.0
        return value

    return SimpleNamespace(synchronize=synchronize, broadcast=broadcast)


def test_a_block_has_its_calls_and_one_synchronization() -> None:
    now, events = SimpleNamespace(s=0.0), []

    def action() -> None:
        events.append("call")
        now.s += 1.0

    seconds = time_blocks(group(now, events), action, repeats=3, blocks=2, clock=lambda: now.s)  # type: ignore[arg-type]
    assert seconds == [13.0, 13.0]
    assert events == ["barrier", *["call"] * 3, "synchronize"] * 2


def test_first_calls_do_not_count() -> None:
    now, costs = SimpleNamespace(s=0.0), [500.0, 50.0, 1.0]

    def action() -> None:
        now.s += costs.pop(0)

    assert time_warm_call(group(now, []), action, lambda: now.s) == 11.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit_s", "each_s", "expected"), [(1.0, 0.1, 10), (1.0, 0.001, 20), (1.0, 3.0, 4), (1.0, 0.0, 20), (0.0, 1.0, 4)]
)
def test_repeats_fill_the_time_within_bounds(limit_s: float, each_s: float, expected: int) -> None:
    assert repeats_within(limit_s, each_s, 4, 20) == expected


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 100), st.integers(0, 100))
def test_repeats_never_exceed_their_bounds(limit_s: float, each_s: float, minimum: int, more: int) -> None:
    assert minimum <= repeats_within(limit_s, each_s, minimum, minimum + more) <= minimum + more
