"""Tests of a ratio on the highest level of repetition that varies between two sides: repeats, or sessions, the runs
that a machine made one after the other, and so under the same conditions.

Repeats are nested in sessions: a reboot, a driver, a neighbour on the host or a warm room moves all repeats of a
session together, so that their spread does not show how much the next session differs. Hence what is counted is the
highest level that varies (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scalebench.analysis.comparison.rows import ComparisonRow
from scalebench.analysis.repeats import Configurations, pair_interleaved
from scalebench.analysis.verdicts import explain_disturbance, explain_no_verdict
from scalebench.core.result import Result, start_time
from scalebench.core.stats.estimates import CONFIDENCE, Estimate
from scalebench.core.stats.log_means import LogMean, mean_of_logs, mean_of_repeats

MAX_PAUSE = timedelta(hours=1)  # from the end of a run to the start of the next of its session
MAX_LENGTH = timedelta(hours=24)  # from the first start to the last: a runner that never rests has a session a day

MIN_REPEATS = 2  # that carry a verdict, if their interval does
MIN_UNITS_FOR_TEST = 3  # repeats or sessions that show how such units vary
SIGNIFICANCE_LEVEL = 1 - CONFIDENCE
SESSIONS_NOTE = (
    "{} no verdict, since nothing says how this machine changes from one session to the next: run both sides in one "
    "session, best in one sweep, or save at least three sessions of A (compare --save)"
)
ONE_SESSION_NOTE = (
    "repeats of one session: if the machine changed between A and B, these intervals do not hold it; runs of one sweep "
    "take turns and are free of that, saved sessions (compare --save) hold it"
)


@dataclass(frozen=True)
class RatioTest:
    """A ratio with its 95 % interval, the two-sided p for a true ratio of 1, and the test; without p there is no
    verdict, and `note` says what gives one. Else it says what the interval does not hold."""

    ratio: float
    interval: Estimate | None = None
    p: float | None = None
    test: str = ""
    note: str | None = None


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
    cells, ratio = (configurations.make_row(of_a), configurations.make_row(of_b)), b.rate / a.rate
    if len(shared) < MIN_UNITS_FOR_TEST and (interleaved >= MIN_REPEATS or are_one_session):
        of_repeats = configurations.divide(of_b, of_a)
        if reason := explain_no_verdict(*cells, in_rounds=of_repeats.in_rounds):
            return _without_verdict(math.exp(of_repeats.mean), reason)
        if interleaved >= MIN_REPEATS:
            kind = "repeats in turns" if of_repeats.in_rounds else "interleaved repeats"
            return judge_ratio(of_repeats, f"paired t, {interleaved} {kind}")
        return judge_ratio(of_repeats, f"Welch's t, {len(of_a.repeats)} and {len(of_b.repeats)} repeats",
                           ONE_SESSION_NOTE)  # fmt: skip
    if reason := explain_disturbance(*cells, in_rounds=True):  # what holds for all sessions
        return _without_verdict(ratio, reason)
    if len(shared) >= MIN_UNITS_FOR_TEST:
        logs, reasons = [], []
        for number in shared:
            sides = sessions_b[number], sessions_a[number]
            of_session = configurations.divide(*(configurations.select(each.run_ids) for each in sides))
            reasons_of_sides = [explain_session_disturbance(each) for each in reversed(sides)]
            reason = "" if of_session.in_rounds else next(filter(None, reasons_of_sides), "")
            reasons += [reason] if reason else []
            logs += [] if reason else [of_session.mean]
        if len(logs) < MIN_UNITS_FOR_TEST:
            return _without_verdict(ratio, reasons[0])
        return judge_ratio(mean_of_logs(logs), f"paired t, {len(logs)} sessions")
    rates_a, rates_b = ([each.rates for each in side.values() if not explain_session_disturbance(each)]
                        for side in (sessions_a, sessions_b))  # fmt: skip
    if not rates_a or not rates_b:
        disturbed = [each for side, rates in ((sessions_a, rates_a), (sessions_b, rates_b)) if not rates
                     for each in side.values()]  # fmt: skip
        return _without_verdict(ratio, explain_session_disturbance(*disturbed))
    counts = len(rates_a), len(rates_b)
    if max(counts) < MIN_UNITS_FOR_TEST:
        subject = "one session each gives" if counts == (1, 1) else "{} and {} sessions give".format(*counts)
        return RatioTest(ratio, test="none", note=SESSIONS_NOTE.format(subject))
    return compare_independent(*session_means(rates_a, rates_b), "sessions")


def explain_session_disturbance(*sessions: ComparisonRow) -> str:
    """Return why a session does not count beside others, with which it shares no rounds; empty if it does."""
    rows = [{"flags": " ".join(flag for run in each.measured for flag in run.record.flags)} for each in sessions]
    return explain_disturbance(*rows, in_rounds=False)


def _without_verdict(ratio: float, reason: str) -> RatioTest:
    return RatioTest(ratio, test="none", note=f"no verdict: {reason}")


def session_means(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the geometric mean of each session of both sides, in samples/s.

    A side of one or two sessions is judged by the spread of the other side's sessions. Sessions of more repeats would
    spread less, so that of each session only as many repeats count then as the smallest session on the side with few
    has.
    """
    fewer = min(a, b, key=len)
    count = min(map(len, fewer)) if len(fewer) < MIN_UNITS_FOR_TEST else None
    means_a, means_b = ([math.exp(mean_of_repeats(rates[:count]).mean) for rates in side] for side in (a, b))
    return means_a, means_b


