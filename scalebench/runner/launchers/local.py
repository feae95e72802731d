"""Starts the processes of a run as children of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scalebench.core.machine.private_network import PrivateNetwork, private_network
from scalebench.core.process import as_start_errors, build_python_command, defer_signals, kill_descendants_of_ranks
from scalebench.core.run_folder import RUN_ID_VARIABLE, rank_log_name
from scalebench.runner.launchers.rank_environment import LOOPBACK, build_environment, find_free_ports
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, Program, RankGroup, supervise

REAP_LIMIT_S = 5.0  # for the kernel to end a process that was killed


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end; see supervise.Launcher."""
    addresses = [f"{LOOPBACK}:{port}" for port in find_free_ports(request.spec.processes)]
    group = Children()

    def start() -> None:
        with as_start_errors(), private_network(request.spec.config) as network:
            # One by one, so that after an exception half-way the started ones are in the group, and are ended.
            for rank in range(request.spec.processes):
                with defer_signals():
                    group.members.append(Child(_start(request, rank, addresses, network)))

    try:
        return supervise(request, group, start)
    finally:
        if request.spec.config.script.path is not None:  # a tracker's server, ranks that it started itself
            kill_descendants_of_ranks(RUN_ID_VARIABLE, request.run_id)


def _start(request: LaunchRequest, rank: int, addresses: list[str], network: PrivateNetwork | None) -> Program:
    command = build_python_command("-m", request.module, str(request.folder))
    variables = build_environment(request.spec, request.run_id, rank, addresses)
    in_foreground = request.spec.config.debug and rank == 0  # where a debugger can be used
    start = request.start or start_program
    return start(command, variables, request.folder / rank_log_name(rank), in_foreground, network)


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

    def __init__(self, process: Program) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def alive(self) -> bool:
        return self.process.poll() is None

    def signal_worker(self, sign: signal.Signals) -> None:
        self.signal(sign)

    def signal(self, sign: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(0) == _process_group(self.process):
                self.process.send_signal(sign)  # a rank in the foreground shares our group
            else:
                os.killpg(self.process.pid, sign)

    def reap(self) -> None:
        """Collect its exit status, and end its children that are left. A killed process that a driver or a file server
        holds ends later, which the run does not wait for."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_LIMIT_S)
        self.signal(signal.SIGKILL)


class Children(RankGroup[Child]):
    """Ranks that are children of this process."""

    def end(self, grace_s: float) -> None:
        super().end(grace_s)
        for child in self.members:
            child.reap()


def _process_group(process: Program) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
