"""What mpirun or srun starts for each rank: `python -m scalebench.launchers.mpi_rank FOLDER MODULE`. Layer 2.

It stands between mpirun, or SLURM, and the worker, which runs as its child with the same surroundings and log as under
the local launcher. What it sees goes to the launcher in two files: pid<k>.json at the start, exit<k>.json at the end.
After a bad end it stays for a while: mpirun would end the others as soon as it leaves, before they can say why
they failed. It ends with mpirun, however that ends, and the worker ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scalebench.launchers import leash, pinning
from scalebench.launchers.surroundings import ADDRESSES, RUN_ID, environment
from scalebench.launchers.watch import FOLLOW_S, GRACE_S
from scalebench.measure.node import attend_node
from scalebench.process import wait_until
from scalebench.records import write_json
from scalebench.run_folder import (
    SPEC_FILE,
    RankProcesses,
    WorkerExit,
    rank_log_name,
    rank_processes_path,
    worker_exit_path,
)
from scalebench.spec import RunSpec, read_spec

# SLURM's last: what starts mpirun in a job, and all that follows, is a task of it, too.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
STEP, NODE = "SLURM_STEP_ID", "SLURMD_NODENAME"
ALSO_TOLD_S = 0.5  # between what SIGTERM does to a worker and its keeper, where both get it
HOLD_S = FOLLOW_S + GRACE_S + 5.0  # the launcher has decided by then; if it is gone, so is mpirun
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT)


def rank_of(variables: Mapping[str, str]) -> int:
    """The rank that whoever started this process gave it; LookupError when it gave none."""
    for name in RANK_VARIABLES:
        if name in variables:
            return int(variables[name])
    raise LookupError(f"no rank in {', '.join(RANK_VARIABLES)}: this is for mpirun or srun to start")


class Keeper:
    """Runs one worker, passes signals on to it and says how it ended."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._worker: subprocess.Popen[bytes] | None = None
        self._told = False
        for sign in PASSED_ON:
            signal.signal(sign, self._pass_on)

    def run(self, spec: RunSpec, module: str) -> int:
        """The exit status for who started this, after the worker's end and what follows from it."""
        variables = environment(spec, os.environ[RUN_ID], self._rank, os.environ[ADDRESSES].split(","))
        variables |= pinning.variable(spec, self._rank)
        command = [sys.executable, "-m", module, str(self._folder)]
        with attend_node(spec, self._folder, spec.places[self._rank].node, self._rank):
            code = self._run(command, variables, in_foreground=spec.config.debug and self._rank == 0)
            write_json(worker_exit_path(self._folder, self._rank), asdict(WorkerExit(code, self._told)))
        if code == 0:
            return 0
        self._hold()
        # Once told, there is nothing that mpirun should still find out.
        return 0 if self._told else code if code > 0 else 128 - code

    def _run(self, command: list[str], variables: dict[str, str], in_foreground: bool) -> int:
        with open(os.devnull if in_foreground else self._folder / rank_log_name(self._rank), "wb") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._worker = subprocess.Popen(
                command, env=variables, start_new_session=True, **({} if in_foreground else streams)
            )
        write_json(
            rank_processes_path(self._folder, self._rank),
            asdict(RankProcesses(socket.gethostname(), os.getpid(), self._worker.pid)),
        )
        if self._told:  # before there was a worker to pass it on to
            self._send(signal.SIGTERM)
        code = self._worker.wait()
        if code == -signal.SIGTERM and not self._told and STEP in os.environ:
            wait_until(lambda: self._told, ALSO_TOLD_S)  # SLURM tells every process of a step, in no order
        self._send(signal.SIGKILL)  # children that outlived it
        return code

    def _hold(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if not self._told:
            self._told = signal.sigtimedwait({signal.SIGTERM}, HOLD_S) is not None

    def _pass_on(self, number: int, frame: Any) -> None:
        self._told |= number == signal.SIGTERM
        self._send(signal.Signals(number))

    def _send(self, sign: signal.Signals) -> None:
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker.pid, sign)


def main(arguments: list[str]) -> int:
    leash.end_with_launched()
    folder, module = Path(arguments[0]), arguments[1]
    try:
        rank = rank_of(os.environ)
    except LookupError as error:
        print(f"scalebench.launchers.mpi_rank: {error.args[0]}", file=sys.stderr, flush=True)
        return 2
    try:
        spec = read_spec(folder)
    except OSError as error:
        print(f"scalebench: {_unseen(folder, error)}", file=sys.stderr, flush=True)
        return 2
    if (misplaced := _misplaced(rank)) is not None:
        print(f"scalebench: {misplaced}", file=sys.stderr, flush=True)
        return 2
    return Keeper(folder, rank).run(spec, module)


def _misplaced(rank: int) -> str | None:
    """Why a rank is not on the node of its place, where SLURM says on which it is: what it measures would mislead."""
    hosts = [address.rpartition(":")[0] for address in os.environ[ADDRESSES].split(",")]
    node = os.environ.get(NODE, hosts[rank])
    if len(set(hosts)) == 1 or node == hosts[rank] or STEP not in os.environ:
        return None
    return f"SLURM started rank {rank} on {node} and not on {hosts[rank]}; ask for as many tasks on each node"


def _unseen(folder: Path, error: OSError) -> str:
    where = f"{socket.gethostname()} cannot read {folder / SPEC_FILE} ({error.strerror})"
    return f"{where}; a run's folder has to be on a file system that all its hosts share"


if __name__ == "__main__":
    # At its own end the interpreter takes back what signals do, and one that comes then would look like a failure.
    os._exit(main(sys.argv[1:]))
