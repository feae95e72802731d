"""Starts the ranks of a run with one mpirun, on this machine, on hardware.hosts or on the nodes of a job.

mpirun starts an agent for each rank (node_agent), which connects to the launcher and starts the worker.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.cluster.commands import find_site
from scalebench.config import horovod_build
from scalebench.config import placement as host_lists
from scalebench.core import exit_with_parent
from scalebench.core.machine.private_network import PrivateNetwork, find_kernel_problem, private_network
from scalebench.core.machine.variables import FRAMEWORK_VARIABLES, SECRET_VARIABLES, drop_launch_variables
from scalebench.core.process import (
    KEY_VARIABLE,
    NODE_AGENT,
    StartError,
    as_start_errors,
    build_python_command,
    defer_signals,
)
from scalebench.core.run_folder import MPIRUN_LOG
from scalebench.runner.launchers import srun
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.local import Child, start_program
from scalebench.runner.launchers.rank_environment import LOOPBACK, assign_rank_addresses, is_this_host
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise

IGNORED_WARNING = re.compile(
    r"(\[\S+\] plm:rsh: )?Warning: "
)  # of ssh on a new host, and of mpirun while it starts ssh
NO_MPIRUN = "there is no mpirun on the PATH; install Open MPI (openmpi-bin) or take a strategy without MPI"
QUERY_LIMIT_S = 20.0  # for mpirun to print facts about itself
OPEN_MPI, HYDRA, UNKNOWN = "Open MPI", "Hydra", "unknown"
HYDRA_NAMES = ("HYDRA", "MPICH", "Intel(R) MPI", "MVAPICH")
# Variables that mpirun must forward to other hosts, besides those that are in a record.
FORWARDED_VARIABLES = re.compile(
    r"(PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|OPENBLAS_NUM_THREADS)$|(PYTHON|SCALEBENCH|UCX)[A-Z_]*$"
)


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end. The messages of mpirun itself go to mpirun.log. With `debug`, rank 0 has its standard
    streams in the foreground, as far as mpirun forwards them."""
    spec, folder, hardware = request.spec, request.folder, request.spec.config.hardware
    on_nodes = find_site(hardware) == "allocation"
    group = AgentRanks(request, [*map(str, range(spec.processes))], "mpirun", MPIRUN_LOG, find_mpirun_failure)

    def start() -> None:
        path = shutil.which("mpirun")
        if path is None:
            raise StartError(NO_MPIRUN)
        strategy = spec.config.strategy
        # In a job, whose nodes have an mpirun of their own; elsewhere the run was refused before.
        if "horovod" in strategy.requires and (problem := horovod_build.find_mpi_problem(strategy.framework)):
            raise StartError(problem)
        named = host_lists.list_hostnames(hardware.hosts, spec.places) if hardware.hosts else []
        hosts = srun.rank_nodes(spec) if on_nodes else named  # without them mpirun starts all on this machine
        address = group.listen(hosts if on_nodes or not all(map(is_this_host, hosts)) else None)
        addresses = assign_rank_addresses(hosts or [LOOPBACK] * spec.processes, request.run_id, hardware.ports)
        # On the nodes of a job mpirun starts its daemons by srun: one for each node, which needs all GPUs and cores.
        inherited = srun.step_environment() if on_nodes else drop_launch_variables(os.environ)
        variables = inherited | {KEY_VARIABLE: group.key}
        program = build_python_command("-m", NODE_AGENT, address)
        names = {*variables, exit_with_parent.LAUNCHER_VARIABLE}
        mpirun = identify_mpirun(path)
        slots = None if hosts else count_local_slots(mpirun)
        with_slots = [f"{name}:{hosts.count(name)}" for name in dict.fromkeys(hosts)]
        command = mpirun_command(mpirun, spec.processes, program, with_slots, slots, names, os.getcwd())
        if on_nodes:
            variables |= srun.task_layout_variables(hosts, hardware.slurm.bin) | srun.overlap_variables(spec)
        tied = exit_with_parent.tied_command(os.getpid(), command)
        with as_start_errors(), private_network(spec.config) as network, defer_signals():
            group.starter = Child(start_program(tied, variables, folder / MPIRUN_LOG, spec.config.debug, network))
        group.gather(addresses)

    return supervise(request, group, start)