def compare_independent(a: Sequence[float], b: Sequence[float], units: str) -> RatioTest:
    """Return the ratio b over a of independent `units`: positive samples/s of each, three at least on one side.

    On logarithms, where a ratio is a difference and units differ by factors. With three or more on both sides by
    Welch's t, which needs no equal variances; with fewer on one side, down to a single one, by Student's t with the
    pooled variance, which assumes that units of both sides vary equally.

    Sources: Welch 1947, "The generalization of 'Student's' problem when several different population variances are
    involved"; Student 1908, "The probable error of a mean"; Crawford and Howell 1998, "Comparing an individual's test
    score against norms derived from small samples" (one observation against several).
    """
    log_a, log_b = mean_of_repeats(a), mean_of_repeats(b)
    difference, name = log_b.minus(log_a), "Welch"
    if min(len(a), len(b)) < MIN_UNITS_FOR_TEST:
        freedom = log_a.degrees_of_freedom + log_b.degrees_of_freedom
        squares = [
            log.variance * len(of) * log.degrees_of_freedom for log, of in ((log_a, a), (log_b, b)) if len(of) > 1
        ]
        variance = math.fsum(squares) / freedom * (1 / len(a) + 1 / len(b))
        difference, name = LogMean(difference.mean, variance, freedom), "Student"
    return judge_ratio(difference, f"{name}'s t, {len(a)} and {len(b)} {units}")


def judge_ratio(log_ratio: LogMean, test: str, note: str | None = None) -> RatioTest:
    """Return a ratio of known variance with its interval and Student's t; `test` names it."""
    from scipy.special import stdtr  # not scipy.stats, which takes 0.6 s to import

    interval = log_ratio.to_estimate()
    if log_ratio.variance == 0:
        return RatioTest(interval.value, interval, 1.0 if log_ratio.mean == 0 else 0.0, test, note)
    t = abs(log_ratio.mean) / math.sqrt(log_ratio.variance)
    return RatioTest(interval.value, interval, float(2 * stdtr(log_ratio.degrees_of_freedom, -t)), test, note)


def adjust_by_holm(ps: Sequence[float]) -> list[float]:
    """Adjust each p for their number: if nothing differs, the chance that any is below 0.05 is 0.05 at most.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    adjusted, lowest = [0.0] * len(ps), 0.0
    for rank, number in enumerate(sorted(range(len(ps)), key=lambda n: ps[n])):
        lowest = max(lowest, min(1.0, (len(ps) - rank) * ps[number]))
        adjusted[number] = lowest
    return adjusted


def median_with_interval(values: Sequence[float]) -> tuple[float, Estimate | None]:
    """Return the median of values and its interval of at least 95 %, from their order alone; none below six values.

    The limits invert the sign test: the k-th smallest and the k-th largest, with the largest k for which the two tails
    of the binomial distribution are 5 % at most. Source: Thompson 1936, "On confidence ranges for the median and other
    expectation distributions for populations of unknown distribution form".
    """
    ordered, count = sorted(values), len(values)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    k, below = 0, math.pow(0.5, count)
    while 2 * below <= SIGNIFICANCE_LEVEL:
        k += 1
        below += math.comb(count, k) / 2**count
    return median, Estimate(median, ordered[k - 1], ordered[-k]) if k else None
