"""The runs of a sweep that are worth the time that is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.spec import RunSpec
from scalebench.sweeps.time_budget import select_affordable
from tests.builders.runs import simulated_spec

COUNTS, REPEATS = (1, 2, 4, 8), 4
PLANNED = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in range(REPEATS) for gpus in COUNTS]


def names(specs: list[RunSpec]) -> list[tuple[int, int]]:
    return [(spec.gpus, spec.config.repeat) for spec in specs]


def list_dropped_runs() -> list[tuple[int, int]]:
    """The runs in the order in which ever less time leaves them out."""
    left: list[tuple[int, int]] = []
    for seconds in range(len(PLANNED) - 1, -1, -1):
        kept = select_affordable(PLANNED, PLANNED, [1.0] * len(PLANNED), seconds)
        assert len(kept) == seconds and not {names(PLANNED)[place] for place in kept} & set(left)
        left += [name for place, name in enumerate(names(PLANNED)) if place not in kept and name not in left]
    return left


def test_the_least_informative_runs_are_dropped_first() -> None:
    assert list_dropped_runs() == [
        *[(8, 3), (4, 3), (2, 3), (1, 3)],  # a fourth repeat
        *[(4, 2), (2, 2), (4, 1), (2, 1)],  # further repeats between the ends of the curve
        *[(4, 0), (2, 0)],  # those counts at all
        *[(8, 2), (1, 2), (8, 1), (1, 1)],  # third and second repeats
        *[(8, 0), (1, 0)],
    ]


def test_strategies_have_curves_of_their_own() -> None:
    other = [simulated_spec(options={"step_s": 0.5}, size=1000, gpus=gpus) for gpus in (1, 2)]
    planned = [*(simulated_spec(size=1000, gpus=gpus) for gpus in COUNTS), *other]
    kept = select_affordable(planned, planned, [1.0] * 6, 4)
    assert names([planned[place] for place in kept]) == [(1, 0), (8, 0), (1, 0), (2, 0)], "two are the other's most"


def test_an_unsupported_run_is_no_end_of_a_curve_and_costs_nothing() -> None:
    planned = [simulated_spec(size=1000, gpus=gpus) for gpus in (1, 2, 4)]
    planned[2].unsupported = "too many"
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 1.0) == [0, 2]
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 0.0) == [2]
    only = planned[2:]
    assert select_affordable(only, only, [0.0], 0.0) == [0]


def test_curve_ends_are_those_of_the_entire_sweep() -> None:
    """Two devices are not the most because four have been measured before."""
    planned = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in (0, 1) for gpus in (1, 2, 4)]
    rest = [planned[1], planned[3]]  # two devices; the second repeat of one
    assert select_affordable(rest, planned, [1.0, 1.0], 1.0) == [1]


@given(st.lists(st.floats(0.0, 100.0), min_size=len(PLANNED), max_size=len(PLANNED)), st.floats(-10.0, 2000.0))
def test_selected_runs_fit_and_keep_their_order(costs_s: list[float], left_s: float) -> None:
    kept = select_affordable(PLANNED, PLANNED, costs_s, left_s)
    assert kept == sorted(set(kept))
    spent_s = sum(costs_s[place] for place in kept)
    assert spent_s <= max(left_s, 0.0) + 1e-9
    assert all(costs_s[place] > 0 for place in set(range(len(PLANNED))) - set(kept))
    if sum(costs_s) <= left_s:
        assert len(kept) == len(PLANNED)
