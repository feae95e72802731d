"""Samples of the processes of the run: their time on the cores and their memory. Layer 2.

Ours are the program that started the monitor and all that it started; a rank is its process and what that started.
Where an agent started the monitor (launchers.mpi_rank), ours are those of the other ranks of this node as well, and the
program that launched the run, where that is here.
Read from /proc directly: the list of all processes is long, and psutil opens several files for each of them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from scalebench.core import exit_with_parent
from scalebench.core.json_files import read_record
from scalebench.core.run_folder import RankProcesses, progress_path, rank_processes_path
from scalebench.measure.monitor.time_series import Rows
from scalebench.measure.progress import read_progress

SEARCH_S = 2.0  # between two looks at all processes of the machine, which cost 10 ms where there are many


class Processes:
    """The family of process `parent`, with those of `ranks` of the run in `folder` that are known.

    `with_agents`: each rank has an agent that runs beside `parent`.
    """

    def __init__(self, rows: Rows, folder: Path, parent: int, ranks: Sequence[int], with_agents: bool = False) -> None:
        self._rows, self._folder, self._ranks = rows, folder, ranks
        self._roots = {parent, *(_launching() if with_agents else [])}
        self._without_agent = set(ranks if with_agents else [])  # ranks whose agent has not written its process id yet
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._seen_s: dict[int, float] = {}  # time on the cores by process, when last looked at
        self._spent_s: dict[str, float] = {"ours": 0.0}
        self._rank_pids: dict[int, int] = {}
        self._rank_of: dict[int, int] = {}
        self._next_search_s = 0.0
        self.ours: set[int] = set()

    def sample(self) -> None:
        if self._new_agents() | self._new_ranks() or time.monotonic() >= self._next_search_s:
            self.search()
        at_s = time.time()
        memory: dict[str, dict[str, int]] = {}
        for pid in self.ours:
            spent_s = self._spent(pid)
            source = f"process:{self._rank_of[pid]}" if pid in self._rank_of else None
            self._spent_s["ours"] += spent_s
            if source is not None:
                self._spent_s[source] = self._spent_s.get(source, 0.0) + spent_s
                sums = memory.setdefault(source, {})
                for quantity, value in _memory(pid).items():
                    sums[quantity] = sums.get(quantity, 0) + value
        for source, spent_s in self._spent_s.items():
            if source == "ours" or source in memory:  # a rank that ended has no row
                self._rows.add(at_s, source, "cpu_s", spent_s)
        for source, sums in memory.items():
            for quantity, value in sums.items():
                self._rows.add(at_s, source, quantity, value)

    def search(self) -> None:
        """Look for processes that are new."""
        self._next_search_s = time.monotonic() + SEARCH_S
        parents = {pid: found[0] for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (found := _stat(pid))}
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        self.ours = set().union(*(_family(root, children) for root in self._roots))
        # A rank on another host has a number that means nothing here.
        self._rank_of = {
            pid: rank
            for rank, first in self._rank_pids.items()
            if first in self.ours
            for pid in _family(first, children)
        }

    def _new_ranks(self) -> bool:
        before = len(self._rank_pids)
        for rank in self._ranks:
            if rank not in self._rank_pids and progress_path(self._folder, rank).exists():
                progress = read_progress(self._folder, rank)
                if progress is not None:
                    self._rank_pids[rank] = progress.pid
        return len(self._rank_pids) > before

    def _new_agents(self) -> bool:
        found = {rank: pids for rank in self._without_agent if (pids := _pids(self._folder, rank)) is not None}
        self._without_agent -= set(found)
        self._roots |= {pids.agent for pids in found.values() if pids.host == socket.gethostname()}
        return bool(found)

    def _spent(self, pid: int) -> float:
        """Seconds on the cores since the last look. What ended in between keeps its last moments to itself."""
        found = _stat(pid)
        if found is None:
            return 0.0
        now_s = found[1] * self._tick_s
        before_s = self._seen_s.get(pid, 0.0)
        self._seen_s[pid] = now_s
        return max(0.0, now_s - before_s)


def _pids(folder: Path, rank: int) -> RankProcesses | None:
    try:
        return read_record(rank_processes_path(folder, rank), RankProcesses)
    except (OSError, ValueError):
        return None


def _launching() -> list[int]:
    """The program that launched the run; none where it is on another host."""
    host, _, pid = os.environ.get(exit_with_parent.LAUNCHER, "").rpartition(":")
    here = host == socket.gethostname() and pid.isdigit()
    return exit_with_parent.ancestors(int(pid))[1:2] if here else []


def _family(first: int, children: dict[int, list[int]]) -> set[int]:
    found, ahead = set(), [first]
    while ahead:
        pid = ahead.pop()
        if pid not in found:
            found.add(pid)
            ahead += children.get(pid, [])
    return found


def _stat(pid: int) -> tuple[int, int] | None:
    """(its parent, ticks that it has spent on the cores); None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()  # its name may hold anything
        return int(words[1]), int(words[11]) + int(words[12])
    except (OSError, ValueError, IndexError):
        return None


def _memory(pid: int) -> dict[str, int]:
    """Resident bytes, and those of them that are anonymous: without mapped files, which processes share."""
    found = {}
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as lines:
        for line in lines:
            for field, quantity in ((b"VmRSS:", "rss_bytes"), (b"RssAnon:", "rss_anon_bytes")):
                if line.startswith(field):
                    found[quantity] = int(line.split()[1]) * 1024
    return found
