"""Sessions: runs that a machine made one after the other, and so under the same conditions.

Repeats are nested in sessions: a reboot, a driver, a neighbour on the host or a warm room moves all repeats of a
session together, so that their spread does not show how much the next session differs. Hence what is counted is the
highest level that varies between two sides (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scalebench.analysis.comparison import ratio_tests
from scalebench.analysis.comparison.pairing import ComparisonRow
from scalebench.analysis.comparison.ratio_tests import MIN_UNITS_FOR_TEST, RatioTest, describe_counts, judge_ratio
from scalebench.analysis.repeats import Configurations, pair_interleaved
from scalebench.analysis.verdicts import explain_disturbance, explain_no_verdict
from scalebench.core.result import Result, start_time
from scalebench.core.stats.log_means import mean_of_logs, mean_of_repeats

MAX_PAUSE = timedelta(hours=1)  # from the end of a run to the start of the next of its session
MAX_LENGTH = timedelta(hours=24)  # from the first start to the last: a runner that never rests has a session a day

MIN_REPEATS = 2  # that carry a verdict, if their interval does
SESSIONS_NOTE = (
    "{} no verdict, since nothing says how this machine changes from one session to the next: run both sides in one "
    "session, best in one sweep, or save at least three sessions of A (compare --save)"
)
ONE_SESSION_NOTE = (
    "repeats of one session: if the machine changed between A and B, these intervals do not hold it; runs of one sweep "
    "take turns and are free of that, saved sessions (compare --save) hold it"
)


def number_sessions(runs: Iterable[Result]) -> dict[str, int]:
    """Return the number of each run's session by its run_id; later sessions have higher numbers.

    A session has one host. It ends where nothing ran for MAX_PAUSE, and MAX_LENGTH after its first start.
    """
    numbers: dict[str, int] = {}
    latest: dict[str, tuple[int, datetime, datetime]] = {}  # by host: number, first start, last end
    for position, run in enumerate(sorted(runs, key=start_time)):
        start, host = start_time(run), run.machine.hostname
        number, first, end = latest.get(host, (position, start, start))
        if start - end > MAX_PAUSE or start - first > MAX_LENGTH:
            number, first, end = position, start, start
        latest[host] = number, first, max(end, start + timedelta(seconds=run.phases.wall_s or 0.0))
        numbers[run.run_id] = number
    return numbers


def compare_rows(a: ComparisonRow, b: ComparisonRow, configurations: Configurations) -> RatioTest:
    """Return the ratio b over a of two rows without shared runs, tested on the highest level that varies.

    Paired over sessions that have both sides, from three on. Else, within one session or where repeats were
    interleaved, the ratio of `show`, by its rule for a verdict. Else over the means of sessions, of which three on a
    side show how they vary. Sessions that something disturbed are left out. Otherwise there is only a ratio.
    """
    sessions_a, sessions_b = a.sessions, b.sessions
    shared = [number for number in sessions_a if number in sessions_b]
    of_a, of_b = (configurations.select(row.run_ids) for row in (a, b))
    interleaved = len(pair_interleaved(of_a.repeats, of_b.repeats))
    are_one_session = len(sessions_a) == len(sessions_b) == len(shared) == 1
    cells = configurations.make_row(of_a), configurations.make_row(of_b)
    if len(shared) < MIN_UNITS_FOR_TEST and (interleaved >= MIN_REPEATS or are_one_session):
        of_repeats = configurations.divide(of_b, of_a)
        if reason := explain_no_verdict(*cells, in_rounds=of_repeats.in_rounds):
            return _without_verdict(math.exp(of_repeats.mean), reason)
        if interleaved >= MIN_REPEATS:
            kind = "repeats in turns" if of_repeats.in_rounds else "interleaved repeats"
            return judge_ratio(of_repeats, f"paired t, {interleaved} {kind}")
        counts = describe_counts(len(of_a.repeats), len(of_b.repeats), "repeats")
        return judge_ratio(of_repeats, f"Welch's t, {counts}", ONE_SESSION_NOTE)
    ratio = b.rate / a.rate
    if reason := explain_disturbance(*cells, in_rounds=True):  # what holds for all sessions
        return _without_verdict(ratio, reason)
    if len(shared) >= MIN_UNITS_FOR_TEST:
        pairs = [(sessions_a[number], sessions_b[number]) for number in shared]
        return _compare_within_sessions(ratio, pairs, configurations)
    return _compare_session_means(ratio, list(sessions_a.values()), list(sessions_b.values()))


def _compare_within_sessions(
    ratio: float, pairs: Sequence[tuple[ComparisonRow, ComparisonRow]], configurations: Configurations
) -> RatioTest:
    logs, reasons = [], []
    for a, b in pairs:
        of_session = configurations.divide(configurations.select(b.run_ids), configurations.select(a.run_ids))
        reason = "" if of_session.in_rounds else explain_session_disturbance(a) or explain_session_disturbance(b)
        reasons += [reason] if reason else []
        logs += [] if reason else [of_session.mean]
    if len(logs) < MIN_UNITS_FOR_TEST:
        return _without_verdict(ratio, reasons[0])
    return judge_ratio(mean_of_logs(logs), f"paired t, {len(logs)} sessions")


def _compare_session_means(ratio: float, a: Sequence[ComparisonRow], b: Sequence[ComparisonRow]) -> RatioTest:
    rates_a, rates_b = ([each.rates for each in side if not explain_session_disturbance(each)] for side in (a, b))
    if not rates_a or not rates_b:
        return _without_verdict(ratio, explain_session_disturbance(*([] if rates_a else a), *([] if rates_b else b)))
    counts = len(rates_a), len(rates_b)
    if max(counts) < MIN_UNITS_FOR_TEST:
        subject = "one session each gives" if counts == (1, 1) else f"{describe_counts(*counts, 'sessions')} give"
        return RatioTest(ratio, test="none", note=SESSIONS_NOTE.format(subject))
    return ratio_tests.compare_independent(*session_means(rates_a, rates_b), "sessions")


def explain_session_disturbance(*sessions: ComparisonRow) -> str:
    """Return why a session does not count beside others, with which it shares no rounds; empty if it does."""
    rows = [{"flags": " ".join(flag for run in each.measured for flag in run.record.flags)} for each in sessions]
    return explain_disturbance(*rows, in_rounds=False)


def _without_verdict(ratio: float, reason: str) -> RatioTest:
    return RatioTest(ratio, test="none", note=f"no verdict: {reason}")


def session_means(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], equalizes: bool = True
) -> tuple[list[float], list[float]]:
    """Return the geometric mean of each session of both sides, in samples/s.

    A side of one or two sessions is judged by the spread of the other side's sessions. Sessions of more repeats would
    spread less, so that of each session only as many repeats count then as the smallest session on the side with few
    has, unless `equalizes` is false.
    """
    fewer = min(a, b, key=len)
    count = min(map(len, fewer)) if equalizes and len(fewer) < MIN_UNITS_FOR_TEST else None
    means_a, means_b = ([math.exp(mean_of_repeats(rates[:count]).mean) for rates in side] for side in (a, b))
    return means_a, means_b
