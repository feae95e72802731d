"""Rows of two sides that have no partner, and why: rows that only one side has, and runs that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.analysis.comparison.labels import make_label
from scalebench.analysis.comparison.pairing import ComparedSide, ComparisonRow
from scalebench.analysis.comparison.run_facts import NAMED_GROUPS, Facts, describe_differences, find_differing_keys
from scalebench.analysis.identity import is_under

FAILED_STATUSES = ("failed", "oom", "timeout", "cancelled")
MAX_SEARCHED_ROWS = 20  # rows without a partner for which the closest row is looked up


@dataclass(frozen=True)
class UnmatchedRow:
    """A row without a partner. `failed`: it failed although its partner did not."""

    side: str
    label: dict[str, str]
    reason: str
    failed: bool = False
    run_id: str = ""


def find_unmatched(
    base: ComparedSide, side: ComparedSide, label_keys: Sequence[str], without: Sequence[str]
) -> list[UnmatchedRow]:
    """Return the rows without a measured partner, and the runs that failed."""
    unmatched = [
        UnmatchedRow(either.name, make_label(facts, label_keys), reason)
        for either in (base, side)
        for facts, reason in either.refused
    ]
    for this, other in ((base, side), (side, base)):
        for row in (row for key, row in this.rows.items() if key not in other.rows and row.measured):
            reason, others = f"not in {other.name}", [each.identity for each in other.rows.values()]
            if len(unmatched) < MAX_SEARCHED_ROWS:
                closest, keys = find_closest(row.identity, others, without)
                differences = describe_differences(row.identity, closest, keys)
                reason += f"; the closest row there differs in {differences}" if others else ", which has no rows"
            unmatched.append(UnmatchedRow(this.name, make_label(row.identity, label_keys), reason))
    for key, row in side.rows.items():
        before = base.rows.get(key, ComparisonRow(row.identity))
        label, was_ok = make_label(row.identity, label_keys), bool(before.measured)
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
            failed, label = row.unmeasured[0], make_label(row.identity, label_keys)
            reason = f"{failed.record.status} in {base.name}: {failed.record.reason}"
            unmatched.append(UnmatchedRow(base.name, label, reason, run_id=failed.run_id))
    return unmatched


def find_closest(facts: Facts, others: Sequence[Facts], without: Sequence[str]) -> tuple[Facts, list[str]]:
    """Return the facts that differ in the fewest keys, and these keys; of another strategy or model only its name."""

    def list_keys(other: Facts) -> list[str]:
        return [key for key in find_differing_keys(facts, other) if not is_under(key, without)]

    closest = min(others, key=lambda other: len(list_keys(other)), default={})
    keys = list_keys(closest)
    named = [group for group in NAMED_GROUPS if f"{group}.name" in keys]
    return closest, [key for key in keys if not is_under(key, named) or key.endswith(".name")]


def explain_no_pairs(sides: Sequence[ComparedSide], without: Sequence[str]) -> str:
    """Return why there are no pairs: what failed, or in what the closest rows of two sides differ."""
    measured = [[row.identity for row in side.rows.values() if row.measured] for side in sides]
    for side, good in zip(sides, measured, strict=True):
        if not good and not side.refused:
            return f"no run of {side.name} went well"
    of_base, *of_others = measured
    closest = [
        (facts, *find_closest(facts, others, without))
        for others in of_others
        if others
        for facts in of_base[:MAX_SEARCHED_ROWS]
    ]
    if not closest:
        reasons = [reason for side in sides for _, reason in side.refused]
        return reasons[0] if reasons else "nothing was measured"
    facts, other, keys = min(closest, key=lambda near: len(near[2]))
    names = sides[0].name, sides[1].name if len(sides) == 2 else "the others"
    way_out = f"; --ignore {keys[0]} pairs them" if len(keys) == 1 else ""
    differences = describe_differences(facts, other, keys)
    return f"nothing in {names[0]} pairs with {names[1]}: closest rows differ in {differences}{way_out}"
