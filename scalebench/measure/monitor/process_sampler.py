"""Samples of the processes of the run: their time on the cores and their memory.

"Ours" are the program that started the monitor and all processes below it; a rank is its process and all below that.
Of other programs it keeps the time on the cores by name, so that a record says who disturbed.
Where an agent started the monitor (runner.node_agent), ours are also those of other agents beside it, and the program
that launched the run, if it is on this host.
All but memory is read from /proc directly: the list of all processes is long, and psutil opens several files for each.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from scalebench.core import exit_with_parent
from scalebench.core.process import read_process_stat
from scalebench.core.run_folder import RUN_ID_VARIABLE, progress_path
from scalebench.measure.monitor.time_series import SampleRows
from scalebench.measure.progress import read_progress

OTHER = "other:"  # source of a program outside the run, before its name
MIN_OTHER_S = 0.5  # on the cores: programs that used less have no rows
SEARCH_INTERVAL_S = 2.0  # between two scans of all processes, which take 10 ms where there are many


class ProcessSampler:
    """Samples the process `parent` and all processes below it, among them the `ranks` of the run in `folder`.

    `with_agents`: `parent` is an agent; what started it may have started others beside it.
    """

    def __init__(
        self, rows: SampleRows, folder: Path, parent: int, ranks: Sequence[int], with_agents: bool = False
    ) -> None:
        self._rows, self._folder, self._ranks = rows, folder, ranks
        self._roots = {parent, *(_launching_programs(parent) if with_agents else [])}
        self._last_s: dict[int, float] = {}  # time on the cores by process, at the last sample
        self._spent_s: dict[str, float] = {"ours": 0.0}
        self._rank_pids: dict[int, int] = {}
        self._rank_of: dict[int, int] = {}
        self._others_last_s: dict[int, float] | None = None  # like _last_s, at the last search; None before the first
        self._others_spent_s: dict[str, float] = {}  # by name
        self._next_search_s = 0.0
        self.ours: set[int] = set()

    def sample(self) -> None:
        if self._new_ranks() or time.monotonic() >= self._next_search_s:
            self.search()
        at_s = time.time()
        memory: dict[str, Counter[str]] = {}
        for pid in self.ours:
            spent_s = self._spent(pid)
            source = f"process:{self._rank_of[pid]}" if pid in self._rank_of else None
            self._spent_s["ours"] += spent_s
            if source is not None:
                self._spent_s[source] = self._spent_s.get(source, 0.0) + spent_s
                sums = memory.setdefault(source, Counter())  # also of one that has just ended, whose time counts
                with suppress(psutil.Error):
                    read = psutil.Process(pid).memory_info()
                    # Anonymous is what is not of mapped files, which processes share; a zombie has neither.
                    if read.rss:
                        sums.update(rss_bytes=read.rss, rss_anon_bytes=read.rss - read.shared)
        for source, spent_s in self._spent_s.items():
            if source == "ours" or source in memory:  # a rank that ended has no row
                self._rows.add(at_s, source, "cpu_s", spent_s)
        for source, sums in memory.items():
            for quantity, value in sums.items():
                self._rows.add(at_s, source, quantity, value)

    def search(self) -> None:
        """Find the processes of the run, also new ones."""
        self._next_search_s = time.monotonic() + SEARCH_INTERVAL_S
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        stats = {pid: stat for pid in pids if (stat := read_process_stat(pid))}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        self.ours = set().union(*(_descendants(root, children) for root in self._roots))
        # The process id of a rank on another host means nothing here.
        self._rank_of = {
            pid: rank
            for rank, first in self._rank_pids.items()
            if first in self.ours
            for pid in _descendants(first, children)
        }
        others = {pid: stat for pid, stat in stats.items() if pid not in self.ours}
        if self._others_last_s is not None:
            for pid, stat in others.items():
                spent_s = max(0.0, stat.cpu_s - self._others_last_s.get(pid, 0.0))
                self._others_spent_s[stat.name] = self._others_spent_s.get(stat.name, 0.0) + spent_s
        self._others_last_s = {pid: stat.cpu_s for pid, stat in others.items()}
        for name, spent_s in self._others_spent_s.items():
            if spent_s >= MIN_OTHER_S:
                self._rows.add(time.time(), f"{OTHER}{name}", "cpu_s", spent_s)

    def first_rank_pid(self) -> int | None:
        """Return the process id of a rank that runs; None while there is none."""
        return next((pid for pid in self._rank_pids.values() if pid in self._rank_of), None)

    def _new_ranks(self) -> bool:
        before = len(self._rank_pids)
        for rank in self._ranks:
            if rank not in self._rank_pids and progress_path(self._folder, rank).exists():
                progress = read_progress(self._folder, rank, os.environ.get(RUN_ID_VARIABLE))
                if progress is not None:
                    self._rank_pids[rank] = progress.pid
        return len(self._rank_pids) > before

    def _spent(self, pid: int) -> float:
        """Return the seconds on the cores since the last sample. A process that ended since then adds none: its last
        moments are lost."""
        if (stat := read_process_stat(pid)) is None:
            return 0.0
        before_s, self._last_s[pid] = self._last_s.get(pid, 0.0), stat.cpu_s
        return max(0.0, stat.cpu_s - before_s)


def _launching_programs(agent: int) -> list[int]:
    """Return the programs of this host that launched the run: the one that started the agent, as mpirun, which may
    have started others here; and, where it is on this host, ours that started that one."""
    host, _, pid = os.environ.get(exit_with_parent.LAUNCHER_VARIABLE, "").rpartition(":")
    is_local = host == socket.gethostname() and pid.isdigit()
    programs = exit_with_parent.ancestors(int(pid))[1:2] if is_local else []
    return [*programs, *(exit_with_parent.ancestors(agent)[1:2] if pid else [])]


def _descendants(first: int, children: dict[int, list[int]]) -> set[int]:
    """Return a process and all processes below it."""
    pids, pending = set(), [first]
    while pending:
        pid = pending.pop()
        if pid not in pids:
            pids.add(pid)
            pending += children.get(pid, [])
    return pids
