"""progress<k>.json: the current state of a rank, for the parent's progress line and for hang detection."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.process import read_anonymous_bytes
from scalebench.core.run_folder import progress_path, read_rank_file, write_rank_file
from scalebench.core.untrusted import MAX_SMALL_FILE_BYTES

WRITE_INTERVAL_S = 0.5
PARKED = "parked"  # the phase of a rank that waits for its turn
TRIED = "tried"  # reported where a try of a batch search is over; `metric` says which, and how
READY = "ready"  # the phase of a rank that is set up, and waits with its first step until others have warmed up


@dataclass
class RankProgress:
    """The state of a rank at one time, `at_s`, in seconds since the epoch."""

    rank: int
    pid: int
    phase: str
    at_s: float
    steps: int = 0
    samples_per_s: float | None = None
    elapsed_s: float = 0.0
    limit_s: float | None = None  # the most that this phase may take
    epoch: float | None = None  # of a training with a stop of its own: passes over its samples so far
    metric: str | None = None  # at the last point of its curve: `mse 0.0012`
    step_s: float | None = None  # of the last steps; null before the first
    turn: int | None = None  # number of the turn that is over, of a rank that is parked


class ProgressFile:
    """Writes a rank's progress: at once on a new phase, else at most every half second."""

    def __init__(self, folder: Path, rank: int, pid: int) -> None:
        self.folder = folder
        self._path = progress_path(folder, rank)
        self._state = RankProgress(rank, pid, "launch", time.time())
        self._next_s = 0.0
        self.rss_anon_peak_bytes: int | None = None

    def enter_phase(self, name: str, limit_s: float | None = None) -> None:
        """Write that a phase begins, which may take at most `limit_s`."""
        self._state = RankProgress(self._state.rank, self._state.pid, name, time.time(), limit_s=limit_s)
        self._write()

    def park(self, turn: int, steps: int, seconds: float) -> None:
        """Write that this rank waits for its next turn, and how many steps it made in how many seconds in this one."""
        self._state = RankProgress(
            self._state.rank, self._state.pid, PARKED, time.time(), steps, elapsed_s=seconds, turn=turn
        )
        self._write()

    def update(
        self,
        steps: int,
        samples: int,
        elapsed_s: float,
        epoch: float | None = None,
        metric: str | None = None,
        step_s: float | None = None,
    ) -> None:
        """Write how far the phase is, unless that was done just now. Not to be called within a timed block."""
        if time.monotonic() < self._next_s:
            return
        self._state.steps, self._state.elapsed_s = steps, elapsed_s
        self._state.samples_per_s = samples / elapsed_s if elapsed_s > 0 else None
        self._state.epoch, self._state.metric, self._state.step_s = epoch, metric, step_s
        self._state.at_s = time.time()
        self._write()

    def keep_alive(self) -> None:
        """Write that this rank goes on, where a phase takes long before it has anything to report."""
        self._state.at_s = time.time()
        self._write()

    def _write(self) -> None:
        self._next_s = time.monotonic() + WRITE_INTERVAL_S
        write_rank_file(self._path, self._state)
        resident_bytes = read_anonymous_bytes(os.getpid())
        if resident_bytes is not None:
            self.rss_anon_peak_bytes = max(resident_bytes, self.rss_anon_peak_bytes or 0)


def read_progress(folder: Path, rank: int, run_id: str | None = None) -> RankProgress | None:
    """Return the last progress of a rank of this run (None: of any run there), or None before its first."""
    return read_rank_file(progress_path(folder, rank), RankProgress, run_id, MAX_SMALL_FILE_BYTES)


def rss_peak_bytes() -> int:
    """Return the largest resident memory of this process so far, with mapped files (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
