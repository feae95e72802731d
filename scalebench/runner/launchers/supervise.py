"""Supervises the processes of a run, whichever launcher started them, and ends all of them."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scalebench.core.process import POLL_INTERVAL_S, cancelled, read_process_stat, wait_until
from scalebench.core.run_folder import Turn
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import RankProgress
from scalebench.runner.turns import FolderWatch, Turns

PROGRESS_INTERVAL_S = 0.5  # between two reads of the progress files
GRACE_PERIOD_S = 5.0  # between SIGTERM and SIGKILL
FOLLOW_LIMIT_S = 5.0  # for the other ranks to notice a dead one and to record why they fail
STOPPED_STATES = ("T", "t")  # by a signal, by a debugger
ENDED_STATES = ("Z", "X", None)  # None: collected
WORKER = "scalebench.runner.worker"
# Has a worker write its stacks into its log. Not SIGUSR1, for which code of the user's may have a handler of its own.
STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR1)

OnProgress = Callable[[list[RankProgress]], None]


@dataclass(frozen=True)
class LaunchRequest:
    """One group of processes to start: all ranks of `spec`, in a folder that every host of them sees."""

    spec: RunSpec
    folder: Path
    run_id: str
    on_progress: OnProgress = lambda progress: None  # called regularly while they run
    module: str = WORKER  # run by each rank, with the folder as its argument
    turns: Turns | None = None  # of a run that takes turns with others


@dataclass
class GroupExit:
    """The end of a group of processes."""

    exit_codes: list[int | None]  # by rank; negative: the signal; None: still running when it was ended
    started_at_s: float
    wall_s: float
    died_first: list[int] = field(default_factory=list)  # the ranks that had failed when the first failure was noticed
    timeout: str | None = None  # why the group was ended by the launcher
    timeout_at_s: float | None = None  # by the epoch; failures that ranks report later follow from being ended
    stopped: list[int] = field(default_factory=list)  # ranks that a signal had stopped by then
    pids: list[int] = field(default_factory=list)
    services: dict[int, str] = field(default_factory=dict)  # role by rank, of those that are ended after the others
    broken: str | None = None  # why the program that started the ranks failed, where none of them did
    outcome: tuple[str, str] | None = None  # status and reason, where a batch system ended the ranks


class RankProcess(Protocol):
    """One rank's process."""

    @property
    def pid(self) -> int | None: ...  # None: not started yet, or on another host

    def poll(self) -> int | None: ...  # its exit code, negative: the signal; None while it runs


class RankGroup(ABC):
    """The processes of a run."""

    members: Sequence[RankProcess]  # those ranks that have been started, in order

    def broken(self) -> str | None:
        """Return why the program that started the ranks failed, if it has and not because of one of them."""
        return None

    def batch_outcome(self) -> tuple[str, str] | None:
        """Return status and reason where a batch system ended the ranks; called before and after they are ended."""
        return None

    @abstractmethod
    def progress(self) -> list[RankProgress | None]:
        """Return the last report of each rank, in order; None before its first."""

    @abstractmethod
    def watch(self) -> FolderWatch | threading.Event:
        """Return what wakes a waiting thread when a rank reports."""

    @abstractmethod
    def warm_up(self) -> None:
        """Let ranks that are ready make their first step; OSError where that cannot be written."""

    @abstractmethod
    def pause(self) -> None:
        """Stop the workers and the processes that they started."""

    @abstractmethod
    def resume(self, turn: Turn) -> None:
        """Continue workers that `pause` has stopped, for this turn; OSError where that cannot be written."""

    @abstractmethod
    def is_paused(self) -> bool:
        """Return whether all workers are stopped, or have ended."""

    @abstractmethod
    def resident_bytes(self) -> list[int | None]:
        """Return the anonymous memory of each worker that is parked; None where it cannot be read."""

    def local_pids(self) -> list[int] | None:
        """Return the process id of each worker; None where some are on other hosts."""
        pids = [member.pid for member in self.members]
        return None if None in pids else [pid for pid in pids if pid is not None]

    @abstractmethod
    def request_stacks(self) -> list[int]:
        """Have ranks that hang write their stacks into their logs; return those that a signal had stopped before."""

    @abstractmethod
    def end(self, grace_s: float) -> None:
        """Send SIGTERM to every rank and its children, and SIGKILL after `grace_s`; stopped ones are continued."""


