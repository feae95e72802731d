"""Supervises the processes of a run, whoever started them, and ends all of them. Layer 2."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from scalebench.core.process import POLL_S, cancelled, wait_until
from scalebench.core.spec import RunSpec
from scalebench.measure.progress import Progress, read_progress

PROGRESS_INTERVAL_S = 0.5  # between two reads of the progress files
STACK_S = 0.3  # that a rank has to write its stack
GRACE_S = 5.0  # between SIGTERM and SIGKILL
FOLLOW_S = 5.0  # that the other ranks have to notice a dead one and write why they fail
WORKER = "scalebench.runner.worker"

OnProgress = Callable[[list[Progress]], None]


@dataclass(frozen=True)
class LaunchRequest:
    """One group of processes to start: all ranks of `spec`, in a folder that every host of them sees."""

    spec: RunSpec
    folder: Path
    run_id: str
    on_progress: OnProgress = lambda progress: None  # called now and then while they run
    module: str = WORKER  # that each rank runs, with the folder as its argument


class Launcher(Protocol):
    """A module of this package that can start the processes of a run."""

    def launch(self, request: LaunchRequest) -> GroupExit:
        """Run all ranks to their end.

        A rank that ends badly, no progress for `hang_s`, or `timeout_s` in all end the group; so does the good end of
        all ranks that measure, for those that serve them. Whatever happens, also an exception or Ctrl-C here, no
        process is left. StartError when processes cannot be started.
        """
        ...


@dataclass
class GroupExit:
    """The end of a group of processes."""

    exit_codes: list[int | None]  # by rank; negative: the signal; None: still running when it was ended
    started_at_s: float
    wall_s: float
    died_first: list[int] = field(default_factory=list)  # the ranks that had ended badly when any had
    timeout: str | None = None  # why the group was ended from here
    timeout_at_s: float | None = None  # seconds since the epoch; what ranks report later only follows from being ended
    stopped: list[int] = field(default_factory=list)  # ranks that a signal had put to sleep then
    pids: list[int] = field(default_factory=list)
    services: dict[int, str] = field(default_factory=dict)  # role by rank of those that end when the others have
    broken: str | None = None  # how the program that started the ranks failed, where none of them did
    outcome: tuple[str, str] | None = None  # status and reason, where a batch system ended the ranks


class Member(Protocol):
    """One rank's process."""

    @property
    def pid(self) -> int | None: ...  # None: not started yet, or on another host

    def poll(self) -> int | None: ...  # how it ended by itself, negative: by which signal

    def alive(self) -> bool: ...

    def signal(self, sign: signal.Signals) -> None: ...  # it, and the processes that it has started


M = TypeVar("M", bound=Member)


