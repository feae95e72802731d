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


class History:
    """The entries of this host."""

    def __init__(self, entries: Sequence[HistoryEntry] = ()) -> None:
        self._entries = entries
        self._priors: dict[str, Prior | None] = {}

    def prior(self, machine: str) -> Prior | None:
        """Return what is known of the variance between repeats on machines of this type; None with fewer than
        MIN_DEGREES_OF_FREEDOM."""
        if machine not in self._priors:
            self._priors[machine] = self._fit(machine)
        return self._priors[machine]

    def _fit(self, machine: str) -> Prior | None:
        import numpy as np

        entries = [entry for entry in self._entries if entry.machine == machine and entry.repeats > 1]
        total = math.fsum(entry.degrees_of_freedom for entry in entries)
        if total < MIN_DEGREES_OF_FREEDOM:
            return None
        variances = np.array([entry.variance for entry in entries])
        return fit_prior(variances, np.array([entry.repeats - 1.0 for entry in entries]), total)


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
    if not all(math.isfinite(entry.variance) and entry.variance >= 0 for entry in entries):
        raise ValueError("a variance is no figure")
    return entries
