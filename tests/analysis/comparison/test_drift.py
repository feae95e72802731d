"""The sessions of a baseline over time: the session in which a configuration changed is marked, and nothing else."""

import math

import numpy as np
import pytest

from scalebench.analysis.comparison.drift import MIN_SESSIONS, find_changes
from tests.builders.comparisons import make_failed_run, make_runs

SPREAD = 0.01  # between sessions, and between repeats of one


def make_sessions(shares, seed=0, strategy="ddp", repeats=3, **changes):
    """Make a session a day whose throughput is a share of the first one's, with noise."""
    random = np.random.default_rng(seed)
    runs = []
    for day, share in enumerate(shares, 1):
        level = 0.1 / share * math.exp(random.normal(0, SPREAD))
        seconds = [level * math.exp(random.normal(0, SPREAD)) for _ in range(repeats)]
        runs += make_runs("a", seconds, strategy, day=day, **changes)
    return runs


def find_one(runs):
    (history,) = find_changes(runs)
    return history


def test_a_step_of_8_percent_in_the_seventh_of_ten_sessions_is_marked_there():
    history = find_one(make_sessions([1.0] * 6 + [0.92] * 4))
    assert history.change is not None and history.change.first == 6 and history.change.is_slower
    assert history.change.ratio.ratio == pytest.approx(0.92, abs=0.02) and history.change.p_holm < 0.01
    assert len(history.sessions) == 10 and all(len(each.repeats) == 3 for each in history.sessions)
    rates = [each.rate for each in history.sessions]
    assert all(rate is not None and rate.low < rate.value < rate.high for rate in rates)


@pytest.mark.parametrize("place", [3, 9])
def test_a_step_may_be_the_last_session_or_follow_three(place):
    history = find_one(make_sessions([1.0] * place + [1.2] * (10 - place), seed=1))
    assert history.change is not None and (history.change.first, history.change.is_slower) == (place, False)


# 5 % at most would have a mark; so many are what chance allows.
@pytest.mark.parametrize(("histories", "most"), [(15, 2), pytest.param(60, 8, marks=pytest.mark.slow)])
def test_histories_without_a_change_are_rarely_marked(histories, most):
    marked = 0
    for seed in range(histories):
        runs = [run for number, name in enumerate(("ddp", "fsdp", "zero1"))
                for run in make_sessions([1.0] * 8, 1000 * number + seed, name, repeats=1)]  # fmt: skip
        marked += any(history.change is not None for history in find_changes(runs))
    assert marked <= most


def test_three_sessions_give_no_verdict_however_large_the_step():
    history = find_one(make_sessions([1.0, 1.0, 0.5]))
    assert (history.change, history.has_verdict, MIN_SESSIONS) == (None, False, 4)


def test_an_upgrade_is_part_of_the_history_and_named():
    runs = make_sessions([1.0] * 5 + [0.8] * 3)
    for run in runs:
        run.record.scale.framework_version = "2.9" if run.started.day > 5 else "2.8"
        run.facts.other["framework_version"] = run.record.scale.framework_version
    history = find_one(runs)
    assert history.change is not None and history.change.first == 5
    assert [each[:3] for each in history.change.differences] == [("framework_version", "2.8", "2.9")]


def test_sessions_that_failed_or_were_disturbed_are_shown_and_not_judged():
    runs = make_sessions([1.0] * 4 + [0.2] + [1.0] * 3)
    for run in runs:
        if run.started.day == 5:
            run.record.flags.append("busy_machine")
    runs.append(make_failed_run("x", started_at="2026-01-20T00:00:00.000+00:00"))
    history = find_one(runs)
    assert history.change is None and [each.rate is None for each in history.sessions].count(True) == 2
    assert history.sessions[4].note == "other programs kept the processors busy"
    assert history.sessions[-1].note == "failed: failed as configured"
