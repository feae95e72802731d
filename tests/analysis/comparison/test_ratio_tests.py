"""Ratios of repeats, against scipy and by hand, and the session of a baseline in which a configuration changed."""

import math

import numpy as np
import pytest
import scipy.stats

from scalebench.analysis.comparison import sessions
from scalebench.analysis.comparison.drift import MIN_SESSIONS, find_changes
from tests.builders.comparisons import make_failed_run, make_runs

A, B = [100.0, 103.0, 99.0, 101.0], [92.0, 97.0, 95.0]
SPREAD = 0.01  # between sessions, and between repeats of one


def logs(values):
    return [math.log(value) for value in values]


# Two repeats beside several share their variance.
@pytest.mark.parametrize(("b", "name"), [(B, "Welch"), ([92.0, 95.0], "Student"), ([92.0, 97.0], "Student")])
def test_ratios_agree_with_scipy(b, name):
    actual = sessions.compare_independent(A, b, "repeats")
    expected = scipy.stats.ttest_ind(logs(b), logs(A), equal_var=name == "Student")
    assert actual.test == f"{name}'s t, 4 and {len(b)} repeats"
    assert actual.ratio == pytest.approx(scipy.stats.gmean(b) / scipy.stats.gmean(A))
    assert actual.p == pytest.approx(expected.pvalue)
    limits = expected.confidence_interval(0.95)
    assert (actual.interval.low, actual.interval.high) == pytest.approx((math.exp(limits.low), math.exp(limits.high)))


def test_one_repeat_beside_several_is_crawford_and_howells_test():
    actual, spread = sessions.compare_independent(A, [92.0], "sessions"), np.std(logs(A), ddof=1)
    t = (math.log(92.0) - np.mean(logs(A))) / (spread * math.sqrt(1 + 1 / 4))
    assert actual.p == pytest.approx(2 * scipy.stats.t.sf(abs(t), 3))
    assert actual.test == "Student's t, 4 and 1 sessions"
    turned = sessions.compare_independent([92.0], A, "sessions")
    assert turned.p == pytest.approx(actual.p) and turned.ratio == pytest.approx(1 / actual.ratio)


@pytest.mark.parametrize(("b", "p"), [([100.0] * 3, 1.0), ([90.0] * 3, 0.0)])
def test_repeats_without_noise(b, p):
    actual = sessions.compare_independent([100.0] * 3, b, "repeats")
    assert actual.p == p and actual.interval.low == actual.interval.high == actual.ratio


def test_holm_by_hand():
    assert sessions.adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert sessions.adjust_by_holm([0.9, 0.6]) == [1.0, 1.0]
    assert sessions.adjust_by_holm([0.03]) == [0.03] and sessions.adjust_by_holm([]) == []


@pytest.mark.parametrize(("count", "k"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (25, 8)])
def test_ranks_of_the_median_are_those_of_the_tables(count, k):
    """As tables of the sign test have them, for 95 %."""
    middle, interval = sessions.median_with_interval([float(number) for number in range(count, 0, -1)])
    assert middle == (count + 1) / 2
    assert (interval.low, interval.high) == (k, count + 1 - k)
    assert 2 * scipy.stats.binom.cdf(k - 1, count, 0.5) <= 0.05 < 2 * scipy.stats.binom.cdf(k, count, 0.5)
    assert all(sessions.median_with_interval([2.0] * few) == (2.0, None) for few in (1, 2, 5))


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
    for place in (3, 9):  # it may follow three sessions or be the last one
        history = find_one(make_sessions([1.0] * place + [1.2] * (10 - place), seed=1))
        assert (history.change.first, history.change.is_slower) == (place, False)
    history = find_one(make_sessions([1.0, 1.0, 0.5]))
    assert (history.change, history.has_verdict, MIN_SESSIONS) == (None, False, 4), "three give no verdict"


# 5 % at most would have a mark; so many are what chance allows.
@pytest.mark.parametrize(("histories", "most"), [(15, 2), pytest.param(60, 8, marks=pytest.mark.slow)])
def test_histories_without_a_change_are_rarely_marked(histories, most):
    marked = 0
    for seed in range(histories):
        runs = [run for number, name in enumerate(("ddp", "fsdp", "zero1"))
                for run in make_sessions([1.0] * 8, 1000 * number + seed, name, repeats=1)]  # fmt: skip
        marked += any(history.change is not None for history in find_changes(runs))
    assert marked <= most


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
