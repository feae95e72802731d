"""The sessions of a saved baseline over time: which configurations have changed, and since which session.

Each configuration is split after each of its sessions, and the sessions before and after are compared as `compare`
does. The significance tests of all splits of all configurations count as one family (Holm), so that in 95 % of all
histories without a change none is reported. Where a change is significant, it begins at the split that leaves the least
sum of squares of log throughputs around the two means: tried on ten sessions with a step of 8 %, that is the right one
in 95 % of the cases at 2 % between sessions, and the split with the smallest p in 82 %.

The interval of a change is that of all splits of the configuration at once (Bonferroni), since the data chose the
split: tried on ten sessions with 2 % between them, it holds a step of -8, -5, -3 % in 0.995, 0.991, 0.977 of the
histories that are reported. A step that is small beside the noise is reported only where chance enlarges it.

Source of the split: Hinkley 1970, "Inference about the change-point in a sequence of random variables".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from scalebench.analysis.comparison import facts, rows, sessions
from scalebench.analysis.comparison.rows import ComparedRun, ComparisonRow
from scalebench.analysis.comparison.sessions import MIN_UNITS_FOR_TEST, SIGNIFICANCE_LEVEL, RatioTest
from scalebench.analysis.identity import group_by
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


def find_changes(runs: Sequence[ComparedRun]) -> list[ConfigurationHistory]:
    """Return the history of each configuration in these runs, in the order of their first start."""
    # A row for each session of each configuration, of all framework versions: an upgrade is part of a history.
    numbers = sessions.number_sessions(run.record for run in runs)
    runs = [replace(run, session=numbers[run.run_id]) for run in sorted(runs, key=lambda run: run.started)]
    histories = []
    for of_key in group_by(runs, lambda run: facts.pairing_key(run.facts.identity)).values():
        of_sessions = group_by(sorted(of_key, key=lambda run: run.session), lambda run: run.session).values()
        histories.append([
            ComparisonRow(of_session[0].facts.identity, [run for run in of_session if run.rate is not None],
                          [run for run in of_session if run.rate is None])
            for of_session in of_sessions
        ])  # fmt: skip
    splits = list(map(_test_splits, histories))
    ps = [ratio.p for of_history in splits for _, ratio, _ in of_history if ratio.p is not None]
    adjusted = iter(sessions.adjust_by_holm(ps))
    label_keys = facts.choose_label_keys([history[0].identity for history in histories], ())
    results = []
    for history, of_history in zip(histories, splits, strict=True):
        p, change = min((next(adjusted) for _ in of_history), default=1.0), None
        if p <= SIGNIFICANCE_LEVEL:
            first, ratio, _ = min(of_history, key=lambda split: split[2])
            before = next(each for each in reversed(history[:first]) if each.measured)
            change = Change(first, ratio, p, rows.find_differences([(before, history[first])], None))
        label = facts.make_label(history[0].identity, label_keys)
        results.append(ConfigurationHistory(label, list(map(_describe_session, history)), change))
    return results


def _describe_session(session: ComparisonRow) -> SessionLevel:
    started = min(run.started for run in (*session.measured, *session.unmeasured))
    if not session.measured:
        record = session.unmeasured[0].record
        return SessionLevel(started, None, [], f"{record.status}: {record.reason}")
    if reason := sessions.explain_session_disturbance(session):
        return SessionLevel(started, None, session.rates, reason)
    has_limits = len(session.rates) >= MIN_UNITS_FOR_TEST
    rate = mean_of_repeats(session.rates).to_estimate() if has_limits else Estimate(session.rate)
    return SessionLevel(started, rate, session.rates, "")


def _test_splits(history: Sequence[ComparisonRow]) -> list[tuple[int, RatioTest, float]]:
    """Compare the sessions that count after each of them, where one side has MIN_UNITS_FOR_TEST: the position of the
    first session after the split, the ratio, and the sum of squares that the two means leave."""
    places = [k for k, each in enumerate(history) if each.measured and not sessions.explain_session_disturbance(each)]
    rates = [history[place].rates for place in places]
    sizes = [size for size in range(1, len(rates)) if max(size, len(rates) - size) >= MIN_UNITS_FOR_TEST]
    confidence = 1 - SIGNIFICANCE_LEVEL / max(1, len(sizes))
    splits = []
    for size in sizes:
        sides = rates[:size], rates[size:]
        logs = [[math.log(rate) for rate in side] for side in sessions.session_means(*sides, False)]
        squares = sum(statistics.pvariance(side) * len(side) for side in logs)
        ratio = sessions.compare_independent(*sessions.session_means(*sides), "sessions", confidence)
        splits.append((places[size], ratio, squares))
    return splits
