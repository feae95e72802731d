"""Two sets of runs, or the values of one key within them, row beside row: what is faster, and how surely. Layer 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scalebench.analysis.comparison import tests
from scalebench.analysis.comparison.labels import KeyValue, Labels, differences, samples_differ, values_of
from scalebench.analysis.comparison.pairing import Launch, Row, without_shared
from scalebench.analysis.comparison.run_facts import check_key, with_bound
from scalebench.analysis.comparison.tests import LEAST, LEVEL, Tested
from scalebench.analysis.comparison.unmatched import Side, Unpaired, left, refusal, side_of
from scalebench.analysis.repeats import interleaved
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import Interval

OK, REGRESSION, NOT_COMPARABLE, FAILED_RUN = "ok", "regression", "not comparable", "failed run"
FASTER, SLOWER, UNRESOLVED = "faster", "slower", "no difference resolved"
SAME, NO_INTERVAL = "the same run", "no interval"


@dataclass(frozen=True)
class Pair:
    """Two rows equal in all but what is compared. `ratio` is throughput, b over a; above 1 b is faster.

    `interval` holds 95 % of this pair alone; `p_holm` is `p` adjusted for all pairs of the comparison, and what the
    verdict goes by.
    """

    label: dict[str, str]
    a: Row
    b: Row
    ratio: float
    interval: Interval | None
    p: float | None
    p_holm: float | None
    test: str
    verdict: str
    regression: bool
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Contrast:
    """`b` over `a`, two values of a key or the two sides, over all pairs: their median with its interval and range."""

    a: str
    b: str
    pairs: Sequence[Pair]
    median: float
    median_interval: Interval | None  # of six pairs and more
    differences: Sequence[tuple[str, str, str, int]]  # key, values of a, values of b, number of pairs


@dataclass
class Comparison:
    by: str | None
    ignored: Sequence[str]
    threshold: float | None  # share of throughput; None: no gate
    contrasts: list[Contrast]
    unpaired: list[Unpaired]
    refusal: str | None = None  # why nothing pairs
    notes: list[str] = field(default_factory=list)
    no_baseline: bool = False  # none was saved for this machine

    @property
    def pairs(self) -> list[Pair]:
        return [pair for contrast in self.contrasts for pair in contrast.pairs]

    @property
    def status(self) -> str:
        """A failed run goes before a regression, which only a threshold makes one."""
        if self.threshold is not None and any(one.failed for one in self.unpaired):
            return FAILED_RUN
        if any(pair.regression for pair in self.pairs):
            return REGRESSION
        return OK if self.pairs else NOT_COMPARABLE


def compare(
    a: Sequence[Launch], b: Sequence[Launch], ignore: Sequence[str] = (), threshold: float | None = None
) -> Comparison:
    """Rows of `b` over the rows of `a` that are the same configuration on the same kind of machine.

    `ignore`: dotted keys, or groups of them, that are left out of the pairing. `threshold`: a share of throughput; a
    pair that is slower by more is a regression. InputError for an unknown key.
    """
    _check([*a, *b], ignore)
    without = [bound for key in ignore for bound in with_bound(key)]
    return _compared([side_of("A", a, without), side_of("B", b, without)], None, ignore, without, threshold)


def compare_by(
    launches: Sequence[Launch],
    key: str,
    base: str | None = None,
    ignore: Sequence[str] = (),
    threshold: float | None = None,
) -> Comparison:
    """Rows that are equal in all but `key`: those of each of its values over those of the value `base`.

    Without `base` the first value is it: that of the first folder, then in order. InputError for an unknown key, or a
    base that no row has.
    """
    _check(launches, [key, *ignore])
    without = [bound for name in (key, *ignore) for bound in with_bound(name)]
    values = values_of(launches, key, base)
    sides = [side_of(value.name, _of_value(launches, value), without) for value in values]
    if len(sides) < 2:
        return Comparison(key, ignore, threshold, [], [], f"{key} is {sides[0].name} in all rows: nothing to compare")
    return _compared(sides, key, ignore, without, threshold)


def _of_value(launches: Sequence[Launch], value: KeyValue) -> list[Launch]:
    return [launch for launch in launches if launch.run_id in value.run_ids]


def _check(launches: Sequence[Launch], keys: Sequence[str]) -> None:
    known = {name for launch in launches for facts in (launch.facts.identity, launch.facts.free) for name in facts}
    for key in keys:
        if (reason := check_key(key, known)) is not None:
            raise InputError(reason)


def _compared(
    sides: Sequence[Side], by: str | None, ignored: Sequence[str], without: Sequence[str], threshold: float | None
) -> Comparison:
    labels = Labels([row for side in sides for row in side.rows.values()], without)
    base = sides[0]
    tested = [[_tested(base.rows[key], row) for key, row in side.rows.items() if key in base.rows
               and base.rows[key].measured and row.measured] for side in sides[1:]]  # fmt: skip
    adjusted = iter(tests.holm([t.p for group in tested for *_, t in group if t.p is not None]))
    contrasts = []
    for side, group in zip(sides[1:], tested, strict=True):
        pairs = [_pair(*each, None if each[-1].p is None else next(adjusted), labels, threshold) for each in group]
        contrasts += [_contrast(base.name, side.name, pairs, by)] if pairs else []
    unpaired = {(one.side, *one.label.items(), one.reason, one.run_id): one
                for side in sides[1:] for one in left(base, side, labels, without)}  # fmt: skip
    refused = None if contrasts else refusal(sides, without)
    result = Comparison(by, ignored, threshold, contrasts, list(unpaired.values()), refused)
    result.notes += samples_differ(result.pairs)
    return result


def _tested(a: Row, b: Row) -> tuple[Row, Row, Tested]:
    """Both rows, without runs that both hold, and the test of their ratio."""
    fewer = without_shared(a, b)
    if fewer is None:
        return a, b, Tested(1.0, None, None, SAME)
    one, other = fewer
    if len(one.measured) == len(other.measured) == 1:
        first, second = one.measured[0], other.measured[0]
        return one, other, tests.blocks_test((one.rate, first.interval), (other.rate, second.interval))
    rates = {launch.run_id: launch.rate or 0.0 for row in fewer for launch in row.measured}
    pairs = interleaved([launch.record for launch in one.measured], [launch.record for launch in other.measured])
    if len(pairs) >= LEAST:
        return one, other, tests.paired_test([(rates[mine.run_id], rates[it.run_id]) for mine, it in pairs])
    return one, other, tests.launches_test(one.rates, other.rates)


def _pair(a: Row, b: Row, tested: Tested, adjusted: float | None, labels: Labels, threshold: float | None) -> Pair:
    verdict = UNRESOLVED
    if tested.test == SAME:
        verdict = SAME
    elif adjusted is None:
        verdict = NO_INTERVAL
    elif adjusted <= LEVEL:
        verdict = FASTER if tested.ratio > 1 else SLOWER
    regression = threshold is not None and verdict == SLOWER and tested.ratio < 1 - threshold
    fields = tested.ratio, tested.interval, tested.p, adjusted, tested.test
    notes = list(dict.fromkeys([*a.notes, *b.notes]))
    return Pair(labels.of(a), a, b, *fields, verdict, regression, notes)


def _contrast(a: str, b: str, pairs: Sequence[Pair], by: str | None) -> Contrast:
    middle, interval = tests.median_interval([pair.ratio for pair in pairs])
    return Contrast(a, b, pairs, middle, interval, differences([(pair.a, pair.b) for pair in pairs], by))
