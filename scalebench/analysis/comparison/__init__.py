"""Comparison of two sets of runs, or of the values of one key within a set: what is faster, and how surely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scalebench.analysis.comparison import ratio_tests
from scalebench.analysis.comparison.labels import (
    KeyValue,
    Labels,
    find_differences,
    find_key_values,
    warn_about_samples,
)
from scalebench.analysis.comparison.pairing import ComparedRun, ComparisonRow, drop_shared_runs
from scalebench.analysis.comparison.ratio_tests import MIN_REPEATS_FOR_TEST, SIGNIFICANCE_LEVEL, RatioTest
from scalebench.analysis.comparison.run_facts import explain_unknown_key, keys_bound_to
from scalebench.analysis.comparison.unmatched import (
    ComparedSide,
    UnmatchedRow,
    explain_no_pairs,
    find_unmatched,
    make_side,
)
from scalebench.analysis.repeats import pair_interleaved
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import Estimate

OK, REGRESSION, NOT_COMPARABLE, FAILED_RUN = "ok", "regression", "not comparable", "failed run"
FASTER, SLOWER, UNRESOLVED = "faster", "slower", "no difference resolved"
SAME, NO_INTERVAL = "the same run", "no interval"


@dataclass(frozen=True)
class Pair:
    """Two rows that differ in nothing but what is compared. `ratio` is throughput, b over a; above 1 b is faster.

    `interval` is the 95 % interval of this pair alone; `p_holm` is `p` adjusted for all pairs of the comparison, and
    decides the verdict.
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
    median_interval: Estimate | None  # from six pairs on
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
        """The outcome: a failed run counts before a regression, and both only with a threshold."""
        if self.threshold is not None and any(row.failed for row in self.unmatched):
            return FAILED_RUN
        if any(pair.regression for pair in self.pairs):
            return REGRESSION
        return OK if self.pairs else NOT_COMPARABLE


def compare(
    a: Sequence[ComparedRun], b: Sequence[ComparedRun], ignore: Sequence[str] = (), threshold: float | None = None
) -> Comparison:
    """Compare the rows of `b` with the rows of `a` that are the same configuration on the same kind of machine.

    `ignore`: dotted keys, or groups of them, that are left out of the pairing. `threshold`: a share of throughput; a
    pair that is slower by more is a regression. InputError for an unknown key.
    """
    _check_keys([*a, *b], ignore)
    without = [bound for key in ignore for bound in keys_bound_to(key)]
    return _compare_sides([make_side("A", a, without), make_side("B", b, without)], None, ignore, without, threshold)


def compare_by(
    runs: Sequence[ComparedRun],
    key: str,
    base: str | None = None,
    ignore: Sequence[str] = (),
    threshold: float | None = None,
) -> Comparison:
    """Compare rows that differ in nothing but `key`: each of its values with the value `base`.

    Without `base` it is the first value: that of the first folder, then in order. InputError for an unknown key, or a
    base that no row has.
    """
    _check_keys(runs, [key, *ignore])
    without = [bound for name in (key, *ignore) for bound in keys_bound_to(name)]
    values = find_key_values(runs, key, base)
    sides = [make_side(value.name, _runs_with_value(runs, value), without) for value in values]
    if len(sides) < 2:
        return Comparison(key, ignore, threshold, [], [], f"{key} is {sides[0].name} in all rows: nothing to compare")
    return _compare_sides(sides, key, ignore, without, threshold)


def _runs_with_value(runs: Sequence[ComparedRun], value: KeyValue) -> list[ComparedRun]:
    return [run for run in runs if run.run_id in value.run_ids]


def _check_keys(runs: Sequence[ComparedRun], keys: Sequence[str]) -> None:
    names = {name for run in runs for facts in (run.facts.identity, run.facts.other) for name in facts}
    for key in keys:
        if (reason := explain_unknown_key(key, names)) is not None:
            raise InputError(reason)


def _compare_sides(
    sides: Sequence[ComparedSide],
    by: str | None,
    ignored: Sequence[str],
    without: Sequence[str],
    threshold: float | None,
) -> Comparison:
    labels = Labels([row for side in sides for row in side.rows.values()], without)
    base = sides[0]
    tested = [[_test_ratio(base.rows[key], row) for key, row in side.rows.items() if key in base.rows
               and base.rows[key].measured and row.measured] for side in sides[1:]]  # fmt: skip
    adjusted = iter(ratio_tests.adjust_by_holm([t.p for group in tested for *_, t in group if t.p is not None]))
    contrasts = []
    for side, group in zip(sides[1:], tested, strict=True):
        pairs = [_make_pair(*each, None if each[-1].p is None else next(adjusted), labels, threshold) for each in group]
        contrasts += [_make_contrast(base.name, side.name, pairs, by)] if pairs else []
    unmatched = {(row.side, *row.label.items(), row.reason, row.run_id): row
                 for side in sides[1:] for row in find_unmatched(base, side, labels, without)}  # fmt: skip
    refusal = None if contrasts else explain_no_pairs(sides, without)
    comparison = Comparison(by, ignored, threshold, contrasts, list(unmatched.values()), refusal)
    comparison.notes += warn_about_samples(comparison.pairs)
    return comparison


def _test_ratio(a: ComparisonRow, b: ComparisonRow) -> tuple[ComparisonRow, ComparisonRow, RatioTest]:
    """Return both rows without the runs that they share, and the test of their ratio."""
    different = drop_shared_runs(a, b)
    if different is None:
        return a, b, RatioTest(1.0, None, None, SAME)
    a, b = different
    if len(a.measured) == len(b.measured) == 1:
        return a, b, ratio_tests.compare_blocks((a.rate, a.measured[0].interval), (b.rate, b.measured[0].interval))
    rates = {run.run_id: run.rate or 0.0 for row in different for run in row.measured}
    pairs = pair_interleaved([run.record for run in a.measured], [run.record for run in b.measured])
    if len(pairs) >= MIN_REPEATS_FOR_TEST:
        test = ratio_tests.compare_interleaved_repeats([(rates[x.run_id], rates[y.run_id]) for x, y in pairs])
        return a, b, test
    return a, b, ratio_tests.compare_independent_repeats(a.rates, b.rates)


def _make_pair(
    a: ComparisonRow,
    b: ComparisonRow,
    tested: RatioTest,
    adjusted: float | None,
    labels: Labels,
    threshold: float | None,
) -> Pair:
    verdict = UNRESOLVED
    if tested.test == SAME:
        verdict = SAME
    elif adjusted is None:
        verdict = NO_INTERVAL
    elif adjusted <= SIGNIFICANCE_LEVEL:
        verdict = FASTER if tested.ratio > 1 else SLOWER
    regression = threshold is not None and verdict == SLOWER and tested.ratio < 1 - threshold
    fields = tested.ratio, tested.interval, tested.p, adjusted, tested.test
    notes = list(dict.fromkeys([*a.notes, *b.notes]))
    return Pair(labels.of(a), a, b, *fields, verdict, regression, notes)


def _make_contrast(a: str, b: str, pairs: Sequence[Pair], by: str | None) -> Contrast:
    median, interval = ratio_tests.median_with_interval([pair.ratio for pair in pairs])
    return Contrast(a, b, pairs, median, interval, find_differences([(pair.a, pair.b) for pair in pairs], by))
