"""The history of this machine: how much repeats of earlier sweeps differed, by which a single repeat is judged.

Each sweep with repeats appends a line for each of its configurations to one file of this host under the cache folder.
SCALEBENCH_HISTORY names another file; `off` reads and writes none.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import filelock
import msgspec

from scalebench.core.json_files import write_text
from scalebench.core.machine.machine import cache_folder
from scalebench.core.stats.moderated_variance import Prior, fit_prior

HISTORY_VARIABLE = "SCALEBENCH_HISTORY"
MAX_ENTRIES = 1000  # about 400 kB; the newest are kept
MAX_BYTES = 2_000_000  # of a file that is read
MIN_DEGREES_OF_FREEDOM = 10  # for limits of a single repeat
LOCK_TIMEOUT_S = 10.0
IS_OFF = ("off", "")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
Line = TypeVar("Line", bound=msgspec.Struct)


class HistoryEntry(msgspec.Struct, frozen=True):
    """The spread between the repeats of one configuration in an earlier sweep."""

    machine: str  # classify_machine as text, as in the frame: entries of other types of machines say nothing
    model: str
    strategy: str
    gpus: int
    global_batch: int
    repeats: int
    variance: float  # of log throughput between repeats
    degrees_of_freedom: float  # its share of those that the sweep has together
    throughput_samples_per_s: float  # the geometric mean
    session: str  # folder of the sweep
    ended_at: str  # ISO 8601, UTC
    variance_in_turns: float | None = None  # beside what is common to all runs that took turns; None without turns
    degrees_of_freedom_in_turns: float = 0.0


class History:
    """The entries of this host."""

    def __init__(self, entries: Sequence[HistoryEntry] = ()) -> None:
        self._entries = entries
        self._priors: dict[tuple[str, bool], Prior | None] = {}

    def prior(self, machine: str, in_turns: bool = False) -> Prior | None:
        """Return what is known of the variance between repeats on machines of this type, or, if that is known, of what
        is left of it between runs that took turns with each other; None with fewer than MIN_DEGREES_OF_FREEDOM."""
        key = machine, in_turns
        if key not in self._priors:
            entries = [entry for entry in self._entries if entry.machine == machine and entry.repeats > 1]
            self._priors[key] = (_fit_in_turns(entries) if in_turns else None) or _fit(entries)
        return self._priors[key]


def _fit(entries: Sequence[HistoryEntry]) -> Prior | None:
    freedoms = [entry.repeats - 1.0 for entry in entries]
    return _fit_variances([entry.variance for entry in entries], freedoms, [e.degrees_of_freedom for e in entries])


def _fit_in_turns(entries: Sequence[HistoryEntry]) -> Prior | None:
    measured = [entry for entry in entries if entry.degrees_of_freedom_in_turns > 0]
    variances = [entry.variance_in_turns or 0.0 for entry in measured]
    freedoms = [entry.degrees_of_freedom_in_turns for entry in measured]
    return _fit_variances(variances, freedoms, freedoms)


def _fit_variances(variances: Sequence[float], freedoms: Sequence[float], shares: Sequence[float]) -> Prior | None:
    """Fit a prior to variances with their degrees of freedom, worth no more than their `shares` together."""
    import numpy as np

    total = math.fsum(shares)
    if total < MIN_DEGREES_OF_FREEDOM:
        return None
    return fit_prior(np.array(variances), np.array(freedoms), total)


def history_file() -> Path | None:
    """Return the file of this host; None where the history is switched off."""
    chosen = os.environ.get(HISTORY_VARIABLE)
    if chosen is None:
        return cache_folder() / "history" / f"{platform.node() or 'unknown'}.jsonl"
    return None if chosen in IS_OFF else Path(chosen).expanduser()


def read_history() -> tuple[History, str | None]:
    """Return the history of this host, empty if there is none, and one line that says why it cannot be read."""
    path = history_file()
    try:
        return History(_read_entries(path) if path is not None and path.exists() else ()), None
    except (OSError, *UNREADABLE) as error:
        text = " ".join(str(error).split())
        return History(), f"{path}: the history of this machine cannot be read ({text}); remove it to begin another"


def append_history(entries: Sequence[HistoryEntry]) -> None:
    """Add entries as append_lines does; those of the same session are replaced."""
    sessions = {entry.session for entry in entries}
    append_lines(history_file(), entries, lambda entry: entry.session not in sessions)


def append_lines(path: Path | None, entries: Sequence[Line], is_kept: Callable[[Line], bool]) -> None:
    """Add entries to a file of one entry per line, keep those earlier ones that `is_kept` accepts, and drop the oldest
    beyond MAX_ENTRIES. Does nothing without a file.

    Raises OSError where the file cannot be written. A file that cannot be read stays as it is.
    """
    if path is None or not entries:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
        try:
            earlier = read_lines(path, type(entries[0])) if path.exists() else []
        except UNREADABLE:
            return
        kept = [entry for entry in earlier if is_kept(entry)]
        lines = [msgspec.json.encode(entry).decode() for entry in [*kept, *entries][-MAX_ENTRIES:]]
        write_text(path, "".join(f"{line}\n" for line in lines))


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Return the entries of a file of one entry per line. Raises OSError or one of UNREADABLE."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return msgspec.json.Decoder(kind).decode_lines(path.read_bytes())


def _read_entries(path: Path) -> list[HistoryEntry]:
    entries = read_lines(path, HistoryEntry)
    figures = [(e.variance, e.variance_in_turns or 0.0, e.degrees_of_freedom_in_turns) for e in entries]
    if not all(math.isfinite(figure) and figure >= 0 for entry in figures for figure in entry):
        raise ValueError("a variance is no figure")
    return entries
