"""Starts the ranks of a run with one mpirun, on this machine, on hardware.hosts or on the nodes of a job. Layer 2.

mpirun starts a keeper for each (mpi_rank), and that starts the worker. The launcher watches the files that these
leave, and their processes where they are on this machine; on others mpirun reaches them.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from scalebench import hosts as host_lists
from scalebench.launchers import allocation, leash, mpirun, ports
from scalebench.launchers.kept_group import KEEPER, KeptGroup
from scalebench.launchers.kept_group import LATE_S as LATE_S
from scalebench.launchers.kept_group import start as start_program
from scalebench.launchers.local import Child
from scalebench.launchers.surroundings import ADDRESSES, LOOPBACK, RUN_ID, free_ports
from scalebench.launchers.watch import Ended, attend
from scalebench.measure.progress import Progress
from scalebench.process import StartError, signals_later, start_errors
from scalebench.run_folder import MPIRUN_LOG
from scalebench.spec import RunSpec

WARNING = re.compile(r"(\[\S+\] plm:rsh: )?Warning: ")  # of ssh on a new host, of mpirun that is quick to start it
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
    group = KeptGroup(folder, spec.processes, "mpirun", MPIRUN_LOG, words)

    def start() -> None:
        path = shutil.which("mpirun")
        if path is None:
            raise StartError(MISSING)
        hosts = _hosts(spec)
        command = _command(mpirun.identify(path), spec, hosts, folder, module)
        variables = os.environ | {ADDRESSES: ",".join(_addresses(spec, hosts, run_id)), RUN_ID: run_id}
        if allocation.gives_nodes(spec):
            variables |= allocation.tasks_as(hosts, spec.config.hardware.slurm.bin)
        with signals_later(), start_errors():
            group.starter = Child(
                start_program(leash.command(os.getpid(), command), variables, folder / MPIRUN_LOG, spec.config.debug)
            )

    return attend(spec, folder, group, start, on_look)


def addresses(spec: RunSpec, run_id: str = "") -> list[str]:
    """host:port of every rank: free ports here, and likely free ones where hosts differ; see ports.of_ranks."""
    return _addresses(spec, _hosts(spec), run_id)


def _hosts(spec: RunSpec) -> list[str]:
    """The host of each rank, as mpirun is told to start it; none: mpirun starts them here by itself."""
    if allocation.gives_nodes(spec):
        return allocation.hosts_of_ranks(spec)
    return host_lists.of_places(spec.config.hardware.hosts, spec.places) if spec.config.hardware.hosts else []


def _addresses(spec: RunSpec, hosts: list[str], run_id: str) -> list[str]:
    if {"localhost", LOOPBACK, socket.gethostname()}.issuperset(hosts):
        return [f"{LOOPBACK}:{port}" for port in free_ports(spec.processes)]
    return ports.addresses(hosts, run_id)


def _command(found: mpirun.Mpirun, spec: RunSpec, hosts: list[str], folder: Path, module: str) -> list[str]:
    program = [sys.executable, "-m", KEEPER, str(folder), module]
    names = {*os.environ, ADDRESSES, RUN_ID, leash.LEASH}
    slots = None if hosts else mpirun.slots_here(found)
    filled = [f"{name}:{hosts.count(name)}" for name in dict.fromkeys(hosts)]
    return mpirun.command(found, spec.processes, program, filled, slots, names, os.getcwd())


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
        said = line in first or WARNING.match(line)  # by another rank, or no reason
        if not rule and not said:
            first.append(line)
    text = " ".join(" ".join(first).split()).rstrip(":")[:300]
    return None if not text else text if text.startswith("mpirun") else f"mpirun: {text}"