def find_mpirun_failure(log: Path) -> str | None:
    """Return the first message of mpirun about a failure, in one line."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return None
    first: list[str] = []
    for line in lines:
        is_frame = not line.strip("-=*")  # around each message
        if first and is_frame:
            break
        is_no_reason = line in first or IGNORED_WARNING.match(line)  # repeated by another rank, or a warning
        if not is_frame and not is_no_reason:
            first.append(line)
    text = " ".join(" ".join(first).split()).rstrip(":")[:300]
    return None if not text else text if text.startswith("mpirun") else f"mpirun: {text}"


@dataclass(frozen=True)
class Mpirun:
    """An mpirun, and the implementation that it belongs to."""

    path: str
    kind: str
    major: int | None = None


@functools.lru_cache
def identify_mpirun(path: str) -> Mpirun:
    """Determine which implementation the mpirun at `path` belongs to."""
    text = _output([path, "--version"])
    if version := re.search(r"Open ?MPI\)? v?(\d+)\.", text, re.IGNORECASE):
        return Mpirun(path, OPEN_MPI, int(version[1]))
    return Mpirun(path, HYDRA if any(name in text for name in HYDRA_NAMES) else UNKNOWN)


@functools.lru_cache
def count_local_slots(mpirun: Mpirun) -> int | None:
    """Count the processes that Open MPI starts by itself where no hosts are named; None when that is unknown.

    It counts cores, or what a batch system has allocated.
    """
    if mpirun.kind != OPEN_MPI:
        return None
    show = ["--display-allocation"] if mpirun.major is not None and mpirun.major < 5 else ["--display", "allocation"]
    command = [mpirun.path, *_as_root(), *show, "-n", "1", "true"]
    if find_kernel_problem() is None:  # it listens on all interfaces meanwhile
        with PrivateNetwork() as network:
            text = _output(network.command(command), network.descriptors)
    else:
        text = _output(command)
    slots = [int(number) for number in re.findall(r"\bslots=(\d+)", text)]
    return sum(slots) or None


def _output(command: list[str], descriptors: Sequence[int] = ()) -> str:
    """Return the output of a command; an empty text when it cannot be run or takes too long."""
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=False,
            pass_fds=descriptors, env=drop_launch_variables(os.environ),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout + run.stderr


def mpirun_command(
    mpirun: Mpirun,
    ranks: int,
    program: Sequence[str],
    hosts: Sequence[str] = (),
    slots: int | None = None,  # where there are no hosts; see count_local_slots
    variables: Iterable[str] = (),  # names of all that are set
    folder: str = ".",  # working directory
) -> list[str]:
    """Build the command that starts `program` for each rank, filling the hosts in order.

    The ranks pin themselves to the cores of their placement. The transport between them is left to MPI and to its own
    variables (OMPI_MCA_*): anything set here would affect the measurement.
    """
    args = [mpirun.path, "-n", str(ranks)]
    if mpirun.kind == OPEN_MPI:
        args += _open_mpi(ranks, hosts, slots, variables, folder)
    elif mpirun.kind == HYDRA and hosts:
        args += _hydra(hosts, folder)
    return [*args, *program]


def _open_mpi(ranks: int, hosts: Sequence[str], slots: int | None, variables: Iterable[str], folder: str) -> list[str]:
    args = [*_as_root(), "--bind-to", "none"]
    # By slot: ranks in sequence over the hosts, as in the placement of a run. Open MPI would spread them over
    # sockets. With more ranks than slots, it also makes waiting ranks yield their core, as they then must.
    oversubscribed = not hosts and slots is not None and ranks > slots
    args += ["--map-by", "slot:OVERSUBSCRIBE" if oversubscribed else "slot"]
    if hosts:
        args += ["--host", ",".join(hosts), "--wdir", folder]
        args += [arg for name in sorted(variables) if is_forwarded(name) for arg in ("-x", name)]
    return args


def _hydra(hosts: Sequence[str], folder: str) -> list[str]:
    """Return the arguments of Hydra, which forwards every variable and accepts root."""
    named = host_lists.parse_hosts(hosts)
    each = {slots for _, slots in named}
    if len(each) == 1:
        where = ["-hosts", ",".join(name for name, _ in named), "-ppn", str(each.pop())]
    else:
        where = ["-hosts", ",".join(f"{name}:{slots}" for name, slots in named)]
    return [*where, "-wdir", folder]


def _as_root() -> list[str]:
    """Return the argument with which Open MPI accepts root, which every user is in most containers."""
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


def is_forwarded(name: str) -> bool:
    """Return whether a variable is passed to other hosts. Of passwords and keys only that of the agents is."""
    is_known = FORWARDED_VARIABLES.match(name) or FRAMEWORK_VARIABLES.match(name)
    return bool(is_known) and (name == KEY_VARIABLE or not SECRET_VARIABLES.search(name))
