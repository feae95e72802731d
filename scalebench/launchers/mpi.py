"""Starts the ranks of a run with one mpirun, on this machine or on hardware.hosts. Layer 2.

mpirun starts a keeper for each (mpi_rank), and that starts the worker. The launcher watches the files that these
leave, and their processes where they are on this machine; on others mpirun reaches them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scalebench import hosts as host_lists
from scalebench.launchers import leash, mpirun
from scalebench.launchers.kept_rank import KeptRank
from scalebench.launchers.local import Child
from scalebench.launchers.surroundings import ADDRESSES, LOOPBACK, MPIRUN_LOG, RUN_ID, free_ports
from scalebench.launchers.watch import (
    GRACE_S,
    Ended,
    Group,
    StartError,
    attend,
    signals_later,
    start_errors,
    wait_until,
)
from scalebench.measure.progress import Progress
from scalebench.spec import RunSpec

KEEPER = "scalebench.launchers.mpi_rank"
LATE_S = 2.0  # that a shared file system may take to show what a rank left
MISSING = "there is no mpirun on the PATH; install Open MPI (openmpi-bin) or take a strategy without MPI"


def launch(
    spec: RunSpec,
    folder: Path,
    run_id: str,
    on_look: Callable[[list[Progress]], None] = lambda progress: None,
    module: str = "scalebench.worker",
) -> Ended:
    """Run all ranks of `spec` in `folder`, which every host sees, to their end; see local.launch.

    What mpirun says of itself is in mpirun.log there. With `debug`, rank 0 has its standard streams in the
    foreground, as far as mpirun passes them on.
    """
    group = KeptGroup(folder, spec.processes)

    def start() -> None:
        path = shutil.which("mpirun")
        if path is None:
            raise StartError(MISSING)
        words = _command(mpirun.identify(path), spec, folder, module)
        variables = os.environ | {ADDRESSES: ",".join(addresses(spec)), RUN_ID: run_id}
        with signals_later(), start_errors():
            group.mpirun = Child(
                _start(leash.command(os.getpid(), words), variables, folder / MPIRUN_LOG, spec.config.debug)
            )

    return attend(spec, folder, group, start, on_look)


def addresses(spec: RunSpec) -> list[str]:
    """host:port of every rank. The ports are free here; on other hosts they may be hoped to be."""
    names = host_lists.of_ranks(spec.config.hardware.hosts, spec.processes)
    here = {"localhost", LOOPBACK, socket.gethostname()}
    if here.issuperset(names):
        names = [LOOPBACK] * spec.processes
    return [f"{name}:{port}" for name, port in zip(names, free_ports(spec.processes), strict=True)]


def _command(found: mpirun.Mpirun, spec: RunSpec, folder: Path, module: str) -> list[str]:
    hosts = spec.config.hardware.hosts
    program = [sys.executable, "-m", KEEPER, str(folder), module]
    names = {*os.environ, ADDRESSES, RUN_ID, leash.LEASH}
    slots = None if hosts else mpirun.slots_here(found)
    return mpirun.command(found, spec.processes, program, hosts, slots, names, os.getcwd())


def _start(command: list[str], variables: dict[str, str], log: Path, debug: bool) -> subprocess.Popen[bytes]:
    if debug:
        return subprocess.Popen(command, env=variables)
    with open(log, "wb") as file:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the group in one way.
        return subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


class KeptGroup(Group):
    """The ranks under one mpirun."""

    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__()
        self._log = folder / MPIRUN_LOG
        self.members: list[KeptRank] = [KeptRank(folder, rank) for rank in range(ranks)]
        self.mpirun: Child | None = None

    def broken(self) -> str | None:
        """Also when mpirun tells ranks to end: it does so by itself only after one of them has ended badly."""
        told = [str(rank) for rank, member in enumerate(self.members) if member.told]
        if self.mpirun is None or not (told or self.mpirun.poll() is not None):
            return None
        if told:
            wait_until(lambda: not self.mpirun.alive(), GRACE_S)
            return words(self._log) or f"mpirun told rank {', '.join(told)} to end and did not say why"
        code = self.mpirun.poll()
        if code >= 0:
            wait_until(lambda: all(member.over for member in self.members), LATE_S)
        if any(member.poll() not in (None, 0) and not member.lost for member in self.members):
            return None  # mpirun ended for that rank
        if code < 0:
            return f"mpirun was killed by {signal.Signals(-code).name}"
        if all(member.poll() is not None for member in self.members):
            return None
        return words(self._log) or f"mpirun ended with exit status {code} and no word of why"

    def end(self, grace_s: float) -> None:
        """First the ranks that are here, then mpirun, which ends those elsewhere and the ones that just started."""
        super().end(grace_s)
        if self.mpirun is None:
            return
        # Left alone it ends with its ranks, at once if MPI was left in order and within seconds otherwise.
        alone_s = grace_s if all(member.over for member in self.members) else 0.0
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None and self.mpirun.alive():
                self.mpirun.signal(sign)
                self.mpirun.signal(signal.SIGCONT)
            wait_until(lambda: not self.mpirun.alive(), alone_s if sign is None else grace_s)
        self.mpirun.reap()
        super().end(grace_s)  # a keeper that had not told of its worker at the first time
        self._drop_empty_log()

    def _drop_empty_log(self) -> None:
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()


def words(log: Path) -> str | None:
    """The first thing that mpirun says of a failure, in one line."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return None
    first: list[str] = []
    for line in lines:
        rule = not line.strip("-=*")  # mpirun frames what it says
        if first and rule:
            break
        if not rule and not line.startswith("Warning: "):  # of ssh, on a new host
            first.append(line)
    text = " ".join(" ".join(first).split()).rstrip(":")[:300]
    return None if not text else text if text.startswith("mpirun") else f"mpirun: {text}"
