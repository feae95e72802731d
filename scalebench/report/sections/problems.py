"""Failed runs, unreadable files, flags and what to do about them; sweeps that are still running or were interrupted."""

from __future__ import annotations

import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.scaling_curves import plain_rows
from scalebench.analysis.verdicts import read_flags
from scalebench.core.errors import InputError
from scalebench.core.sweep_file import SweepRecord, join_labels, read_sweep
from scalebench.core.untrusted import find_run_file
from scalebench.report import document as doc
from scalebench.report import report_data as data
from scalebench.report import spec
from scalebench.report.flag_text import format_flag, get_advice, list_flags
from scalebench.report.report_data import ReportData, name_runs, select_run_columns
from scalebench.report.report_data import Row as RunRow

if TYPE_CHECKING:
    import pandas as pd

MAX_LOGS = 20
MAX_LABELS = 20


def list_problems(report_data: ReportData) -> Iterator[doc.Block]:
    yield from _list_failed(report_data)
    files, folders = report_data.unreadable, report_data.files.unfinished_folders
    rows: list[spec.TableRow] = [({}, {"file": str(path), "reason": reason}) for path, reason in files]
    yield _make_table("unreadable", "Files that could not be read", rows)
    running: list[spec.TableRow] = [({}, {"folder": str(folder)}) for folder in folders]
    about = "They have no result: they are still running, or ended before they could write one."
    yield _make_table("running", "Running or interrupted", running, about)
    unsupported = _select_rows(report_data.frame, lambda status: status == "unsupported")
    names = name_runs(unsupported)
    rows = [(doc.get_tags(row), {"run": names[row["run_id"]], "reason": row["reason"]}) for row in unsupported]
    yield _make_table("unsupported", "Unsupported runs", rows)
    yield from _list_flags(report_data)


def _list_failed(report_data: ReportData) -> Iterator[doc.Block]:
    """List the failed runs with their reasons, and the ends of their logs, one of each reason first."""
    failed = _select_rows(report_data.frame, lambda status: status not in ("ok", "unsupported"))
    names, rows, seen = name_runs(failed), [], Counter[str]()
    turns = []  # (number of earlier runs with the same reason, position)
    for position, row in enumerate(failed):
        reason, folder = row["reason"] or "", report_data.make_link(Path(row["path"]))
        values = {"run": names[row["run_id"]], "status": row["status"], "reason": reason, "folder": folder}
        rows.append((doc.get_tags(row), values))
        turns.append((seen[reason], position))
        seen[reason] += 1
    yield _make_table("failed", "Failed runs", rows)
    for _, position in sorted(turns)[:MAX_LOGS]:
        yield _make_log_block(report_data, failed[position], names[failed[position]["run_id"]])
    yield from doc.note_left_out(MAX_LOGS, len(failed), "ends of logs are shown, of different reasons first")


def _make_log_block(report_data: ReportData, row: RunRow, name: str) -> doc.Block:
    log, tags, text = report_data.result(row["run_id"]).log, doc.get_tags(row), ""
    path = None if log is None else find_run_file(report_data.folders[row["run_id"]], log)
    if path is None:
        reason = "its record names no log" if log is None else f"its folder has no log {log}"
    else:
        try:
            text, reason = data.read_log_tail(path), f"{log} is empty"
        except OSError as error:
            reason = f"{log} cannot be read: {error.strerror}"
    if text.strip():
        return doc.Code(text, "log", f"{name}: the end of {log}", tags)
    return doc.Paragraph(f"{name}: {reason}.", tags=tags)


def _list_flags(report_data: ReportData) -> Iterator[doc.Block]:
    """Say what each flag means, and how many rows have it; the repeats of a configuration are one row, and the table of
    configurations has the flags of each."""
    rows_of = plain_rows(report_data.pooled[["flags", "steady"]])
    counts = Counter(flag for row in rows_of for flag in list_flags(row["flags"] or "", row["steady"] is False))
    ordered = [flag for flag in read_flags() if flag in counts]
    about = "what it means, and what to do"
    rows: list[spec.TableRow] = [
        ({}, {"warning": doc.Cell(format_flag(flag), flag), "rows": counts[flag], about: get_advice(flag)})
        for flag in [*ordered, *sorted(set(counts) - set(ordered))]
    ]
    yield _make_table("warnings", "Warnings", rows, "", "rows")


def _select_rows(frame: pd.DataFrame, has_status: Callable[[str], bool]) -> list[RunRow]:
    rows = select_run_columns(frame).drop_duplicates("run_id")
    return plain_rows(rows[rows["status"].map(has_status)])


def _make_table(table_id: str, title: str, rows: Sequence[spec.TableRow], about: str = "", *numeric: str) -> doc.Table:
    """Make a table of texts, but for the `numeric` columns."""
    words = {head for _, values in rows for head in values} - {*numeric}
    return spec.make_table(table_id, title, rows, words, about)


def list_unfinished_sweeps(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield the sweeps that did not end with all of their runs."""
    return (block for folder in report_data.files.sweep_folders for block in make_sweep_blocks(folder))


def make_sweep_blocks(folder: Path) -> Iterator[doc.Block]:
    try:
        record = read_sweep(folder)
    except InputError as error:
        yield doc.Paragraph(str(error), "warning")
        return
    if record is None:
        return
    alive, missing = record.is_alive(platform.node()), [] if record.ended else record.missing(folder)
    if missing:
        unknown = f"may still go on ({record.hostname} would know)"
        state = {True: "is still going on", False: "was cut short", None: unknown}[alive]
        planned = len(record.runs) - len(record.left_out)
        text = f"{folder}: this sweep {state}: {planned - len(missing)} of {planned} runs have ended. To come: "
        yield doc.Paragraph(f"{text}{join_labels(missing, MAX_LABELS)}.", "warning")
    if record.left_out:
        text = f"{folder}: {record.time_limit_text} left out {len(record.left_out)} of {len(record.runs)} runs, the "
        labels = join_labels(record.left_out, MAX_LABELS)
        yield doc.Paragraph(f"{text}least informative ones: {labels}.", "warning")
    if (missing and alive is not True) or record.left_out:
        yield doc.Code(make_resume_command(record), "sh", "Continue it; successful runs are kept")


def make_resume_command(record: SweepRecord) -> str:
    """Return the sweep's command with resume=true and without its time limit."""
    arguments = [each for each in record.arguments if not each.startswith(("resume=", "sweep.max_minutes="))]
    return f"scalebench {shlex.join([*arguments, 'resume=true'])}"
