"""sweep.json: the planned runs of a sweep, by which missing ones are known while it runs or after it was cut short."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record, write_json
from scalebench.core.machine.variables import mask_credentials
from scalebench.core.process import is_process_alive
from scalebench.core.run_folder import RESULT_FILE, has_foreign_content
from scalebench.core.untrusted import FileRefused

SWEEP_FILE = "sweep.json"
RESULTS_FOLDER = "multirun"  # of the current folder, by default (conf/config.yaml)
MULTIRUN_FILE = "multirun.yaml"  # the config of a sweep, as Hydra names it


@dataclass
class PlannedRun:
    """One run of a sweep as it was planned."""

    number: int  # the name of its folder
    label: str  # strategy and devices, and the repeat where there are several
    fingerprint: str
    repeat: int
    left_out: bool = False  # because of sweep.max_minutes
    place: int | None = None  # in the order in which values were given; null for a baseline that was added


@dataclass
class SweepRecord:
    """The record of a sweep in sweep.json: its program, its planned runs and how it ended."""

    started_at: str  # ISO 8601, UTC
    arguments: list[str]  # of the command line
    hostname: str
    pid: int  # of the program
    pid_started_s: float  # seconds since the epoch: process numbers are used again
    max_minutes: float | None = None
    ended: bool = False  # it came to its end, with or without runs that were left out
    stopped: bool = False  # by Ctrl-C or SIGTERM, before its end
    question: str | None = None  # the swept key that its answer is about
    runs: list[PlannedRun] = field(default_factory=list)

    def missing(self, folder: Path) -> list[PlannedRun]:
        """Return the runs without a result in the sweep's folder that were not left out."""
        return [run for run in self.runs if not run.left_out and not (folder / str(run.number) / RESULT_FILE).exists()]

    @property
    def left_out(self) -> list[PlannedRun]:
        """The runs that were left out because of sweep.max_minutes."""
        return [run for run in self.runs if run.left_out]

    @property
    def time_limit_text(self) -> str:
        """The key by which runs were left out, with its value as far as the file has it."""
        return "sweep.max_minutes" if self.max_minutes is None else f"sweep.max_minutes={self.max_minutes:g}"

    def is_alive(self, hostname: str) -> bool | None:
        """Return whether the sweep's program still runs; None on another machine, from which that cannot be seen."""
        if self.stopped:
            return False
        return is_process_alive(self.pid, self.pid_started_s) if hostname == self.hostname else None


def join_labels(runs: Sequence[PlannedRun], max_labels: int) -> str:
    """Name each configuration once, the first `max_labels` of them, with how many of its repeats these are, and say how
    many more there are."""
    by_configuration: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_configuration.setdefault(run.fingerprint, []).append(run)
    names = [
        f"{first.label.removesuffix(f' repeat={first.repeat}')} ({len(others) + 1} repeats)" if others else first.label
        for first, *others in by_configuration.values()
    ]
    labels = list(dict.fromkeys(names))
    more = f" and {len(labels) - max_labels} more" if len(labels) > max_labels else ""
    return ", ".join(labels[:max_labels]) + more


def write_sweep(record: SweepRecord, folder: Path) -> None:
    """Write sweep.json completely or not at all; OSError where that fails."""
    write_json(folder / SWEEP_FILE, record)


def read_sweep(folder: Path) -> SweepRecord | None:
    """Read sweep.json; None where there is none, InputError for a file that is no such record."""
    path = folder / SWEEP_FILE
    try:
        return read_record(path, SweepRecord)
    except FileNotFoundError:
        return None
    except FileRefused as error:
        raise InputError(f"{path} {error}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a record of a sweep: {error}") from error


def find_sweep(folder: Path) -> SweepRecord | None:
    """Return the record of the sweep in this folder; None where there is none that can be read."""
    try:
        return read_sweep(folder)
    except InputError:
        return None


def find_places(folder: Path) -> dict[str, int]:
    """Return the place of each run that the sweep in this folder was asked for, by the name of the run's folder; none
    where there is no sweep."""
    record = find_sweep(folder)
    return {} if record is None else {str(run.number): run.place for run in record.runs if run.place is not None}


def find_newest_sweep(below: Path = Path(RESULTS_FOLDER)) -> Path:
    """Return the folder of the sweep that was written last among those in `below`; where there is none, that of the
    last single run. Raise InputError where there is neither."""
    for files in (below.glob(f"*/{SWEEP_FILE}"), below.glob(f"single/*/{RESULT_FILE}")):
        if newest := max(files, key=lambda path: path.stat().st_mtime_ns, default=None):
            return newest.parent
    raise InputError(
        f"no sweep below ./{below}; name the folder of a run or a sweep, or make one: scalebench sweep=demo"
    )


def refuse_foreign_sweep_folder(folder: Path) -> None:
    """Raise InputError where `folder` is neither empty nor a sweep's: its tables would be overwritten."""
    if has_foreign_content(folder, SWEEP_FILE, MULTIRUN_FILE) and find_sweep(folder) is None:
        raise InputError(
            f"{folder} is not empty and holds no sweep of scalebench; choose an empty or a new hydra.sweep.dir"
        )


def new_sweep_record(arguments: list[str], started_at: str, hostname: str, max_minutes: float | None) -> SweepRecord:
    """Return the record of a sweep that this process begins, without passwords in its arguments."""
    import psutil

    shown = list(map(mask_credentials, arguments))
    return SweepRecord(started_at, shown, hostname, os.getpid(), psutil.Process().create_time(), max_minutes)
