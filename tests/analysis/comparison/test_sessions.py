"""Sessions, and which level of repetition decides about a pair of rows."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from scalebench.analysis.comparison import compare, compare_by
from scalebench.analysis.comparison.sessions import number_sessions
from scalebench.analysis.verdicts import read_doubt
from scalebench.core.result import Phases
from tests.builders.comparisons import machine_settings, make_runs
from tests.builders.runs import record

STEADY = [0.1, 0.1005, 0.0995]
LEVELS = [1.0, 1.04, 0.97, 1.02, 0.99]  # of five sessions


def number(*starts):
    """Number the sessions of runs, each a start (in hours), its length (in hours) and a host."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    runs = [
        record(run_id=str(n), started_at=(begin + timedelta(hours=start)).isoformat(),
               phases=Phases(wall_s=3600 * length), **machine_settings(hostname=host))
        for n, (start, length, host) in enumerate(starts)
    ]  # fmt: skip
    numbers = number_sessions(runs)
    return [numbers[str(n)] for n in range(len(runs))]


@pytest.mark.parametrize(("runs", "numbers"), [
    ([(0, 0.1, "x"), (1, 0.1, "x"), (2.05, 0.1, "x")], [0, 0, 0]),
    ([(0, 0.1, "x"), (1.2, 0.1, "x"), (2, 0.1, "x")], [0, 1, 1]),  # an hour in which nothing ran ends one
    ([(0, 5, "x"), (5.9, 0.1, "x")], [0, 0]),  # the pause begins at the end of a run
    ([(0, 5, "x"), (1, 0.1, "x"), (5.5, 0.1, "x")], [0, 0, 0]),  # of whichever run ended last
    ([(0, 0.1, "x"), (0.5, 0.1, "y"), (1, 0.1, "x"), (9, 0.1, "y")], [0, 1, 0, 3]),  # each host has its own
    ([(float(hour), 0.9, "x") for hour in range(50)], [0] * 25 + [25] * 25),  # a runner that never rests: one a day
    ([(9, 0.1, "x"), (0, 0.1, "x")], [1, 0]),  # whatever the order of the runs
])  # fmt: skip
def test_sessions_are_numbered_by_their_beginning(runs, numbers):
    assert number(*runs) == numbers


def sessions(side, levels, repeats=3, first=1, **changes):
    """Make a session a day, whose repeats share its level."""
    return [run for day, level in enumerate(levels, first)
            for run in make_runs(side, [level * each for each in STEADY[:repeats]], day=day, **changes)]  # fmt: skip


def only(a, b, **options):
    (pair,) = compare(a, b, **options).pairs
    return pair


def test_two_repeats_decide_where_their_interval_does():
    """Twelve standard errors off, but for what the other configurations of the sweep say of the variance."""
    a, b = make_runs("a", STEADY[:2]), make_runs("b", [1.01 * each for each in STEADY[:2]])
    assert only(a, b).verdict == "no difference resolved" and only(a, b).interval is not None
    b = make_runs("b", [2 * each for each in STEADY[:2]])
    assert (only(a, b).verdict, only(a, b).test) == ("slower", "Welch's t, 2 and 2 repeats")
    # Of one session what repeats miss is noted.
    pair = only(make_runs("a", STEADY), make_runs("b", [1.1 * each for each in STEADY]))
    assert (pair.verdict, pair.test) == ("slower", "Welch's t, 3 and 3 repeats")
    assert "if the machine changed between A and B, these intervals do not hold it" in pair.notes[-1]


def test_repeats_of_two_sessions_alone_decide_nothing():
    pair = only(make_runs("a", STEADY), make_runs("b", [2 * each for each in STEADY], day=2), threshold=0.0)
    assert (pair.verdict, pair.interval, pair.regression) == ("no verdict", None, False)
    assert pair.test == "none"
    assert pair.notes[-1].startswith("one session each gives no verdict, since nothing says how this machine changes")
    few = only(sessions("a", LEVELS[:2]), sessions("b", [1.0], first=3))
    assert few.notes[-1].startswith("2 and 1 sessions give no verdict")


def test_another_host_is_another_session_unless_they_are_declared_one():
    a, b = make_runs("a", STEADY), make_runs("b", [2 * each for each in STEADY], **machine_settings(hostname="other"))
    assert only(a, b).test == "none"
    assert only(a, b, same_session=True).test == "Welch's t, 3 and 3 repeats"
    assert only(a, b, same_session=True).verdict == "slower"
    by = compare_by([*a, *b], "machine.hostname", same_session=True).pairs[0]
    assert by.test == "Welch's t, 3 and 3 repeats" and compare_by([*a, *b], "machine.hostname").pairs[0].p is None


def test_saved_sessions_count_by_their_means():
    """A new session within the spread of five earlier ones is not a regression, however well its repeats agree."""
    saved = sessions("a", LEVELS)
    pair = only(saved, make_runs("b", [1.05 * each for each in STEADY], day=9), threshold=0.03)
    assert (pair.test, pair.verdict) == ("Student's t, 5 and 1 sessions", "no difference resolved")
    slow = only(saved, make_runs("b", [1.3 * each for each in STEADY], day=9), threshold=0.03)
    assert (slow.verdict, slow.regression) == ("slower", True)
    mean = math.exp(math.fsum(map(math.log, LEVELS)) / len(LEVELS))
    assert slow.ratio == pytest.approx(mean / 1.3)


def test_a_session_with_more_repeats_weighs_no_more_than_another():
    a = [*sessions("a", [1.0, 1.1]), *sessions("a", [1.2], repeats=1, first=3)]
    pair = only(a, sessions("b", [1.0, 1.1, 1.2], first=5))
    assert pair.test == "Welch's t, 3 and 3 sessions"
    mean_s = math.exp((2 * math.log(STEADY[0] * STEADY[1] * STEADY[2]) / 3 + math.log(STEADY[0])) / 3)
    assert pair.ratio == pytest.approx(mean_s / math.exp(math.log(STEADY[0] * STEADY[1] * STEADY[2]) / 3))


def test_sessions_are_no_steadier_for_having_more_repeats_than_the_new_one():
    """Where the new session has one repeat, the first one of each saved session is what it is compared with."""
    first = [run for day, level in enumerate(LEVELS, 1) for run in make_runs("a", [level * 0.1], day=day)]
    new = make_runs("b", [0.11], day=9)
    pair, expected = only(sessions("a", LEVELS), new), only(first, new)
    assert (pair.ratio, pair.p) == pytest.approx((expected.ratio, expected.p)) and pair.p is not None


def test_both_sides_in_three_sessions_are_paired_by_session():
    """What a day is like cancels, although no repeats took turns."""
    other = [1.02 * level * (1 + 0.001 * n) for n, level in enumerate(LEVELS)]
    pair = only(sessions("a", LEVELS), sessions("b", other))
    assert (pair.test, pair.verdict) == ("paired t, 5 sessions", "slower")


def test_a_session_that_was_disturbed_does_not_count():
    saved, new = sessions("a", LEVELS), make_runs("b", [1.3 * each for each in STEADY], day=9)
    saved[0].record.flags.append("busy_machine")
    assert only(saved, new).test == "Student's t, 4 and 1 sessions"
    new[0].record.flags.append("busy_machine")
    assert only(saved, new).notes == [f"no verdict: {read_doubt('busy_machine')}"]
