"""Ranks that mpirun, srun or torchrun started, from the launcher's point of view.

They are watched through the files that their agents (rank_agent) leave, and through their processes on this host; the
program that started them signals those on others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from scalebench.core.json_files import read_record
from scalebench.core.process import process_exists, wait_until
from scalebench.core.run_folder import (
    PausedWorker,
    RankProcesses,
    Turn,
    WorkerExit,
    paused_worker_path,
    query_file_server,
    rank_processes_path,
    read_rank_file,
    turn_path,
    worker_exit_path,
)
from scalebench.runner.launchers.local import Child
from scalebench.runner.launchers.supervise import GRACE_PERIOD_S, STACK_SIGNAL, TURN_SIGNAL, RankGroup

FS_DELAY_S = 2.0  # for a shared file system to show a file that a rank wrote


class RemoteRank:
    """A rank and its agent, which waits for the rank's end. On another host it gets no signal from here."""

    def __init__(self, folder: Path, rank: int, run_id: str | None = None) -> None:
        """Only the files of run `run_id` count: the process ids of another run's may be those of any program now."""
        self._folder, self._rank, self._run_id = folder, rank, run_id
        self._processes: RankProcesses | None = None
        self._exit: WorkerExit | None = None
        self.lost = False  # the agent was killed, and the worker with it
        self._agent_ended = False

    @property
    def pid(self) -> int | None:
        """Return the worker's process id; None before it has started, and on another host."""
        self._update()
        return None if self._local is None else self._local.worker

    @property
    def started(self) -> bool:
        """Return whether its worker has started, on this or another host."""
        self._update()
        return self._processes is not None

    @property
    def over(self) -> bool:
        """Return whether it has ended, also by a signal of its launcher."""
        self._update()
        return self._exit is not None or self.lost

    @property
    def terminated(self) -> bool:
        """Return whether it ended because mpirun, torchrun or this launcher ended it."""
        self._update()
        return self._exit is not None and self._exit.terminated_by_launcher and self._exit.code != 0

    def poll(self) -> int | None:
        """Return how the worker ended; None while it runs, and where a signal of its launcher ended it."""
        self._update()
        if self.lost:
            return -signal.SIGKILL  # an agent that is not killed writes its exit file
        return None if self._exit is None or self.terminated else self._exit.code

    def mark_as_lost(self) -> None:
        """Mark the rank as lost unless it has an exit file: srun reports that its agent ended on another host."""
        self._agent_ended = True
        self._update()

    def alive(self) -> bool:
        """Return whether its worker or agent still runs on this machine."""
        self._update()
        local = self._local
        return local is not None and (_process_runs(local.worker) or _process_runs(local.agent))

    def signal_worker(self, sign: signal.Signals) -> None:
        local = self._local
        if local is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(local.worker, sign)

    def signal(self, sign: signal.Signals) -> None:
        """Signal the worker with its children at once, whatever state its agent is in."""
        self._update()
        local = self._local
        if local is None:
            return
        self.signal_worker(sign)
        if sign != STACK_SIGNAL:  # which is for workers alone
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(local.agent, sign)

    @property
    def _local(self) -> RankProcesses | None:
        processes = self._processes
        return processes if processes is not None and processes.host == socket.gethostname() else None

    def read_paused(self) -> PausedWorker | None:
        """Read what its agent reported when it last stopped it."""
        return read_rank_file(paused_worker_path(self._folder, self._rank), PausedWorker, self._run_id)

    def is_paused(self) -> bool:
        """Return whether its agent has stopped it since its turn is over, or it has ended."""
        paused = self.read_paused()
        turn = _read_turn(self._folder)
        return self.over or (paused is not None and turn is not None and paused.turn == turn.number)

    def _update(self) -> None:
        if self._exit is not None:
            return
        if self._processes is None:
            path = rank_processes_path(self._folder, self._rank)
            self._processes = read_rank_file(path, RankProcesses, self._run_id)
        agent_is_gone = self._agent_ended or (self._local is not None and not process_exists(self._local.agent))
        # Read after the check of the agent, which writes it at its end.
        self._exit = read_rank_file(worker_exit_path(self._folder, self._rank), WorkerExit, self._run_id)
        self.lost = agent_is_gone and self._exit is None


