"""sweep.json: what a sweep was meant to do, so that one that is going on, or was cut short, can say what is missing.
Layer 0."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.run_folder import RESULT_FILE

SWEEP_FILE = "sweep.json"


@dataclass
class PlannedRun:
    number: int  # its folder's name
    label: str  # strategy and devices, and the launch where there are several
    fingerprint: str
    repeat: int
    left_out: bool = False  # by sweep.max_minutes


@dataclass
class SweepRecord:
    started_at: str  # ISO 8601, UTC
    words: list[str]  # of the command line
    hostname: str
    pid: int  # of the program
    pid_started_s: float  # seconds since the epoch: numbers of processes are used again
    max_minutes: float | None = None
    ended: bool = False  # it came to its end, with or without what it left out
    stopped: bool = False  # by Ctrl-C or SIGTERM, before its end
    runs: list[PlannedRun] = field(default_factory=list)

    def missing(self, folder: Path) -> list[PlannedRun]:
        """Runs without a row in the sweep's folder that were not left out."""
        return [run for run in self.runs if not run.left_out and not (folder / str(run.number) / RESULT_FILE).exists()]

    @property
    def left_out(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.left_out]

    def is_alive(self, hostname: str) -> bool | None:
        """Whether its program still runs; None on another machine, where nobody can tell."""
        if self.stopped:
            return False
        if hostname != self.hostname:
            return None
        import psutil

        try:
            return bool(abs(psutil.Process(self.pid).create_time() - self.pid_started_s) < 1.0)
        except psutil.Error:
            return False


def labels(runs: Sequence[PlannedRun], most: int) -> str:
    """Each once, the first `most` of them, and how many more there are."""
    found = list(dict.fromkeys(run.label for run in runs))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def write_sweep(record: SweepRecord, folder: Path) -> None:
    """Whole or not at all; OSError where that cannot be."""
    write_json(folder / SWEEP_FILE, record)


def read_sweep(folder: Path) -> SweepRecord | None:
    """None where there is none. InputError for one that is no such record."""
    path = folder / SWEEP_FILE
    try:
        return read_record(path, SweepRecord, ignore_unknown=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no record of a sweep: {error}") from error


def beginning(words: list[str], started_at: str, hostname: str, max_minutes: float | None) -> SweepRecord:
    """Of this process."""
    import psutil

    return SweepRecord(started_at, words, hostname, os.getpid(), psutil.Process().create_time(), max_minutes)
