"""Sessions: runs that a machine made one after the other, and so under the same conditions.

Repeats are nested in sessions: a reboot, a driver, a neighbour on the host or a warm room moves all repeats of a
session together, so that their spread does not show how much the next session differs. Hence what is counted is the
highest level that varies between two sides (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from scalebench.analysis.comparison.pairing import ComparisonRow
from scalebench.analysis.comparison.ratio_tests import (
    MIN_UNITS_FOR_TEST,
    RatioTest,
    compare_independent,
    compare_paired,
    describe_counts,
)
from scalebench.analysis.repeats import pair_interleaved
from scalebench.analysis.run_summary import start_time
from scalebench.core.result import Result
from scalebench.core.stats.log_means import mean_of_repeats

MAX_PAUSE = timedelta(hours=1)  # from the end of a run to the start of the next of its session
MAX_LENGTH = timedelta(hours=24)  # from the first start to the last: a runner that never rests has a session a day

REPEATS_NOTE = "{} no verdict, three of each side in one session do (measure.repeats=3)"
SESSIONS_NOTE = (
    "{} no verdict, since nothing says how this machine changes from one session to the next: run both sides in one "
    "session, best in one sweep, or save at least three sessions of A (compare --save)"
)
ONE_SESSION_NOTE = (
    "repeats of one session: if the machine changed between A and B, these intervals do not hold it; runs of one sweep "
    "take turns and are free of that, saved sessions (compare --save) hold it"
)
DISTURBED_NOTE = (
    "other programs used the devices in most repeats of a side, which gives no verdict: run it again on a quiet machine"
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


def compare_rows(a: ComparisonRow, b: ComparisonRow) -> RatioTest:
    """Return the ratio b over a of two rows without shared runs, tested on the highest level that varies.

    Paired over sessions that have both sides, from three on; else paired over interleaved repeats; else, within one
    session, over its repeats; else over the means of sessions. Without three of these on either side there is only a
    ratio.
    """
    ratio, repeats = b.rate / a.rate, (len(a.rates), len(b.rates))
    if a.is_disturbed or b.is_disturbed:
        return RatioTest(ratio, test="none, for a busy machine", note=DISTURBED_NOTE)
    sessions_a, sessions_b = a.sessions, b.sessions
    shared = [number for number in sessions_a if number in sessions_b]
    if len(shared) >= MIN_UNITS_FOR_TEST:
        pairs = [(_mean_rate(sessions_a[number]), _mean_rate(sessions_b[number])) for number in shared]
        return compare_paired(pairs, "sessions")
    rates = {run.run_id: run.rate or 0.0 for row in (a, b) for run in row.measured}
    interleaved = pair_interleaved([run.record for run in a.measured], [run.record for run in b.measured])
    if len(interleaved) >= MIN_UNITS_FOR_TEST:
        return compare_paired([(rates[x.run_id], rates[y.run_id]) for x, y in interleaved], "interleaved repeats")
    if max(repeats) < MIN_UNITS_FOR_TEST:
        return _without_verdict(ratio, repeats, "repeat", REPEATS_NOTE)
    if len(sessions_a) == len(sessions_b) == len(shared) == 1:
        return compare_independent(a.rates, b.rates, "repeats", ONE_SESSION_NOTE)
    sessions = len(sessions_a), len(sessions_b)
    if max(sessions) < MIN_UNITS_FOR_TEST:
        return _without_verdict(ratio, sessions, "session", SESSIONS_NOTE)
    return compare_independent(*session_means([*sessions_a.values()], [*sessions_b.values()]), "sessions")


def _without_verdict(ratio: float, counts: tuple[int, int], unit: str, note: str) -> RatioTest:
    subject = f"one {unit} each gives" if counts == (1, 1) else f"{describe_counts(*counts, f'{unit}s')} give"
    return RatioTest(ratio, test=f"none, for {describe_counts(*counts, f'{unit}s')}", note=note.format(subject))


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
    means_a, means_b = ([_mean_rate(rates[:count]) for rates in side] for side in (a, b))
    return means_a, means_b


def _mean_rate(rates: Sequence[float]) -> float:
    return math.exp(mean_of_repeats(rates).mean)
