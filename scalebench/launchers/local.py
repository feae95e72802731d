"""Starts the processes of a run on this machine as children of this one. Layer 2."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scalebench.launchers.surroundings import LOOPBACK, environment, free_ports
from scalebench.launchers.watch import Ended, Group, attend
from scalebench.measure.progress import Progress
from scalebench.process import signals_later, start_errors
from scalebench.run_folder import rank_log_name
from scalebench.spec import RunSpec


def launch(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = "scalebench.worker",
) -> Ended:
    """Run all ranks of `spec` in `folder` to their end.

    A rank that ends badly, no progress for `hang_s`, or `timeout_s` in all end the group; so does the good end of
    all ranks that measure, for those that serve them. Whatever happens, also an exception or Ctrl-C here, no
    process is left. StartError when processes cannot be started.
    """
    addresses = [f"{LOOPBACK}:{port}" for port in free_ports(spec.processes)]
    group = Children()

    def start() -> None:
        # One by one, so that an exception half-way leaves the started ones where they are found and ended.
        for rank in range(spec.processes):
            with signals_later(), start_errors():
                group.members.append(Child(_start(spec, folder, run_id, rank, addresses, module)))

    return attend(spec, folder, group, start, on_look)


def _start(
    spec: RunSpec, folder: Path, run_id: str, rank: int, addresses: list[str], module: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, str(folder)]
    env = environment(spec, run_id, rank, addresses)
    if spec.config.debug and rank == 0:  # in the foreground, where a debugger can be
        return subprocess.Popen(command, env=env)
    with open(folder / rank_log_name(rank), "wb") as log:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the group in one way.
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


class Child:
    """A child of this process, the leader of a process group unless it is debugged."""

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
            if os.getpgid(0) == _group_of(self.process):
                self.process.send_signal(sign)  # a debugged rank shares our group
            else:
                os.killpg(self.process.pid, sign)

    def reap(self) -> None:
        """Wait for its end, and end children that outlived it."""
        self.process.wait()
        self.signal(signal.SIGKILL)


class Children(Group):
    """Ranks that are children of this process."""

    members: list[Child]

    def end(self, grace_s: float) -> None:
        super().end(grace_s)
        for child in self.members:
            child.reap()


def _group_of(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
