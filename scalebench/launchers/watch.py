"""Watches the processes of a run, whoever started them, and ends them, all of them. Layer 2."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scalebench.measure.progress import Progress, read_progress
from scalebench.process import POLL_S, cancelled, wait_until
from scalebench.spec import RunSpec

LOOK_S = 0.5  # between two looks at the progress files
STACK_S = 0.3  # that a rank has to write its stack
GRACE_S = 5.0  # between SIGTERM and SIGKILL
FOLLOW_S = 5.0  # that the other ranks have to notice a dead one and say so


@dataclass
class Ended:
    """How a group of processes ended."""

    exit_codes: list[int | None]  # by rank; negative: the signal; None: still running when it was ended
    started_at_s: float
    wall_s: float
    died_first: list[int] = field(default_factory=list)  # ranks that were seen to end badly at the first glance
    timeout: str | None = None  # why the group was ended from here
    timeout_at_s: float | None = None  # seconds since the epoch; what ranks say later is only about being ended
    stopped: list[int] = field(default_factory=list)  # ranks that a signal had put to sleep then
    pids: list[int] = field(default_factory=list)
    services: dict[int, str] = field(default_factory=dict)  # role by rank of those that end when the others have
    broken: str | None = None  # how the program that had started the ranks went wrong, where none of them did
    verdict: tuple[str, str] | None = None  # status and reason, where a batch system ended the ranks


class Member(Protocol):
    """One rank's process."""

    @property
    def pid(self) -> int | None: ...  # None: not started yet, or on another host

    def poll(self) -> int | None: ...  # how it ended by itself, negative: by which signal

    def alive(self) -> bool: ...

    def signal(self, sign: signal.Signals) -> None: ...  # it, and the processes that it has started


class Group:
    """The processes of a run. `members` are the ranks in order, those that have been started."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def broken(self) -> str | None:
        """How the program that started the ranks went wrong, where it has and none of them is the reason."""
        return None

    def first(self, bad: list[int]) -> list[int]:
        """The ranks that ended badly first, `bad` being those at the first glance."""
        return bad

    def verdict(self) -> tuple[str, str] | None:
        """Status and reason where a batch system ended the ranks; asked before they are ended from here, and after."""
        return None

    def ask_for_stacks(self) -> None:
        """Have ranks that hang write where they are into their logs; worker.py listens to SIGUSR1."""
        for member in self.members:
            if member.alive():
                member.signal(signal.SIGUSR1)
                member.signal(signal.SIGCONT)
        time.sleep(STACK_S)

    def end(self, grace_s: float) -> None:
        """SIGTERM to every rank and its children, SIGKILL after `grace_s` to what is left; stopped ones are woken."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            alive = [member for member in self.members if member.alive()]
            for member in alive:
                member.signal(sign)
                member.signal(signal.SIGCONT)
            wait_until(lambda alive=alive: not any(member.alive() for member in alive), grace_s)


def attend(
    spec: RunSpec, folder: Path, group: Group, start: Callable[[], None], on_look: Callable[[list[Progress]], None]
) -> Ended:
    """Have `start` start the ranks of `group`, watch them, and leave no process, whatever happens."""
    started_at_s, start_s = time.time(), time.monotonic()
    try:
        start()
        died_first, timeout, broken = _watch(spec, folder, group, on_look)
        timeout_at_s = None if timeout is None else time.time()
        stopped = [] if timeout is None else _stopped(group.members)
        if timeout is not None:
            group.ask_for_stacks()
        badly = bool(died_first) or timeout is not None or broken is not None
        verdict = group.verdict() if badly else None
    finally:
        codes = [member.poll() for member in group.members]
        pids = [member.pid for member in group.members if member.pid is not None]
        try:
            group.end(GRACE_S)
        except KeyboardInterrupt:  # again: somebody is in a hurry
            group.end(0.0)
            raise
    wall_s = time.monotonic() - start_s
    return Ended(
        codes, started_at_s, wall_s, died_first, timeout, timeout_at_s, stopped, pids, spec.services, broken,
        verdict or (group.verdict() if badly else None),
    )  # fmt: skip


def _watch(
    spec: RunSpec, folder: Path, group: Group, on_look: Callable[[list[Progress]], None]
) -> tuple[list[int], str | None, str | None]:
    """(ranks that ended badly first, why the group must be ended, how it broke) when all have ended or shall end."""
    members, services = group.members, spec.services
    measuring = [member for rank, member in enumerate(members) if rank not in services]
    clock = _Clock(spec, folder, on_look)
    while True:
        if cancelled.is_set():
            raise KeyboardInterrupt
        codes = [member.poll() for member in members]
        if all(code == 0 for rank, code in enumerate(codes) if rank not in services):
            return [], None, None
        broken = group.broken()  # asked after the ranks, which it takes along
        if broken is not None:
            return [], None, broken
        bad = [rank for rank, code in enumerate(codes) if code is not None and (code != 0 or rank in services)]
        if bad:
            wait_until(lambda: all(member.poll() is not None for member in measuring), FOLLOW_S)
            return group.first(bad), None, None
        timeout = clock.look()
        if timeout is not None:
            return [], timeout, None
        time.sleep(POLL_S)


class _Clock:
    """Looks at the progress of the ranks now and then, and tells when they have had their time."""

    def __init__(self, spec: RunSpec, folder: Path, on_look: Callable[[list[Progress]], None]) -> None:
        self._settings, self._limited, self._ranks = spec.config.measure, not spec.config.debug, spec.processes
        self._folder, self._on_look = folder, on_look
        self._begin_s = self._changed_s = self._looked_s = time.monotonic()
        self._seen: list[tuple[int, float]] = []

    def look(self) -> str | None:
        """Why the group must be ended, if it must."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            progress = [p for p in (read_progress(self._folder, rank) for rank in range(self._ranks)) if p is not None]
            seen = [(p.rank, p.at_s) for p in progress]
            if seen != self._seen:
                self._seen, self._changed_s = seen, now_s
            self._on_look(progress)
        if self._limited and now_s - self._changed_s > self._settings.hang_s:
            return f"no rank made progress for {self._settings.hang_s:g} s (measure.hang_s)"
        if self._limited and now_s - self._begin_s > self._settings.timeout_s:
            return f"not over after {self._settings.timeout_s:g} s (measure.timeout_s)"
        return None


def _stopped(members: Sequence[Member]) -> list[int]:
    """Ranks that SIGSTOP or a debugger holds: nothing else tells why they make no progress."""
    import psutil

    found = []
    for rank, member in enumerate(members):
        with contextlib.suppress(psutil.Error):
            if member.pid is not None and psutil.Process(member.pid).status() == psutil.STATUS_STOPPED:
                found.append(rank)
    return found
