"""Sweeps that are still going on, or were cut short: what this report does not know yet. Layer 3."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from pathlib import Path

from scalebench.report.blocks import Block, Code, Section, Words
from scalebench.report.evidence import Evidence
from scalebench.spec import InputError
from scalebench.sweep_record import SWEEP_FILE, PlannedRun, SweepRecord, labels, read_sweep

MOST_LABELS = 20


def section(evidence: Evidence) -> Section | None:
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
            f"{len(record.runs)} runs, those that say least: {labels(record.left_out, MOST_LABELS)}.",
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
        f"{labels(missing, MOST_LABELS)}."
    )
