"""What of two sides has no partner, and why: rows that only one has, and runs that failed. Layer 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench.analysis.comparison.labels import Labels
from scalebench.analysis.comparison.pairing import FAILED, Launch, Row, apart, closest, merged, rows

MOST_SEARCHED = 20  # rows without a partner, of which the closest one is looked for


@dataclass(frozen=True)
class Unpaired:
    """A row without a partner. `failed`: it went wrong where its partner did not."""

    side: str
    label: dict[str, str]
    reason: str
    failed: bool = False
    run_id: str = ""


@dataclass
class Side:
    name: str
    rows: dict[str, Row]
    refused: list[tuple[Row, str]]


def side_of(name: str, launches: Iterable[Launch], without: Sequence[str]) -> Side:
    return Side(name, *merged(rows(launches), without))


def left(base: Side, side: Side, labels: Labels, without: Sequence[str]) -> list[Unpaired]:
    """What has no partner that was measured, and what failed."""
    found = [Unpaired(one.name, labels.of(row), reason) for one in (base, side) for row, reason in one.refused]
    searched = 0
    for mine, theirs in ((base, side), (side, base)):
        for key, row in mine.rows.items():
            partner = theirs.rows.get(key)
            if partner is None and row.measured:
                searched += 1
                reason = _nearest(row, theirs, without) if searched <= MOST_SEARCHED else f"not in {theirs.name}"
                found.append(Unpaired(mine.name, labels.of(row), reason))
    for key, row in side.rows.items():
        before = base.rows.get(key)
        found += [_went_wrong(side.name, base.name, labels.of(row), one, before) for one in row.others]
    for key, row in base.rows.items():
        if not row.measured and (after := side.rows.get(key)) is not None and after.measured:
            reason = f"{row.others[0].record.status} in {base.name}: {row.others[0].record.reason}"
            found.append(Unpaired(base.name, labels.of(row), reason, run_id=row.others[0].run_id))
    return found


def _went_wrong(name: str, base: str, label: dict[str, str], launch: Launch, before: Row | None) -> Unpaired:
    """A failure is news unless the configuration failed in the base too, and never went well there.

    One that is `unsupported` is news only where it was not in the base. The same run is no news.
    """
    status, was_ok = launch.record.status, before is not None and bool(before.measured)
    others = before.others if before is not None else []
    known = any(one.record.status in FAILED or one.record.status == status for one in others) and not was_ok
    known = known or launch.run_id in {one.run_id for one in others}
    failed = (status in FAILED or was_ok) and not known
    said = f"{status}: {launch.record.reason}" if status != "ok" else "nothing was measured"
    return Unpaired(name, label, f"{said} (in {base} too)" if known else said, failed, launch.run_id)


def _nearest(row: Row, side: Side, without: Sequence[str]) -> str:
    near = closest(row.identity, list(side.rows.values()), without)
    if near is None:
        return f"not in {side.name}, which has no rows"
    return f"not in {side.name}; the closest row there differs in {apart(row.identity, near[0].identity, near[1])}"


def refusal(sides: Sequence[Side], without: Sequence[str]) -> str:
    """Why nothing pairs: what went wrong, or in what the closest rows of two sides differ."""
    measured = [[row for row in side.rows.values() if row.measured] for side in sides]
    for side, good in zip(sides, measured, strict=True):
        if not good and not side.refused:
            return f"no run of {side.name} went well"
    found = []
    for others in measured[1:]:
        nearest = [(row, closest(row.identity, others, without)) for row in measured[0][:MOST_SEARCHED]]
        found += [(row, *near) for row, near in nearest if near is not None]
    if not found:
        reasons = [reason for side in sides for _, reason in side.refused]
        return reasons[0] if reasons else "nothing was measured"
    row, other, keys = min(found, key=lambda one: len(one[2]))
    names = sides[0].name, sides[1].name if len(sides) == 2 else "the others"
    way_out = f"; --ignore {keys[0]} pairs them" if len(keys) == 1 else ""
    differ = apart(row.identity, other.identity, keys)
    return f"nothing in {names[0]} pairs with {names[1]}: closest rows differ in {differ}{way_out}"