def supervise(
    request: LaunchRequest, group: RankGroup, start: Callable[[], None], started_at_s: float | None = None
) -> GroupExit:
    """Start the ranks of `group`, watch them, and leave no process, whatever happens.

    `started_at_s` is when they were started, where that was before this call.
    """
    started_at_s = time.time() if started_at_s is None else started_at_s
    start_s = time.monotonic() - (time.time() - started_at_s)
    try:
        start()
        if request.turns is not None:
            request.turns.attach(group)
        died_first, timeout, broken = _watch(request, group)
        timeout_at_s = None if timeout is None else time.time()
        stopped = [] if timeout is None else group.request_stacks()
        must_end = bool(died_first) or timeout is not None or broken is not None
        outcome = group.batch_outcome() if must_end else None
    finally:
        codes = [member.poll() for member in group.members]
        pids = [member.pid for member in group.members if member.pid is not None]
        try:
            group.end(GRACE_PERIOD_S)
        except KeyboardInterrupt:  # again: the user is in a hurry
            group.end(0.0)
            raise
    wall_s = time.monotonic() - start_s
    return GroupExit(
        codes, started_at_s, wall_s, died_first, timeout, timeout_at_s, stopped, pids, request.spec.services, broken,
        outcome or (group.batch_outcome() if must_end else None),
    )  # fmt: skip


def _watch(request: LaunchRequest, group: RankGroup) -> tuple[list[int], str | None, str | None]:
    """Wait until all ranks have ended or must end.

    Return (ranks that failed first, why the group must be ended, why the program that started it failed).
    """
    members, services = group.members, request.spec.services
    measuring = [member for rank, member in enumerate(members) if rank not in services]
    limits = _Limits(request, group)
    while True:
        if cancelled.is_set():
            raise KeyboardInterrupt
        codes = [member.poll() for member in members]
        if all(code == 0 for rank, code in enumerate(codes) if rank not in services):
            return [], None, None
        broken = group.broken()  # polled after the ranks, which the program ends together with itself
        if broken is not None:
            return [], None, broken
        failed = [rank for rank, code in enumerate(codes) if code is not None and (code != 0 or rank in services)]
        if failed:
            wait_until(lambda: all(member.poll() is not None for member in measuring), FOLLOW_LIMIT_S)
            # A rank that was killed on another node may be reported later than those that fail since they lost it.
            # Ranks that mpirun kills follow from the first.
            if request.spec.config.strategy.launcher != "mpi":
                killed = [rank for rank, member in enumerate(members) if member.poll() == -signal.SIGKILL]
                failed = list(dict.fromkeys([*failed, *killed]))
            return failed, None, group.broken()  # by now it may be known that they lost a node
        if request.turns is not None and request.turns.refused is not None:
            return [], None, request.turns.refused
        timeout = limits.exceeded()
        if timeout is not None:
            return [], timeout, None
        if request.turns is None:
            time.sleep(POLL_INTERVAL_S)
        else:
            request.turns.sleep()


class _Limits:
    """Reads the progress of the ranks regularly, and checks their time limits."""

    def __init__(self, request: LaunchRequest, group: RankGroup) -> None:
        self._request, self._group, self._settings = request, group, request.spec.config.measure
        self._limited = not request.spec.config.debug
        self._clock = time.monotonic if request.turns is None else request.turns.awake_s
        self._begin_s = self._changed_s = self._read_s = self._clock()
        self._last_progress: list[tuple[int, float]] = []

    def exceeded(self) -> str | None:
        """Return why the group must be ended, if it must."""
        now_s = self._clock()
        if now_s - self._read_s >= PROGRESS_INTERVAL_S:
            self._read_s = now_s
            progress = [p for p in self._group.progress() if p is not None]
            times = [(p.rank, p.at_s) for p in progress]
            if times != self._last_progress:
                self._last_progress, self._changed_s = times, now_s
            self._request.on_progress(progress)
        if self._limited and now_s - self._changed_s > self._settings.hang_s:
            return f"no rank made progress for {self._settings.hang_s:g} s (measure.hang_s)"
        if self._limited and now_s - self._begin_s > self._settings.timeout_s:
            return f"not over after {self._settings.timeout_s:g} s (measure.timeout_s)"
        return None


def is_stopped(pid: int | None) -> bool:
    """Return whether a process of this host is stopped, or has ended."""
    return _read_state(pid) in (*STOPPED_STATES, *ENDED_STATES)


def find_stopped(members: Sequence[RankProcess]) -> list[int]:
    """Return the ranks that SIGSTOP or a debugger holds: nothing else shows why they make no progress."""
    return [rank for rank, member in enumerate(members) if _read_state(member.pid) in STOPPED_STATES]


def _read_state(pid: int | None) -> str | None:
    stat = None if pid is None else read_process_stat(pid)
    return None if stat is None else stat.state