class Group(Generic[M]):
    """The processes of a run. `members` are the ranks in order, those that have been started."""

    def __init__(self) -> None:
        self.members: list[M] = []

    def broken(self) -> str | None:
        """Return how the program that started the ranks failed, where it has and none of them is the reason."""
        return None

    def first(self, bad: list[int]) -> list[int]:
        """Return the ranks that ended badly first; `bad` are those that had when any had."""
        return bad

    def batch_outcome(self) -> tuple[str, str] | None:
        """Return status and reason where a batch system ended the ranks; called before they are ended, and after."""
        return None

    def request_stacks(self) -> None:
        """Have ranks that hang write where they are into their logs; worker.py handles SIGUSR1."""
        for member in self.members:
            if member.alive():
                member.signal(signal.SIGUSR1)
                member.signal(signal.SIGCONT)
        time.sleep(STACK_S)

    def end(self, grace_s: float) -> None:
        """Send SIGTERM to every rank and its children, and SIGKILL after `grace_s`; stopped ones are woken."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            self._end_by(sign, grace_s)

    def _end_by(self, sign: signal.Signals, grace_s: float) -> None:
        alive = [member for member in self.members if member.alive()]
        for member in alive:
            member.signal(sign)
            member.signal(signal.SIGCONT)
        wait_until(lambda: not any(member.alive() for member in alive), grace_s)


def supervise(
    request: LaunchRequest, group: Group[M], start: Callable[[], None], started_at_s: float | None = None
) -> GroupExit:
    """Start the ranks of `group`, watch them, and leave no process, whatever happens.

    `started_at_s`: when they were started, where that was before this call.
    """
    started_at_s = time.time() if started_at_s is None else started_at_s
    start_s = time.monotonic() - (time.time() - started_at_s)
    try:
        start()
        died_first, timeout, broken = _watch(request, group)
        timeout_at_s = None if timeout is None else time.time()
        stopped = [] if timeout is None else _stopped(group.members)
        if timeout is not None:
            group.request_stacks()
        badly = bool(died_first) or timeout is not None or broken is not None
        outcome = group.batch_outcome() if badly else None
    finally:
        codes = [member.poll() for member in group.members]
        pids = [member.pid for member in group.members if member.pid is not None]
        try:
            group.end(GRACE_S)
        except KeyboardInterrupt:  # again: the user is in a hurry
            group.end(0.0)
            raise
    wall_s = time.monotonic() - start_s
    return GroupExit(
        codes, started_at_s, wall_s, died_first, timeout, timeout_at_s, stopped, pids, request.spec.services, broken,
        outcome or (group.batch_outcome() if badly else None),
    )  # fmt: skip


def _watch(request: LaunchRequest, group: Group[M]) -> tuple[list[int], str | None, str | None]:
    """Wait until all ranks have ended or must end.

    Return (ranks that ended badly first, why the group must be ended, how the program that started it failed).
    """
    members, services = group.members, request.spec.services
    measuring = [member for rank, member in enumerate(members) if rank not in services]
    limits = _Limits(request)
    while True:
        if cancelled.is_set():
            raise KeyboardInterrupt
        codes = [member.poll() for member in members]
        if all(code == 0 for rank, code in enumerate(codes) if rank not in services):
            return [], None, None
        broken = group.broken()  # after the ranks, which the program takes along when it ends
        if broken is not None:
            return [], None, broken
        bad = [rank for rank, code in enumerate(codes) if code is not None and (code != 0 or rank in services)]
        if bad:
            wait_until(lambda: all(member.poll() is not None for member in measuring), FOLLOW_S)
            return group.first(bad), None, None
        timeout = limits.exceeded()
        if timeout is not None:
            return [], timeout, None
        time.sleep(POLL_S)


class _Limits:
    """Reads the progress of the ranks now and then, and knows when they have had their time."""

    def __init__(self, request: LaunchRequest) -> None:
        self._request, self._settings = request, request.spec.config.measure
        self._limited = not request.spec.config.debug
        self._begin_s = self._changed_s = self._read_s = time.monotonic()
        self._seen: list[tuple[int, float]] = []

    def exceeded(self) -> str | None:
        """Return why the group must be ended, if it must."""
        now_s = time.monotonic()
        if now_s - self._read_s >= PROGRESS_INTERVAL_S:
            self._read_s = now_s
            ranks = [read_progress(self._request.folder, rank) for rank in range(self._request.spec.processes)]
            progress = [p for p in ranks if p is not None]
            seen = [(p.rank, p.at_s) for p in progress]
            if seen != self._seen:
                self._seen, self._changed_s = seen, now_s
            self._request.on_progress(progress)
        if self._limited and now_s - self._changed_s > self._settings.hang_s:
            return f"no rank made progress for {self._settings.hang_s:g} s (measure.hang_s)"
        if self._limited and now_s - self._begin_s > self._settings.timeout_s:
            return f"not over after {self._settings.timeout_s:g} s (measure.timeout_s)"
        return None


def _stopped(members: Sequence[Member]) -> list[int]:
    """Return the ranks that SIGSTOP or a debugger holds: nothing else tells why they make no progress."""
    import psutil

    stopped = []
    for rank, member in enumerate(members):
        with contextlib.suppress(psutil.Error):
            if member.pid is not None and psutil.Process(member.pid).status() == psutil.STATUS_STOPPED:
                stopped.append(rank)
    return stopped
