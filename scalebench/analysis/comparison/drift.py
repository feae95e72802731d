"""The sessions of a saved baseline over time: which configurations have changed, and since which session.

Each configuration is split after each of its sessions, and the sessions before and after are compared as `compare`
does. The significance tests of all splits of all configurations count as one family (Holm), so that in 95 % of all
histories without a change none is reported. Where a change is significant, it begins at the split that leaves the least
sum of squares of log throughputs around the two means: tried on ten sessions with a step of 8 %, that is the right one
in 95 % of the cases at 2 % between sessions, and the split with the smallest p in 82 %.

The interval of a change has to hold although the data chose the split: it is that of all splits of the configuration at
once (Bonferroni). Tried on ten sessions with 2 % between them and a step at the seventh, 4,000 histories each, of those
that are reported it holds a step of -8, -5, -3 % in 0.995, 0.991, 0.977, where the interval of one split alone holds it
in 0.952, 0.933, 0.829. A step that is small beside the noise is reported only where chance enlarges it: one of -3 % in
26 % of the histories, as 0.956 on average.

Source of the split: Hinkley 1970, "Inference about the change-point in a sequence of random variables".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scalebench.analysis.comparison.labels import choose_label_keys, find_differences, make_label
from scalebench.analysis.comparison.pairing import ComparedRun, ComparisonRow, pairing_key
from scalebench.analysis.comparison.ratio_tests import (
    MIN_UNITS_FOR_TEST,
    SIGNIFICANCE_LEVEL,
    RatioTest,
    adjust_by_holm,
    compare_independent,
)
from scalebench.analysis.comparison.sessions import (
    explain_session_disturbance,
    number_sessions,
    session_means,
)
from scalebench.core.stats.estimates import Estimate
from scalebench.core.stats.log_means import mean_of_repeats

MIN_SESSIONS = MIN_UNITS_FOR_TEST + 1  # three that show how sessions vary, and one to be judged


@dataclass(frozen=True)
class SessionLevel:
    """One configuration in one session. `rate` has limits from three repeats on; None: nothing was measured, or other
    programs used the devices, as `note` says."""

    started: datetime
    rate: Estimate | None  # samples/s
    repeats: Sequence[float]  # samples/s
    note: str


@dataclass(frozen=True)
class Change:
    """`first` is the position of the first session that differs; `ratio` is throughput from then on over before, its
    interval that of all splits at once."""

    first: int
    ratio: RatioTest
    p_holm: float
    differences: Sequence[tuple[str, str, str, int]]  # between the sessions before and at it: key, values, count

    @property
    def is_slower(self) -> bool:
        return self.ratio.ratio < 1


@dataclass(frozen=True)
class ConfigurationHistory:
    """The sessions of one configuration in the order of time, and its change if there is a significant one."""

    label: dict[str, str]
    sessions: Sequence[SessionLevel]
    change: Change | None

    @property
    def has_verdict(self) -> bool:
        """Return whether there are sessions enough to find a change."""
        return sum(session.rate is not None for session in self.sessions) >= MIN_SESSIONS


@dataclass(frozen=True)
class _Split:
    """The comparison of the sessions from position `first` on with those before."""

    number: int  # of the configuration
    first: int
    ratio: RatioTest
    squares: float  # that the two means leave


def find_changes(runs: Sequence[ComparedRun]) -> list[ConfigurationHistory]:
    """Return the history of each configuration in these runs, in the order of their first start."""
    # A row for each session of each configuration, of all framework versions: an upgrade is part of a history.
    numbers = number_sessions(run.record for run in runs)
    by_key: dict[frozenset[tuple[str, str]], dict[int, ComparisonRow]] = {}
    for run in sorted(runs, key=lambda run: run.started):
        sessions_of_key = by_key.setdefault(pairing_key(run.facts.identity), {})
        session = sessions_of_key.setdefault(numbers[run.run_id], ComparisonRow(run.facts.identity))
        numbered = replace(run, session=numbers[run.run_id])
        (session.unmeasured if run.rate is None else session.measured).append(numbered)
    rows = [[sessions[number] for number in sorted(sessions)] for sessions in by_key.values()]
    splits = [split for number, sessions in enumerate(rows) for split in _test_splits(number, sessions)]
    adjusted = adjust_by_holm([split.ratio.p for split in splits if split.ratio.p is not None])
    label_keys = choose_label_keys([sessions[0].identity for sessions in rows], ())
    return [
        ConfigurationHistory(
            make_label(sessions[0].identity, label_keys),
            list(map(_describe_session, sessions)),
            _choose_change(sessions, [(s, p) for s, p in zip(splits, adjusted, strict=True) if s.number == number]),
        )
        for number, sessions in enumerate(rows)
    ]


def _describe_session(session: ComparisonRow) -> SessionLevel:
    started = min(run.started for run in (*session.measured, *session.unmeasured))
    if not session.measured:
        record = session.unmeasured[0].record
        return SessionLevel(started, None, [], f"{record.status}: {record.reason}")
    if reason := explain_session_disturbance(session):
        return SessionLevel(started, None, session.rates, reason)
    has_limits = len(session.rates) >= MIN_UNITS_FOR_TEST
    rate = mean_of_repeats(session.rates).to_estimate() if has_limits else Estimate(session.rate)
    return SessionLevel(started, rate, session.rates, "")


def _test_splits(number: int, sessions: Sequence[ComparisonRow]) -> list[_Split]:
    """Compare the sessions that count after each of them, where one side has MIN_UNITS_FOR_TEST."""
    places = [k for k, each in enumerate(sessions) if each.measured and not explain_session_disturbance(each)]
    rates = [sessions[place].rates for place in places]
    sizes = [size for size in range(1, len(rates)) if max(size, len(rates) - size) >= MIN_UNITS_FOR_TEST]
    confidence = 1 - SIGNIFICANCE_LEVEL / max(1, len(sizes))
    splits = []
    for size in sizes:
        sides = rates[:size], rates[size:]
        before, after = session_means(*sides)
        logs = [[math.log(rate) for rate in side] for side in session_means(*sides, False)]
        squares = sum(statistics.pvariance(side) * len(side) for side in logs)
        tested = compare_independent(before, after, "sessions", confidence)
        splits.append(_Split(number, places[size], tested, squares))
    return splits


def _choose_change(sessions: Sequence[ComparisonRow], splits: Sequence[tuple[_Split, float]]) -> Change | None:
    """Return the change at the best split, if any split of the configuration is significant."""
    if not splits or min(p for _, p in splits) > SIGNIFICANCE_LEVEL:
        return None
    best, _ = min(splits, key=lambda pair: pair[0].squares)
    before = next(each for each in reversed(sessions[: best.first]) if each.measured)
    differences = find_differences([(before, sessions[best.first])], None)
    return Change(best.first, best.ratio, min(p for _, p in splits), differences)
