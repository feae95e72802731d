"""Comparison of two sets of runs, or of the values of one key within a set: what is faster, and how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from scalebench.analysis.comparison import facts, rows, sessions
from scalebench.analysis.comparison.rows import ComparedRun, ComparedSide, ComparisonRow
from scalebench.analysis.comparison.sessions import SIGNIFICANCE_LEVEL, RatioTest, median_with_interval
from scalebench.analysis.identity import is_under
from scalebench.analysis.repeats import Configurations
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import Estimate

OK, REGRESSION, NOT_COMPARABLE, FAILED_RUN = "ok", "regression", "not comparable", "failed run"
TOO_LITTLE_DATA = "too little data"  # for a verdict on each pair, which a gate needs
FASTER, SLOWER, UNRESOLVED = "faster", "slower", "no difference resolved"
SAME, NO_VERDICT = "the same run", "no verdict"
FAILED_STATUSES = ("failed", "oom", "timeout", "cancelled")
MAX_SEARCHED_ROWS = 20  # rows without a partner for which the closest row is looked up
SAMPLE_FACTS = ("model", "dataset.name", "dataset.image_size", "dataset.dtype", "dataset.path", "dataset.classes")
DIFFERENT_SAMPLES_NOTE = (
    "rows of other models or data are compared: a sample is not the same work in both, and the ratio is one of "
    "samples/s, not of how soon a training ends"
)


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


@dataclass(frozen=True)
class UnmatchedRow:
    """A row without a partner. `failed`: it failed although its partner did not."""

    side: str
    label: dict[str, str]
    reason: str
    failed: bool = False
    run_id: str = ""


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
    sides = rows.group_by_value(runs, key, base)
    if len(sides) < 2:
        refusal = f"{key} is {next(iter(sides))} in all rows: nothing to compare"
        return Comparison(key, ignore, threshold, [], [], refusal)
    return _compare_sides(sides, key, ignore, threshold, same_session)


def _check_keys(runs: Sequence[ComparedRun], keys: Sequence[str]) -> None:
    names = {name for run in runs for facts_of_run in (run.facts.identity, run.facts.other) for name in facts_of_run}
    for key in keys:
        if (reason := facts.explain_unknown_key(key, names)) is not None:
            raise InputError(reason)


def _compare_sides(
    runs_of: Mapping[str, Sequence[ComparedRun]],
    by: str | None,
    ignored: Sequence[str],
    threshold: float | None,
    same_session: bool,
) -> Comparison:
    """Compare each side with the first one."""
    without = [bound for key in (*ignored, *([] if by is None else [by])) for bound in facts.keys_bound_to(key)]
    numbers = {} if same_session else sessions.number_sessions(run.record for runs in runs_of.values() for run in runs)
    base, *others = sides = [
        rows.make_side(name, [replace(run, session=numbers.get(run.run_id, 0)) for run in runs], without)
        for name, runs in runs_of.items()
    ]
    all_rows = [row for side in sides for row in side.rows.values()]
    measured = [row for row in all_rows if row.measured]
    summaries = {run.run_id: run.summary for row in measured for run in row.measured}
    configurations = Configurations(list(summaries.values()), rows=[row.run_ids for row in measured])
    tested: dict[str, list[tuple[ComparisonRow, ComparisonRow, RatioTest]]] = {side.name: [] for side in others}
    for side in others:
        for key, row in side.rows.items():
            partner = base.rows.get(key)
            if partner is None or not partner.measured or not row.measured:
                continue
            if different := rows.drop_shared_runs(partner, row):
                tested[side.name].append((*different, sessions.compare_rows(*different, configurations)))
            else:
                tested[side.name].append((partner, row, RatioTest(1.0, test=SAME)))
    ps = [test.p for tests in tested.values() for *_, test in tests if test.p is not None]
    adjusted = iter(sessions.adjust_by_holm(ps))
    label_keys = facts.choose_label_keys([row.identity for row in all_rows], without)
    contrasts, notes = [], list[str]()
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
            of_pair = list(dict.fromkeys([*a.notes, *b.notes, *filter(None, [test.note])]))
            pairs.append(Pair(facts.make_label(a.identity, label_keys), a, b, test.ratio, test.interval, test.p,
                              p_holm, test.test, verdict, regression, of_pair))  # fmt: skip
        if pairs:
            median, interval = median_with_interval([pair.ratio for pair in pairs])
            differences = rows.find_differences([(pair.a, pair.b) for pair in pairs], by)
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
        for row in find_unmatched(base, side, label_keys, without)
    }
    of_pairs = [(a, b) for tests in tested.values() for a, b, _ in tests]
    differing = {key for a, b in of_pairs for key in facts.find_differing_keys(a.identity, b.identity)}
    notes += [DIFFERENT_SAMPLES_NOTE] if any(is_under(key, SAMPLE_FACTS) for key in differing) else []
    rows_of = {base.name: [a for a, _ in of_pairs]} | {name: [b for _, b, _ in ts] for name, ts in tested.items()}
    for name, of_side in rows_of.items():
        notes += rows.describe_other_programs(f"{by or 'side'} {name}", of_side)
    refusal = None if contrasts else explain_no_pairs(sides, without)
    return Comparison(by, ignored, threshold, contrasts, list(alone.values()), refusal, notes)


def find_unmatched(
    base: ComparedSide, side: ComparedSide, label_keys: Sequence[str], without: Sequence[str]
) -> list[UnmatchedRow]:
    """Return the rows without a measured partner, and the runs that failed."""
    unmatched = [
        UnmatchedRow(either.name, facts.make_label(identity, label_keys), reason)
        for either in (base, side)
        for identity, reason in either.refused
    ]
    for this, other in ((base, side), (side, base)):
        for row in (row for key, row in this.rows.items() if key not in other.rows and row.measured):
            reason, others = f"not in {other.name}", [each.identity for each in other.rows.values()]
            if len(unmatched) < MAX_SEARCHED_ROWS:
                closest, keys = facts.find_closest(row.identity, others, without)
                differences = facts.describe_differences(row.identity, closest, keys)
                reason += f"; the closest row there differs in {differences}" if others else ", which has no rows"
            unmatched.append(UnmatchedRow(this.name, facts.make_label(row.identity, label_keys), reason))
    for key, row in side.rows.items():
        before = base.rows.get(key, ComparisonRow(row.identity))
        label, was_ok = facts.make_label(row.identity, label_keys), bool(before.measured)
        statuses = {each.record.status for each in before.unmeasured}
        for failure in row.unmeasured:
            # It counts as failed unless its configuration had only failed runs in the base, or it is the same run on
            # both sides; an unsupported run counts only if it was not unsupported in the base.
            status = failure.record.status
            is_old = not was_ok and not statuses.isdisjoint({*FAILED_STATUSES, status})
            is_old = is_old or failure.run_id in {each.run_id for each in before.unmeasured}
            is_new = (status in FAILED_STATUSES or was_ok) and not is_old
            reason = f"{status}: {failure.record.reason}" if status != "ok" else "nothing was measured"
            reason += f" (in {base.name} too)" if is_old else ""
            unmatched.append(UnmatchedRow(side.name, label, reason, is_new, failure.run_id))
    for key, row in base.rows.items():
        if not row.measured and (after := side.rows.get(key)) is not None and after.measured:
            failed, label = row.unmeasured[0], facts.make_label(row.identity, label_keys)
            reason = f"{failed.record.status} in {base.name}: {failed.record.reason}"
            unmatched.append(UnmatchedRow(base.name, label, reason, run_id=failed.run_id))
    return unmatched


def explain_no_pairs(sides: Sequence[ComparedSide], without: Sequence[str]) -> str:
    """Return why there are no pairs: what failed, or in what the closest rows of two sides differ."""
    measured = [[row.identity for row in side.rows.values() if row.measured] for side in sides]
    for side, good in zip(sides, measured, strict=True):
        if not good and not side.refused:
            return f"no run of {side.name} went well"
    of_base, *of_others = measured
    closest = [
        (identity, *facts.find_closest(identity, others, without))
        for others in of_others
        if others
        for identity in of_base[:MAX_SEARCHED_ROWS]
    ]
    if not closest:
        reasons = [reason for side in sides for _, reason in side.refused]
        return reasons[0] if reasons else "nothing was measured"
    identity, other, keys = min(closest, key=lambda near: len(near[2]))
    names = sides[0].name, sides[1].name if len(sides) == 2 else "the others"
    way_out = f"; --ignore {keys[0]} pairs them" if len(keys) == 1 else ""
    differences = facts.describe_differences(identity, other, keys)
    return f"nothing in {names[0]} pairs with {names[1]}: closest rows differ in {differences}{way_out}"