class RemoteRanks(RankGroup[RemoteRank]):
    """All ranks under one program that started their agents: mpirun or srun."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        name: str,
        log: str,
        reason: Callable[[Path], str | None],
        on_nodes: bool = False,
        run_id: str | None = None,
    ) -> None:
        """`name` is the program's, `log` the file with its output, and `reason` reads from it why the program failed.
        With `on_nodes` the ranks are on nodes of a job, and their agents park them."""
        super().__init__()
        self._folder = folder
        self._name, self._log, self._reason, self._on_nodes = name, folder / log, reason, on_nodes
        self.members = [RemoteRank(folder, rank, run_id) for rank in range(ranks)]
        self.starter: Child | None = None

    def broken(self) -> str | None:
        """Return why the program failed, also when it terminated ranks: by itself it does so only after one has
        failed."""
        terminated = [str(rank) for rank, member in enumerate(self.members) if member.terminated]
        starter = self.starter
        if starter is not None and terminated:
            wait_until(lambda: not starter.alive(), GRACE_PERIOD_S)
            ranks = ", ".join(terminated)
            return self._reason(self._log) or f"{self._name} ended rank {ranks} without a reason"
        code = None if starter is None else starter.poll()
        if code is None:
            return None
        if code >= 0:
            wait_until(self._are_over, FS_DELAY_S)
        if any(member.poll() not in (None, 0) and not member.lost for member in self.members):
            return None  # it ended because of that rank
        if code < 0:
            return f"{self._name} was killed by {signal.Signals(-code).name}"
        if all(member.poll() is not None for member in self.members):
            return None
        return self._reason(self._log) or f"{self._name} ended with exit status {code} and without a reason"

    def _are_over(self) -> bool:
        query_file_server(self._folder)
        return all(member.over for member in self.members)

    def pause(self) -> None:
        """Stop the workers, on nodes by their agents, which read that from turn.json and pause also the monitors."""
        if self._on_nodes:
            self._signal_agents()
        else:
            super().pause()

    def resume(self) -> None:
        if self._on_nodes:
            self._signal_agents()
        else:
            super().resume()

    def is_paused(self) -> bool:
        return all(member.is_paused() for member in self.members) if self._on_nodes else super().is_paused()

    def local_pids(self) -> list[int] | None:
        return None if self._on_nodes else super().local_pids()

    def resident_bytes(self) -> list[int | None]:
        if not self._on_nodes:
            return super().resident_bytes()
        return [None if (paused := member.read_paused()) is None else paused.resident_bytes for member in self.members]

    def _signal_agents(self) -> None:
        """Signal the program that started the agents, which forwards this to all of them."""
        if self.starter is not None:
            self.starter.signal(TURN_SIGNAL)

    def end(self, grace_s: float) -> None:
        """End the ranks on this host, then the program, which ends those on other hosts and those that have just
        started."""
        super().end(grace_s)
        starter = self.starter
        if starter is None:
            return
        # By itself it ends with its ranks, at once if they exited in order and within seconds otherwise.
        wait_s = grace_s if self._are_over() else 0.0
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None and starter.alive():
                starter.signal(sign)
                starter.signal(signal.SIGCONT)
            wait_until(lambda: not starter.alive(), wait_s if sign is None else grace_s)
        starter.reap()
        super().end(grace_s)  # for agents that had not written the id of their worker the first time
        self._drop_empty_log()

    def _drop_empty_log(self) -> None:
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()


def _read_turn(folder: Path) -> Turn | None:
    try:
        return read_record(turn_path(folder), Turn)
    except FileNotFoundError:
        return None


def _process_runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    import psutil

    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
