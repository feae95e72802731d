"""The runs of a sweep that are worth the time that is left."""

from hypothesis import given
from hypothesis import strategies as st

from scalebench.sweeps.time_budget import select_affordable
from tests.builders.runs import simulated_spec

COUNTS, REPEATS = (1, 2, 4, 8), 4
PLANNED = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in range(REPEATS) for gpus in COUNTS]


def names(specs):
    return [(spec.gpus, spec.config.repeat) for spec in specs]


def keep(seconds):
    """Return what is kept of runs that take a second each."""
    kept = select_affordable(PLANNED, PLANNED, [1.0] * len(PLANNED), seconds)
    return names([PLANNED[place] for place in kept])


def test_the_least_informative_runs_are_dropped_first():
    """A configuration is dropped with all its repeats: fewer than three allow no verdict."""
    first_three = [(gpus, repeat) for repeat in range(3) for gpus in COUNTS]
    assert set(names(PLANNED)) - set(keep(15)) == {(4, 3)}, "a fourth repeat, between the ends of the curve"
    assert keep(13) == [*first_three, (1, 3)] and keep(12) == first_three
    assert keep(11) == keep(9) == [run for run in first_three if run[0] != 4]
    assert keep(8) == keep(6) == [run for run in first_three if run[0] in (1, 8)]
    assert keep(5) == keep(3) == [(1, 0), (1, 1), (1, 2)]


def test_of_the_last_configuration_as_many_repeats_are_kept_as_fit():
    assert [keep(seconds) for seconds in (2, 1, 0)] == [[(1, 0), (1, 1)], [(1, 0)], []]


def test_strategies_have_curves_of_their_own():
    other = [simulated_spec(options={"step_s": 0.5}, size=1000, gpus=gpus) for gpus in (1, 2)]
    planned = [*(simulated_spec(size=1000, gpus=gpus) for gpus in COUNTS), *other]
    kept = select_affordable(planned, planned, [1.0] * 6, 4)
    assert names([planned[place] for place in kept]) == [(1, 0), (8, 0), (1, 0), (2, 0)], "two are the other's most"
    assert select_affordable(planned, planned, [1.0] * 6, 3) == [0, 3, 4], "the last curve first"
    assert select_affordable(planned, planned, [1.0] * 6, 2) == [0, 3]


def test_an_unsupported_run_is_no_end_of_a_curve_and_costs_nothing():
    planned = [simulated_spec(size=1000, gpus=gpus) for gpus in (1, 2, 4)]
    planned[2].unsupported = "too many"
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 1.0) == [0, 2]
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 0.0) == [2]
    only = planned[2:]
    assert select_affordable(only, only, [0.0], 0.0) == [0]


def test_curve_ends_are_those_of_the_entire_sweep():
    """Two devices are not the most because four have been measured before."""
    planned = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in (0, 1) for gpus in (1, 2, 4)]
    rest = [planned[1], planned[3]]  # two devices; the second repeat of one
    assert select_affordable(rest, planned, [1.0, 1.0], 1.0) == [1]


@given(st.lists(st.floats(0.0, 100.0), min_size=len(PLANNED), max_size=len(PLANNED)), st.floats(-10.0, 2000.0))
def test_selected_runs_fit_and_keep_their_order(costs_s, left_s):
    kept = select_affordable(PLANNED, PLANNED, costs_s, left_s)
    assert kept == sorted(set(kept))
    spent_s = sum(costs_s[place] for place in kept)
    assert spent_s <= max(left_s, 0.0) + 1e-9
    assert all(costs_s[place] > 0 for place in set(range(len(PLANNED))) - set(kept))
    if sum(costs_s) <= left_s:
        assert len(kept) == len(PLANNED)
