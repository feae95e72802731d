"""A rank under a keeper as the launcher sees it: by its files, and by its processes where they are here. Layer 2."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import TypeVar

from scalebench.records import from_dict, read_json
from scalebench.run_folder import RankProcesses, WorkerExit, rank_processes_path, worker_exit_path

T = TypeVar("T")


class KeptRank:
    """A rank and its keeper (mpi_rank), which waits for its end. One on another host gets no signal from here."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._pids_path, self._exit_path = rank_processes_path(folder, rank), worker_exit_path(folder, rank)
        self._pids: RankProcesses | None = None
        self._exit: WorkerExit | None = None
        self.lost = False  # the keeper was killed, and the worker with it
        self._given_up = False

    @property
    def pid(self) -> int | None:
        """The worker's; None as long as it has not started, and on another host."""
        self._look()
        return None if self._here is None else self._here.worker

    @property
    def seen(self) -> bool:
        """Whether its worker has started, here or on another host."""
        self._look()
        return self._pids is not None

    @property
    def over(self) -> bool:
        """Whether it has ended, also where it was told to."""
        self._look()
        return self._exit is not None or self.lost

    @property
    def told(self) -> bool:
        """Whether it ended because mpirun, or the launcher, told it to."""
        self._look()
        return self._exit is not None and self._exit.told and self._exit.code != 0

    def poll(self) -> int | None:
        """How the worker ended. One that was told to end did not end by itself: None."""
        self._look()
        if self.lost:
            return -signal.SIGKILL  # a keeper leaves a word before any other end
        return None if self._exit is None or self.told else self._exit.code

    def give_up(self) -> None:
        """Somebody else has seen its keeper end, on another host, and it has left no word of that."""
        self._given_up = True
        self._look()

    def alive(self) -> bool:
        """Whether a process of it is left on this machine."""
        self._look()
        here = self._here
        return here is not None and (_runs(here.worker) or _runs(here.keeper))

    def signal(self, sign: signal.Signals) -> None:
        """The worker with its children gets it at once, whatever state its keeper is in."""
        self._look()
        here = self._here
        if here is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(here.worker, sign)
        if sign != signal.SIGUSR1:  # which the keeper would pass on once more
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(here.keeper, sign)

    @property
    def _here(self) -> RankProcesses | None:
        return self._pids if self._pids is not None and self._pids.host == socket.gethostname() else None

    def _look(self) -> None:
        if self._exit is not None:
            return
        self._pids = self._pids or _read(RankProcesses, self._pids_path)
        gone = self._given_up or (self._here is not None and not _exists(self._here.keeper))
        self._exit = _read(WorkerExit, self._exit_path)  # after the look at the keeper, which writes it at its end
        self.lost = gone and self._exit is None


def _read(kind: type[T], path: Path) -> T | None:
    try:
        return from_dict(kind, read_json(path))
    except FileNotFoundError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _runs(pid: int) -> bool:
    """Whether it exists and is more than what nobody has asked about yet."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
