"""progress<k>.json: what a rank is doing now, for the parent's progress line and for hang detection. Layer 2."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.json_files import read_json, write_json
from scalebench.core.run_folder import progress_path

INTERVAL_S = 0.5


@dataclass
class Progress:
    """One glance at a rank. `at_s` is in seconds since the epoch."""

    rank: int
    pid: int
    phase: str
    at_s: float
    steps: int = 0
    samples_per_s: float | None = None
    elapsed_s: float = 0.0
    limit_s: float | None = None  # of this phase, at the most
    epoch: float | None = None  # of a training that goes to a stop: passes over its samples so far
    metric: str | None = None  # of its last point: `mse 0.0012`


class ProgressFile:
    """Writes a rank's progress: at once on a new phase, else at most every half second."""

    def __init__(self, folder: Path, rank: int, pid: int) -> None:
        self.folder = folder
        self._path = progress_path(folder, rank)
        self._state = Progress(rank, pid, "launch", time.time())
        self._next_s = 0.0
        self.rss_anon_peak_bytes: int | None = None

    def phase(self, name: str, limit_s: float | None = None) -> None:
        self._state = Progress(self._state.rank, self._state.pid, name, time.time(), limit_s=limit_s)
        self._write()

    def update(
        self, steps: int, samples: int, elapsed_s: float, epoch: float | None = None, metric: str | None = None
    ) -> None:
        """Between blocks; never from within one."""
        if time.monotonic() < self._next_s:
            return
        self._state.steps, self._state.elapsed_s = steps, elapsed_s
        self._state.samples_per_s = samples / elapsed_s if elapsed_s > 0 else None
        self._state.epoch, self._state.metric = epoch, metric
        self._state.at_s = time.time()
        self._write()

    def _write(self) -> None:
        self._next_s = time.monotonic() + INTERVAL_S
        write_json(self._path, self._state)
        seen = rss_anon_bytes()
        if seen is not None:
            self.rss_anon_peak_bytes = max(seen, self.rss_anon_peak_bytes or 0)


def read_progress(folder: Path, rank: int) -> Progress | None:
    """The last word of a rank, or None before its first."""
    try:
        return Progress(**read_json(progress_path(folder, rank)))
    except (OSError, ValueError, TypeError):
        return None


def rss_anon_bytes() -> int | None:
    """Resident anonymous memory of this process: without mapped files, which the ranks share."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def rss_peak_bytes() -> int:
    """Largest resident memory of this process so far, mapped files included (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
