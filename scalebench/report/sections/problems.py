"""The section `problems` of a report: runs that failed, files that cannot be read, flags, and what to do. Layer 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from scalebench.report import flag_advice, runs
from scalebench.report.blocks import Block, Cell, Code, Row, Section, Table, Words
from scalebench.report.drawing import MOST_ROWS, tags
from scalebench.report.evidence import Evidence
from scalebench.report.going_on import unfinished
from scalebench.report.run_files import inside, link, tail
from scalebench.report.words import UNSTEADY, text

MOST_LOGS = 20


def section(evidence: Evidence) -> Section | None:
    """None where all went well and nothing is flagged."""
    blocks = [*_failed(evidence), *_unreadable(evidence), *_without_a_row(evidence), *_unsupported(evidence)]
    blocks += _flags(evidence)
    return Section("problems", "Problems and warnings", blocks) if blocks else None


def _failed(evidence: Evidence) -> Iterator[Block]:
    """Rows with their reasons, and the ends of their logs: one of each reason first."""
    rows, count = _with_status(evidence, lambda status: status not in ("ok", "unsupported"))
    if not rows:
        return
    names = runs.names(rows)
    cells = [
        [names[row["run_id"]], text(row["status"]), text(row["reason"]), link(evidence, Path(text(row["path"])))]
        for row in rows
    ]
    columns = ("run", "status", "reason", "folder")
    yield _table("failed", "Runs that did not go well", columns, [*zip(cells, rows, strict=True)], count)
    by_reason: dict[str, list[runs.Row]] = {}
    for row in rows:
        by_reason.setdefault(text(row["reason"]), []).append(row)
    in_turn = sorted((turn, number) for members in by_reason.values() for turn, number in _turns(members, rows))
    for _, number in in_turn[:MOST_LOGS]:
        yield _log(evidence, rows[number], names[rows[number]["run_id"]])
    if count > MOST_LOGS:
        yield Words(f"The ends of {MOST_LOGS} of {count:,} logs are shown, of different reasons first.")


def _turns(members: list[runs.Row], rows: list[runs.Row]) -> list[tuple[int, int]]:
    """(how many of the same reason stand before it, place among all rows)."""
    place = {row["run_id"]: number for number, row in enumerate(rows)}
    return [(turn, place[row["run_id"]]) for turn, row in enumerate(members)]


def _log(evidence: Evidence, row: runs.Row, name: str) -> Block:
    log = evidence.result(row["run_id"]).log
    if log is None:
        return Words(f"{name}: its record names no log.", tags=tags(row))
    path = inside(evidence.folder(row["run_id"]), log)
    if path is None:
        return Words(f"{name}: its folder has no log {log}.", tags=tags(row))
    try:
        end = tail(path)
    except OSError as error:
        return Words(f"{name}: {log} cannot be read: {error.strerror}.", tags=tags(row))
    if not end.strip():
        return Words(f"{name}: {log} is empty.", tags=tags(row))
    return Code(end, "log", f"{name}: the end of {log}", tags(row))


def _unreadable(evidence: Evidence) -> Iterator[Block]:
    found = evidence.unreadable
    rows = [Row([Cell(str(path), str(path)), Cell(why, why)]) for path, why in found[:MOST_ROWS]]
    if rows:
        yield Table("unreadable", "Files that could not be read", ("file", "why"), rows, caption=_shown(len(found)))


def _without_a_row(evidence: Evidence) -> Iterator[Block]:
    found = unfinished(evidence.paths)
    rows, count = [], 0
    for one in islice(found, MOST_ROWS):
        known = [str(one.folder), one.tags.get("strategy", ""), one.gpus, one.phase, one.last_sign]
        rows.append(Row([Cell(word, word or None) for word in known], one.tags))
    count = len(rows) + sum(1 for _ in found)
    if rows:
        columns = ("folder", "strategy", "devices", "phase", "last sign (UTC)")
        caption = "They have no result: they are going on, or were ended before they could write one. " + _shown(count)
        yield Table("running", "Running or interrupted", columns, rows, frozenset({"devices"}), caption.strip())


def _unsupported(evidence: Evidence) -> Iterator[Block]:
    rows, count = _with_status(evidence, lambda status: status == "unsupported")
    if rows:
        names = runs.names(rows)
        cells = [[names[row["run_id"]], text(row["reason"])] for row in rows]
        title = "JobRequest for, and impossible there"
        yield _table("unsupported", title, ("run", "reason"), [*zip(cells, rows, strict=True)], count)


def _flags(evidence: Evidence) -> Iterator[Block]:
    """What each flag means, and which rows have it; launches of one configuration are one row."""
    frame = evidence.pooled
    pairs = zip(frame["flags"], frame["steady"], strict=True)
    flags = [_of(text(told), text(steady) == "False") for told, steady in pairs]
    counts = Counter(flag for found in flags for flag in found)
    if not counts:
        return
    known = [flag for flag in flag_advice.ADVICE if flag in counts]
    rows = []
    for flag in [*known, *sorted(set(counts) - set(known))]:
        words, advice = flag_advice.words(flag), flag_advice.advice(flag)
        rows.append(Row([Cell(words, flag), Cell(f"{counts[flag]:,}", counts[flag]), Cell(advice, advice)]))
    numeric = frozenset({"rows"})
    yield Table("warnings", "Warnings", ("warning", "rows", "what it means, and what to do"), rows, numeric)
    flagged = [number for number, found in enumerate(flags) if found]
    shown = runs.plain(frame.iloc[flagged[:MOST_ROWS]].to_dict("records"))
    names = runs.names(shown)
    said = [", ".join(map(flag_advice.words, flags[number])) for number in flagged]
    cells = [[names[row["run_id"]], words] for row, words in zip(shown, said, strict=False)]
    title = "Rows with warnings"
    yield _table("flagged", title, ("run", "warnings"), [*zip(cells, shown, strict=True)], len(flagged))


def _of(flags: str, unsteady: bool) -> list[str]:
    found = flags.split()
    return [*found, flag_advice.NOT_STEADY] if unsteady and not set(found) & set(UNSTEADY) else found


def _with_status(evidence: Evidence, wanted: Callable[[str], bool]) -> tuple[list[runs.Row], int]:
    """(the first of the rows with such a status, how many there are)."""
    frame = evidence.frame.drop_duplicates("run_id")
    chosen = frame[[wanted(text(status)) for status in frame["status"]]]
    return runs.plain(chosen.head(MOST_ROWS).to_dict("records")), len(chosen)


def _table(id_: str, title: str, columns: tuple[str, ...], rows: list[tuple[list[str], runs.Row]], count: int) -> Table:
    made = [Row([Cell(word, word or None) for word in words], tags(row)) for words, row in rows]
    return Table(id_, title, columns, made, caption=_shown(count))


def _shown(count: int) -> str:
    return f"The first {MOST_ROWS} of {count:,}." if count > MOST_ROWS else ""
