"""The section `problems` of a report: runs that failed, files that cannot be read, flags, and what to do. Layer 3.

Sweeps that are still going on, or were cut short: what this report does not know yet. Layer 3.
"""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.sweep_file import SWEEP_FILE, PlannedRun, SweepRecord, join_labels, read_sweep
from scalebench.report import flag_text, report_data
from scalebench.report.document import MOST_ROWS, Block, Cell, Code, Row, Section, Table, Words, tags
from scalebench.report.flag_text import UNSTEADY, text
from scalebench.report.report_data import Evidence, inside, link, tail, unfinished

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
    names = report_data.names(rows)
    cells = [
        [names[row["run_id"]], text(row["status"]), text(row["reason"]), link(evidence, Path(text(row["path"])))]
        for row in rows
    ]
    columns = ("run", "status", "reason", "folder")
    yield _table("failed", "Runs that did not go well", columns, [*zip(cells, rows, strict=True)], count)
    by_reason: dict[str, list[report_data.Row]] = {}
    for row in rows:
        by_reason.setdefault(text(row["reason"]), []).append(row)
    in_turn = sorted((turn, number) for members in by_reason.values() for turn, number in _turns(members, rows))
    for _, number in in_turn[:MOST_LOGS]:
        yield _log(evidence, rows[number], names[rows[number]["run_id"]])
    if count > MOST_LOGS:
        yield Words(f"The ends of {MOST_LOGS} of {count:,} logs are shown, of different reasons first.")


def _turns(members: list[report_data.Row], rows: list[report_data.Row]) -> list[tuple[int, int]]:
    """(how many of the same reason stand before it, place among all rows)."""
    place = {row["run_id"]: number for number, row in enumerate(rows)}
    return [(turn, place[row["run_id"]]) for turn, row in enumerate(members)]


def _log(evidence: Evidence, row: report_data.Row, name: str) -> Block:
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
        names = report_data.names(rows)
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
    known = [flag for flag in flag_text.ADVICE if flag in counts]
    rows = []
    for flag in [*known, *sorted(set(counts) - set(known))]:
        words, advice = flag_text.words(flag), flag_text.advice(flag)
        rows.append(Row([Cell(words, flag), Cell(f"{counts[flag]:,}", counts[flag]), Cell(advice, advice)]))
    numeric = frozenset({"rows"})
    yield Table("warnings", "Warnings", ("warning", "rows", "what it means, and what to do"), rows, numeric)
    flagged = [number for number, found in enumerate(flags) if found]
    shown = report_data.plain(frame.iloc[flagged[:MOST_ROWS]].to_dict("records"))
    names = report_data.names(shown)
    said = [", ".join(map(flag_text.words, flags[number])) for number in flagged]
    cells = [[names[row["run_id"]], words] for row, words in zip(shown, said, strict=False)]
    title = "Rows with warnings"
    yield _table("flagged", title, ("run", "warnings"), [*zip(cells, shown, strict=True)], len(flagged))


def _of(flags: str, unsteady: bool) -> list[str]:
    found = flags.split()
    return [*found, flag_text.NOT_STEADY] if unsteady and not set(found) & set(UNSTEADY) else found


def _with_status(evidence: Evidence, wanted: Callable[[str], bool]) -> tuple[list[report_data.Row], int]:
    """(the first of the rows with such a status, how many there are)."""
    frame = evidence.frame.drop_duplicates("run_id")
    chosen = frame[[wanted(text(status)) for status in frame["status"]]]
    return report_data.plain(chosen.head(MOST_ROWS).to_dict("records")), len(chosen)


def _table(
    id_: str, title: str, columns: tuple[str, ...], rows: list[tuple[list[str], report_data.Row]], count: int
) -> Table:
    made = [Row([Cell(word, word or None) for word in words], tags(row)) for words, row in rows]
    return Table(id_, title, columns, made, caption=_shown(count))


def _shown(count: int) -> str:
    return f"The first {MOST_ROWS} of {count:,}." if count > MOST_ROWS else ""


MOST_LABELS = 20


def unfinished_section(evidence: Evidence) -> Section | None:
    found = [block for folder in sweeps(evidence) for block in blocks(folder)]
    return Section("unfinished", "Not all of it is there", found) if found else None


def sweeps(evidence: Evidence) -> list[Path]:
    """Folders with a sweep.json: those that were given, and those of the runs."""
    given = [path if path.is_dir() else path.parent for path in evidence.paths]
    below = {path.parent for folder in given for path in [*folder.glob(SWEEP_FILE), *folder.glob(f"*/{SWEEP_FILE}")]}
    return sorted(below)


def blocks(folder: Path) -> Iterator[Block]:
    try:
        record = read_sweep(folder)
    except InputError as error:
        yield Words(str(error), "warning")
        return
    if record is None:
        return
    missing = [] if record.ended else record.missing(folder)
    if missing:
        yield Words(_state(folder, record, missing), "warning")
    if record.left_out:
        yield Words(
            f"{folder}: sweep.max_minutes={record.max_minutes:g} left out {len(record.left_out)} of "
            f"{len(record.runs)} runs, those that say least: {join_labels(record.left_out, MOST_LABELS)}.",
            "warning",
        )
    if (missing and record.is_alive(platform.node()) is not True) or record.left_out:
        yield Code(command(record), "sh", "to go on with it; what went well is kept")


def command(record: SweepRecord) -> str:
    """The same words again, with resume=true and without the limit."""
    words = [word for word in record.words if not word.startswith(("resume=", "sweep.max_minutes="))]
    return f"python -m scalebench {shlex.join([*words, 'resume=true'])}"


def _state(folder: Path, record: SweepRecord, missing: list[PlannedRun]) -> str:
    alive = record.is_alive(platform.node())
    state = {True: "is still going on", False: "was cut short", None: f"may still go on ({record.hostname} would know)"}
    planned = len(record.runs) - len(record.left_out)
    return (
        f"{folder}: this sweep {state[alive]}: {planned - len(missing)} of {planned} runs have ended. To come: "
        f"{join_labels(missing, MOST_LABELS)}."
    )
