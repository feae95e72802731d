"""Starts the processes of a run as children of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from scalebench.config import placement
from scalebench.core.json_files import write_json
from scalebench.core.machine.private_network import PrivateNetwork, private_network
from scalebench.core.process import (
    as_start_errors,
    build_python_command,
    defer_signals,
    kill_descendants_of_ranks,
    read_anonymous_bytes,
    wait_until,
)
from scalebench.core.run_folder import RUN_ID_VARIABLE, Turn, rank_log_name, turn_path, warm_up_path
from scalebench.measure.progress import RankProgress, read_progress
from scalebench.runner.launchers.rank_environment import LOOPBACK, build_environment, find_free_ports
from scalebench.runner.launchers.supervise import (
    STACK_SIGNAL,
    GroupExit,
    LaunchRequest,
    RankGroup,
    find_stopped,
    is_stopped,
    supervise,
)
from scalebench.runner.turns import FolderWatch

STACK_LIMIT_S = 0.3  # for a rank to write its stack
REAP_LIMIT_S = 5.0  # for the kernel to end a process that was killed


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end."""
    addresses = [f"{LOOPBACK}:{port}" for port in find_free_ports(request.spec.processes)]
    group = Children(request, range(request.spec.processes))

    def start() -> None:
        with as_start_errors(), private_network(request.spec.config) as network:
            group.start(addresses, network)

    try:
        return supervise(request, group, start)
    finally:
        if request.spec.config.script.path is not None:  # a tracker's server, ranks that it started itself
            kill_descendants_of_ranks(RUN_ID_VARIABLE, request.run_id)


def start_program(
    command: list[str],
    variables: dict[str, str],
    log: Path,
    in_foreground: bool,
    network: PrivateNetwork | None = None,  # None: that of this process
    folder: Path | None = None,  # that it works in; None: that of this process
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to `log`, or where the output of this process goes."""
    descriptors: Sequence[int] = ()
    if network is not None:
        command, descriptors = network.command(command), network.descriptors
    if in_foreground:
        return subprocess.Popen(command, env=variables, pass_fds=descriptors, cwd=folder)
    with open(log, "wb") as file:
        # In a session of its own, so that Ctrl-C reaches only the parent, which then ends the group.
        return subprocess.Popen(
            command, env=variables, pass_fds=descriptors, start_new_session=True, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, cwd=folder,
        )  # fmt: skip


class Child:
    """A child of this process; the leader of a process group unless it runs in the foreground."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, sign: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                shares_group = os.getpgid(self.process.pid) == os.getpgid(0)  # a rank in the foreground
            except ProcessLookupError:
                shares_group = False
            if shares_group:
                self.process.send_signal(sign)
            else:
                os.killpg(self.process.pid, sign)

    def reap(self) -> None:
        """Collect its exit status, and end its children that are left. A killed process that a driver or a file server
        holds ends later, which the run does not wait for."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_LIMIT_S)
        self.signal(signal.SIGKILL)


class Children(RankGroup):
    """Ranks of one node that are children of this process: of the program, or of an agent."""

    def __init__(self, request: LaunchRequest, ranks: Sequence[int]) -> None:
        self.members: list[Child] = []
        self._request, self._ranks, self._folder = request, ranks, request.folder
        self._node = request.spec.places[ranks[0]].node

    def start(self, addresses: list[str], network: PrivateNetwork | None = None, by_mpi: bool = False) -> None:
        # One by one, so that after an exception half-way the started ones are in the group, and are ended.
        request = self._request
        command = build_python_command("-m", request.module, str(request.folder))
        for rank in self._ranks:
            variables = build_environment(request.spec, request.run_id, rank, addresses, by_mpi)
            variables |= placement.make_cpus_variable(request.spec, rank)
            in_foreground = request.spec.config.debug and rank == 0  # where a debugger can be used
            log = request.folder / rank_log_name(rank)
            with defer_signals():
                self.members.append(Child(start_program(command, variables, log, in_foreground, network)))

    def progress(self) -> list[RankProgress | None]:
        return [read_progress(self._folder, rank, self._request.run_id) for rank in self._ranks]

    def watch(self) -> FolderWatch:
        return FolderWatch(self._folder)

    def warm_up(self) -> None:
        warm_up_path(self._folder, self._node).touch()

    def pause(self) -> None:
        for child in self.members:
            child.signal(signal.SIGSTOP)

    def resume(self, turn: Turn) -> None:
        """Rank 0 comes last: it calls ranks that serve it, which must run then."""
        write_json(turn_path(self._folder, self._node), vars(turn))
        for child in reversed(self.members):
            child.signal(signal.SIGCONT)

    def is_paused(self) -> bool:
        return all(is_stopped(child.pid) for child in self.members)

    def resident_bytes(self) -> list[int | None]:
        return [read_anonymous_bytes(child.pid) for child in self.members]

    def request_stacks(self) -> list[int]:
        stopped = [self._ranks[position] for position in find_stopped(self.members)]
        for child in self.members:
            if child.alive():
                child.signal(STACK_SIGNAL)
                child.signal(signal.SIGCONT)
        time.sleep(STACK_LIMIT_S)
        return stopped

    def end(self, grace_s: float) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for child in filter(Child.alive, self.members):
                child.signal(sign)
                child.signal(signal.SIGCONT)
            wait_until(lambda: not any(child.alive() for child in self.members), grace_s)
        for child in self.members:
            child.reap()
