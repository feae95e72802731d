"""Starts the ranks of a run with one mpirun, on this machine, on hardware.hosts or on the nodes of a job.

mpirun starts an agent for each rank (node_agent), which connects to the launcher and starts the worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from scalebench.cluster.commands import find_site
from scalebench.config import horovod_build
from scalebench.config import placement as host_lists
from scalebench.core import exit_with_parent
from scalebench.core.machine.variables import FRAMEWORK_VARIABLES, SECRET_VARIABLES, drop_launch_variables
from scalebench.core.process import KEY_VARIABLE, NODE_AGENT, StartError, build_python_command
from scalebench.core.run_folder import MPIRUN_LOG
from scalebench.runner.launchers import srun
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.rank_environment import LOOPBACK, assign_rank_addresses, is_this_host
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise

# ssh prints such warnings on a new host, and mpirun while it starts ssh; they are no failure.
IGNORED_WARNING = re.compile(r"(\[\S+\] plm:rsh: )?Warning: ")
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
    spec, hardware = request.spec, request.spec.config.hardware
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
        program = build_python_command("-m", NODE_AGENT, address)
        names = {*inherited, KEY_VARIABLE, exit_with_parent.LAUNCHER_VARIABLE}
        with_slots = [f"{name}:{hosts.count(name)}" for name in dict.fromkeys(hosts)]
        command = mpirun_command(path, spec.processes, program, with_slots, names, os.getcwd())
        if on_nodes:
            inherited |= srun.task_layout_variables(hosts, hardware.slurm.bin) | srun.overlap_variables(spec)
        group.start_agents(command, inherited)
        group.gather(addresses)

    return supervise(request, group, start)


def find_mpirun_failure(log: str) -> str | None:
    """Return the first message of mpirun about a failure, in one line."""
    first: list[str] = []
    for line in map(str.strip, log.splitlines()):
        is_frame = not line.strip("-=*")  # around each message
        if first and is_frame:
            break
        is_no_reason = line in first or IGNORED_WARNING.match(line)  # repeated by another rank, or a warning
        if not is_frame and not is_no_reason:
            first.append(line)
    text = " ".join(" ".join(first).split()).rstrip(":")[:300]
    return None if not text else text if text.startswith("mpirun") else f"mpirun: {text}"


@functools.lru_cache
def identify_mpirun(path: str) -> str:
    """Determine which implementation the mpirun at `path` belongs to."""
    command, variables = [path, "--version"], drop_launch_variables(os.environ)
    text = ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUERY_LIMIT_S, env=variables
        )
        text = run.stdout + run.stderr
    if re.search(r"Open ?MPI\)? v?\d+\.", text, re.IGNORECASE):
        return OPEN_MPI
    return HYDRA if any(name in text for name in HYDRA_NAMES) else UNKNOWN


def mpirun_command(
    path: str,
    ranks: int,
    program: Sequence[str],
    hosts: Sequence[str] = (),
    variables: Iterable[str] = (),  # names of all that are set
    folder: str = ".",  # working directory
) -> list[str]:
    """Build the command that starts `program` for each rank, filling the hosts in order.

    The ranks pin themselves to the cores of their placement. The transport between them is left to MPI and to its own
    variables (OMPI_MCA_*): anything set here would affect the measurement.
    """
    kind, args = identify_mpirun(path), [path, "-n", str(ranks)]
    if kind == OPEN_MPI:
        args += ["--allow-run-as-root"] if os.geteuid() == 0 else []  # as every user is in most containers
        # By slot: ranks in sequence over the hosts, as in the placement of a run. Open MPI would spread them over
        # sockets. Only where there are more ranks than slots, waiting ranks yield their core, as they then must.
        args += ["--bind-to", "none", "--map-by", "slot" if hosts else "slot:OVERSUBSCRIBE"]
        if hosts:
            args += ["--host", ",".join(hosts), "--wdir", folder]
            args += [arg for name in sorted(variables) if is_forwarded(name) for arg in ("-x", name)]
    elif kind == HYDRA and hosts:  # it forwards every variable, and accepts root
        named = host_lists.parse_hosts(hosts)
        is_even = len({slots for _, slots in named}) == 1
        where = ",".join(name if is_even else f"{name}:{slots}" for name, slots in named)
        args += ["-hosts", where, *(["-ppn", str(named[0][1])] if is_even else []), "-wdir", folder]
    return [*args, *program]


def is_forwarded(name: str) -> bool:
    """Return whether a variable is passed to other hosts. Of passwords and keys only that of the agents is."""
    is_known = FORWARDED_VARIABLES.match(name) or FRAMEWORK_VARIABLES.match(name)
    return bool(is_known) and (name == KEY_VARIABLE or not SECRET_VARIABLES.search(name))
