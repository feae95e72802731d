"""Comparison of two sets of runs, or of the values of one key within a set: what is faster, and how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalebench.analysis.comparison import labels, pairing, sessions, unmatched
from scalebench.analysis.comparison.pairing import ComparedRun, ComparisonRow
from scalebench.analysis.comparison.ratio_tests import (
    SIGNIFICANCE_LEVEL,
    RatioTest,
    adjust_by_holm,
    median_with_interval,
)
from scalebench.analysis.comparison.run_facts import explain_unknown_key, keys_bound_to
from scalebench.analysis.comparison.unmatched import UnmatchedRow
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import Estimate

OK, REGRESSION, NOT_COMPARABLE, FAILED_RUN = "ok", "regression", "not comparable", "failed run"
TOO_LITTLE_DATA = "too little data"  # for a verdict on each pair, which a gate needs
FASTER, SLOWER, UNRESOLVED = "faster", "slower", "no difference resolved"
SAME, NO_VERDICT = "the same run", "no verdict"


@dataclass(frozen=True)
class Pair:
    """Two rows that differ in nothing but what is compared. `ratio` is throughput, b over a; above 1 b is faster.

    `interval` is the 95 % interval of this pair alone; `p_holm` is `p` adjusted for all pairs of the comparison, and
    decides the verdict. Of a pair without a verdict the last note says what gives one.
    """

    label: dict[str, str]
    a: ComparisonRow
    b: ComparisonRow
    ratio: float
    interval: Estimate | None
    p: float | None
    p_holm: float | None
    test: str
    verdict: str
    regression: bool
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Contrast:
    """`b` over `a`, two values of a key or the two sides: the median of all pairs with its interval."""

    a: str
    b: str
    pairs: Sequence[Pair]
    median: float
    median_interval: Estimate | None  # from six pairs on, where all of them ran side by side
    differences: Sequence[tuple[str, str, str, int]]  # key, values of a, values of b, number of pairs


@dataclass
class Comparison:
    """The result of a comparison; `by` is the compared key, None for two sides."""

    by: str | None
    ignored: Sequence[str]
    threshold: float | None  # share of throughput; None: no gate
    contrasts: list[Contrast]
    unmatched: list[UnmatchedRow]
    refusal: str | None = None  # why there are no pairs
    notes: list[str] = field(default_factory=list)
    no_baseline: bool = False  # none was saved for this machine

    @property
    def pairs(self) -> list[Pair]:
        return [pair for contrast in self.contrasts for pair in contrast.pairs]

    @property
    def status(self) -> str:
        """The outcome. A failed run counts before a regression, and that before too little data; all at a gate only."""
        if self.threshold is not None and any(row.failed for row in self.unmatched):
            return FAILED_RUN
        if any(pair.regression for pair in self.pairs):
            return REGRESSION
        if self.threshold is not None and any(pair.verdict == NO_VERDICT for pair in self.pairs):
            return TOO_LITTLE_DATA
        return OK if self.pairs else NOT_COMPARABLE


def compare(
    a: Sequence[ComparedRun],
    b: Sequence[ComparedRun],
    ignore: Sequence[str] = (),
    threshold: float | None = None,
    same_session: bool = False,
) -> Comparison:
    """Compare the rows of `b` with the rows of `a` that are the same configuration on the same kind of machine.

    `ignore`: dotted keys, or groups of them, that are left out of the pairing. `threshold`: a share of throughput; a
    pair that is slower by more is a regression. `same_session`: all runs count as those of one session, whenever and
    wherever they started. InputError for an unknown key.
    """
    _check_keys([*a, *b], ignore)
    return _compare_sides({"A": a, "B": b}, None, ignore, threshold, same_session)


def compare_by(
    runs: Sequence[ComparedRun],
    key: str,
    base: str | None = None,
    ignore: Sequence[str] = (),
    threshold: float | None = None,
    same_session: bool = False,
) -> Comparison:
    """Compare rows that differ in nothing but `key`: each of its values with the value `base`.

    Without `base` it is the first value that the sweep of the first folder was given. The others as for `compare`.
    InputError for an unknown key, or a base that no row has.
    """
    _check_keys(runs, [key, *ignore])
    sides = labels.group_by_value(runs, key, base)
    if len(sides) < 2:
        refusal = f"{key} is {next(iter(sides))} in all rows: nothing to compare"
        return Comparison(key, ignore, threshold, [], [], refusal)
    return _compare_sides(sides, key, ignore, threshold, same_session)


def _check_keys(runs: Sequence[ComparedRun], keys: Sequence[str]) -> None:
    names = {name for run in runs for facts in (run.facts.identity, run.facts.other) for name in facts}
    for key in keys:
        if (reason := explain_unknown_key(key, names)) is not None:
            raise InputError(reason)


def _compare_sides(
    runs_of: Mapping[str, Sequence[ComparedRun]],
    by: str | None,
    ignored: Sequence[str],
    threshold: float | None,
    same_session: bool,
) -> Comparison:
    """Compare each side with the first one."""
    without = [bound for key in (*ignored, *([] if by is None else [by])) for bound in keys_bound_to(key)]
    numbers = {} if same_session else sessions.number_sessions(run.record for runs in runs_of.values() for run in runs)
    base, *others = sides = [
        pairing.make_side(name, [replace(run, session=numbers.get(run.run_id, 0)) for run in runs], without)
        for name, runs in runs_of.items()
    ]
    rows = [row for side in sides for row in side.rows.values()]
    configurations = pairing.configure_rows(rows)
    tested: dict[str, list[tuple[ComparisonRow, ComparisonRow, RatioTest]]] = {side.name: [] for side in others}
    for side in others:
        for key, row in side.rows.items():
            partner = base.rows.get(key)
            if partner is None or not partner.measured or not row.measured:
                continue
            if different := pairing.drop_shared_runs(partner, row):
                tested[side.name].append((*different, sessions.compare_rows(*different, configurations)))
            else:
                tested[side.name].append((partner, row, RatioTest(1.0, test=SAME)))
    ps = [test.p for tests in tested.values() for *_, test in tests if test.p is not None]
    adjusted, label_keys = iter(adjust_by_holm(ps)), labels.choose_label_keys([row.identity for row in rows], without)
    contrasts = []
    for name, tests in tested.items():
        pairs = []
        for a, b, test in tests:
            p_holm = None if test.p is None else next(adjusted)
            if p_holm is None:
                verdict = SAME if test.test == SAME else NO_VERDICT
            elif p_holm <= SIGNIFICANCE_LEVEL:
                verdict = FASTER if test.ratio > 1 else SLOWER
            else:
                verdict = UNRESOLVED
            regression = threshold is not None and verdict == SLOWER and test.ratio < 1 - threshold
            notes = list(dict.fromkeys([*a.notes, *b.notes, *filter(None, [test.note])]))
            pairs.append(Pair(labels.make_label(a.identity, label_keys), a, b, test.ratio, test.interval, test.p,
                              p_holm, test.test, verdict, regression, notes))  # fmt: skip
        if pairs:
            median, interval = median_with_interval([pair.ratio for pair in pairs])
            differences = labels.find_differences([(pair.a, pair.b) for pair in pairs], by)
            # A change from one side to the other moves all pairs together, which their order does not show, unless
            # runs of both sides lie between each other in the same sessions.
            starts_a, starts_b = ([run.started for row in side for run in row.measured]
                                  for side in zip(*((pair.a, pair.b) for pair in pairs), strict=True))  # fmt: skip
            took_turns = min(starts_a) <= max(starts_b) and min(starts_b) <= max(starts_a)
            took_turns &= all(pair.a.sessions.keys() == pair.b.sessions.keys() for pair in pairs)
            contrasts.append(Contrast(base.name, name, pairs, median, interval if took_turns else None, differences))
    alone = {
        (row.side, *row.label.items(), row.reason, row.run_id): row
        for side in others
        for row in unmatched.find_unmatched(base, side, label_keys, without)
    }
    refusal = None if contrasts else unmatched.explain_no_pairs(sides, without)
    notes = labels.warn_about_samples((a, b) for tests in tested.values() for a, b, _ in tests)
    rows_of = {base.name: [a for tests in tested.values() for a, *_ in tests]}
    rows_of |= {name: [b for _, b, _ in tests] for name, tests in tested.items()}
    for name, compared in rows_of.items():
        notes += labels.describe_other_programs(f"{by or 'side'} {name}", compared)
    return Comparison(by, ignored, threshold, contrasts, list(alone.values()), refusal, notes)
