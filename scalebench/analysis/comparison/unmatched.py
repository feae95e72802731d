"""Rows of two sides that have no partner, and why: rows that only one side has, and runs that failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench.analysis.comparison.labels import Labels
from scalebench.analysis.comparison.pairing import (
    FAILED_STATUSES,
    ComparedRun,
    ComparisonRow,
    describe_differences,
    find_closest_row,
    make_comparison_rows,
    merge_rows,
)

MAX_SEARCHED_ROWS = 20  # rows without a partner for which the closest row is looked up


@dataclass(frozen=True)
class UnmatchedRow:
    """A row without a partner. `failed`: it failed although its partner did not."""

    side: str
    label: dict[str, str]
    reason: str
    failed: bool = False
    run_id: str = ""


@dataclass
class ComparedSide:
    """The rows of one side by their key, and those that could not be merged with the reason."""

    name: str
    rows: dict[str, ComparisonRow]
    refused: list[tuple[ComparisonRow, str]]

    @classmethod
    def of(cls, name: str, runs: Iterable[ComparedRun], without: Sequence[str]) -> ComparedSide:
        return cls(name, *merge_rows(make_comparison_rows(runs), without))


def find_unmatched(
    base: ComparedSide, side: ComparedSide, labels: Labels, without: Sequence[str]
) -> list[UnmatchedRow]:
    """Return the rows without a measured partner, and the runs that failed."""
    unmatched = [
        UnmatchedRow(either.name, labels.of(row), reason) for either in (base, side) for row, reason in either.refused
    ]
    searched = 0
    for this, other in ((base, side), (side, base)):
        for key, row in this.rows.items():
            if row.measured and key not in other.rows:
                searched += 1
                reason = f"not in {other.name}"
                if searched <= MAX_SEARCHED_ROWS:
                    near = find_closest_row(row.identity, list(other.rows.values()), without)
                    reason += (
                        ", which has no rows"
                        if near is None
                        else "; the closest row there differs in "
                        + describe_differences(row.identity, near[0].identity, near[1])
                    )
                unmatched.append(UnmatchedRow(this.name, labels.of(row), reason))
    for key, row in side.rows.items():
        before = base.rows.get(key)
        unmatched += [_describe_failed_run(side.name, base.name, labels.of(row), run, before) for run in row.unmeasured]
    for key, row in base.rows.items():
        if not row.measured and (after := side.rows.get(key)) is not None and after.measured:
            failed = row.unmeasured[0]
            reason = f"{failed.record.status} in {base.name}: {failed.record.reason}"
            unmatched.append(UnmatchedRow(base.name, labels.of(row), reason, run_id=failed.run_id))
    return unmatched


def _describe_failed_run(
    name: str, base: str, label: dict[str, str], run: ComparedRun, before: ComparisonRow | None
) -> UnmatchedRow:
    """Describe a run without a figure; it counts as failed unless its configuration had only failed runs in the base.

    A run that is `unsupported` counts only if it was not unsupported in the base. The same run on both sides does not
    count.
    """
    status, was_ok = run.record.status, before is not None and bool(before.measured)
    earlier = before.unmeasured if before is not None else []
    is_known = any(e.record.status in FAILED_STATUSES or e.record.status == status for e in earlier) and not was_ok
    is_known = is_known or run.run_id in {e.run_id for e in earlier}
    failed = (status in FAILED_STATUSES or was_ok) and not is_known
    reason = f"{status}: {run.record.reason}" if status != "ok" else "nothing was measured"
    return UnmatchedRow(name, label, f"{reason} (in {base} too)" if is_known else reason, failed, run.run_id)


def explain_no_pairs(sides: Sequence[ComparedSide], without: Sequence[str]) -> str:
    """Return why there are no pairs: what failed, or in what the closest rows of two sides differ."""
    measured = [[row for row in side.rows.values() if row.measured] for side in sides]
    for side, good in zip(sides, measured, strict=True):
        if not good and not side.refused:
            return f"no run of {side.name} went well"
    closest = []
    for others in measured[1:]:
        nearest = [(row, find_closest_row(row.identity, others, without)) for row in measured[0][:MAX_SEARCHED_ROWS]]
        closest += [(row, *near) for row, near in nearest if near is not None]
    if not closest:
        reasons = [reason for side in sides for _, reason in side.refused]
        return reasons[0] if reasons else "nothing was measured"
    row, other, keys = min(closest, key=lambda near: len(near[2]))
    names = sides[0].name, sides[1].name if len(sides) == 2 else "the others"
    way_out = f"; --ignore {keys[0]} pairs them" if len(keys) == 1 else ""
    differences = describe_differences(row.identity, other.identity, keys)
    return f"nothing in {names[0]} pairs with {names[1]}: closest rows differ in {differences}{way_out}"
