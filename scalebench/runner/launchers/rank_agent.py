"""The agent of a rank that mpirun, srun or torchrun started: it runs the worker as its child.

`python -m scalebench.runner.launchers.rank_agent FOLDER MODULE` is what mpirun and srun start. Under torchrun
(or anything else that sets RANK and WORLD_SIZE) `python -m scalebench.runner.worker FOLDER` replaces itself by
`python -m scalebench.runner.launchers.rank_agent FOLDER`.

The worker has the same environment and log as under the local launcher. The agent leaves two files for the
launcher: pid<k>.json at the start, exit<k>.json at the end. After a failure the agent stays for a while: mpirun would
end the other ranks as soon as it exits, before they can write why they failed. The agent ends with the program that
started it, however that ends, and the worker ends with the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.config import placement
from scalebench.core import exit_with_parent
from scalebench.core.claim.sitecustomize import PROGRAM_VARIABLE
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_json, read_record
from scalebench.core.process import RANK_ADDRESSES, build_python_command, read_anonymous_bytes, wait_until
from scalebench.core.run_folder import (
    RESULT_FILE,
    RUN_ID_VARIABLE,
    SPEC_FILE,
    STALE_TURN_LIMIT_S,
    STOP_FILE,
    TORCHRUN_FILE,
    PausedWorker,
    RankProcesses,
    Turn,
    WorkerExit,
    paused_worker_path,
    rank_log_name,
    rank_processes_path,
    turn_path,
    worker_exit_path,
    write_rank_file,
)
from scalebench.core.spec import RunSpec, read_spec
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.nodes import record_node
from scalebench.runner.launchers.rank_environment import build_environment, split_address
from scalebench.runner.launchers.supervise import FOLLOW_LIMIT_S, GRACE_PERIOD_S, STACK_SIGNAL, TURN_SIGNAL, is_stopped

# SLURM_PROCID last: it is also set for the process that runs mpirun in a job, and for all that follow from it.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SLURM_STEP, SLURM_NODE = "SLURM_STEP_ID", "SLURMD_NODENAME"
SIGTERM_GAP_S = 0.5  # between the effect of SIGTERM on a worker and on its agent, where both are sent it
STAY_AFTER_FAILURE_S = (
    FOLLOW_LIMIT_S + GRACE_PERIOD_S + 5.0
)  # the launcher has decided by then; if it has died, so has mpirun
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT)
NO_TURN = -1  # before its first one ends, in paused<k>.json
STOP_INTERVAL_S = 1.0  # between two checks for the end of the run in its folder
# torchrun's own variables, for groups that use its own store
TORCHRUN_VARIABLES = ("TORCHELASTIC_", "TORCH_", "GROUP_", "ROLE_")
BY_HAND = "by_hand"
# By which a command of the user's says the rank of a process and how many there are.
COMMAND_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
)
SHARED_FOLDER = "a run's folder has to be on a file system that all its hosts share"


@dataclass
class TorchrunGroup:
    """by_hand.json: the facts that ranks started by torchrun need from the launcher that waits for them."""

    run_id: str
    addresses: list[str]  # host:port of each rank
    module: str


class RankAgent:
    """Runs one worker, forwards signals to it, and writes its exit file."""

    by_mpi = True  # its variables are those of mpirun or srun, which started it

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._worker: subprocess.Popen[bytes] | None = None
        self._monitor: MonitorProcess | None = None  # of this node, where the agent of its first rank is this one
        self._turn: Turn | None = None  # that was read last
        self._terminated = False
        for sign in FORWARDED:
            signal.signal(sign, self._forward)
        signal.signal(TURN_SIGNAL, self._follow_turn)

    def run(self, spec: RunSpec, module: str) -> int:
        """Run the worker to its end. Return the exit status of the agent for the program that started it."""
        addresses = os.environ[RANK_ADDRESSES].split(",")
        variables = build_environment(spec, os.environ[RUN_ID_VARIABLE], self._rank, addresses, self.by_mpi)
        variables |= placement.make_cpus_variable(spec, self._rank)
        command = build_python_command("-m", module, str(self._folder))
        if spec.cohort:  # a shared file system may show a new file far later than a changed one
            self._write_paused(NO_TURN)
        with record_node(spec, self._folder, spec.places[self._rank].node, self._rank, variables) as self._monitor:
            code = self._run(command, variables, in_foreground=spec.config.debug and self._rank == 0)
            write_rank_file(worker_exit_path(self._folder, self._rank), WorkerExit(code, self._terminated))
        if code == 0:
            return 0
        self._stay()
        return self._status(code if code > 0 else 128 - code)

    def _status(self, status: int) -> int:
        """Return 0 after SIGTERM, since mpirun should not report a failure then."""
        return 0 if self._terminated else status

    def _run(self, command: list[str], variables: dict[str, str], in_foreground: bool) -> int:
        with open(os.devnull if in_foreground else self._folder / rank_log_name(self._rank), "wb") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            # SLURM sends a signal that srun forwards to all processes of a step, and this one is for agents: a worker
            # and all that it starts inherit that it is blocked.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {TURN_SIGNAL})
            try:
                self._worker = subprocess.Popen(
                    command, env=variables, start_new_session=True, **({} if in_foreground else streams)
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        processes = RankProcesses(socket.gethostname(), os.getpid(), self._worker.pid)
        write_rank_file(rank_processes_path(self._folder, self._rank), processes)
        if self._terminated:  # it came before there was a worker to forward it to
            self._send(signal.SIGTERM)
        code = self._worker.wait()
        if code == -signal.SIGTERM and not self._terminated and SLURM_STEP in os.environ:
            wait_until(lambda: self._terminated, SIGTERM_GAP_S)  # SLURM signals all processes of a step, in any order
        self._send(signal.SIGKILL)  # its children that are left
        return code

    def _stay(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if not self._terminated:
            self._terminated = signal.sigtimedwait({signal.SIGTERM}, STAY_AFTER_FAILURE_S) is not None

    def _forward(self, number: int, frame: Any) -> None:
        self._terminated |= number == signal.SIGTERM
        # SIGUSR1 is how srun and mpirun forward the request for stacks.
        self._send(STACK_SIGNAL if number == signal.SIGUSR1 else signal.Signals(number))
        if number == signal.SIGTERM:
            self._send(signal.SIGCONT)  # a parked worker handles SIGTERM only when it continues

    def _follow_turn(self, number: int, frame: Any) -> None:
        """Park the worker when its turn is over, and continue it when it has a new one; the monitor likewise."""
        worker, monitor = self._worker, self._monitor
        if worker is None or not wait_until(self._has_turn_changed, STALE_TURN_LIMIT_S):
            return
        assert self._turn is not None
        self._send(signal.SIGSTOP if self._turn.over else signal.SIGCONT)
        if monitor is not None:
            (monitor.pause if self._turn.over else monitor.resume)()
        if self._turn.over and wait_until(lambda: is_stopped(worker.pid), GRACE_PERIOD_S):
            self._write_paused(self._turn.number)

    def _has_turn_changed(self) -> bool:
        """Read turn.json, which a shared file system may show late, and return whether it changed since the last
        time."""
        previous = self._turn
        with contextlib.suppress(OSError, ValueError):
            self._turn = read_record(turn_path(self._folder), Turn)
        return self._turn != previous

    def _write_paused(self, turn: int) -> None:
        resident_bytes = None if self._worker is None else read_anonymous_bytes(self._worker.pid)
        write_rank_file(paused_worker_path(self._folder, self._rank), PausedWorker(turn, resident_bytes))

    def _send(self, sign: signal.Signals) -> None:
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker.pid, sign)


class TorchrunAgent(RankAgent):
    """An agent that also ends its worker when the run is over, since no signal of the launcher reaches another host."""

    by_mpi = False

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder, rank)
        # Signals are for the main thread, which may block them and wait: a thread with them unblocked would take them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        threading.Thread(target=self._end_with_run, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _status(self, status: int) -> int:
        """Return 0 only where the run succeeded: where the ranks of one node seem to have succeeded and others have
        not, torchrun waits for minutes."""
        with contextlib.suppress(FileNotFoundError):
            if read_json(self._folder / STOP_FILE) is True:
                return 0
        return 1 if self._terminated else status

    def _end_with_run(self) -> None:
        # By a listing, which queries the file server: that a file is missing may be cached.
        while {STOP_FILE, RESULT_FILE}.isdisjoint(os.listdir(self._folder)):
            time.sleep(STOP_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGCONT)
        time.sleep(GRACE_PERIOD_S)
        self._send(signal.SIGKILL)


def become_agent(folder: Path) -> None:
    """Replace this process by the agent of a rank if torchrun started it, and not one of the launchers.

    The process id stays the same, so that torchrun sees its exit status.
    """
    if RUN_ID_VARIABLE in os.environ:
        return
    if not (folder / SPEC_FILE).exists():
        sys.exit(f"scalebench.runner.worker: {socket.gethostname()} sees no {folder / SPEC_FILE}; {SHARED_FOLDER}")
    if read_spec(folder).config.strategy.launcher == BY_HAND:
        os.execv(sys.executable, build_python_command("-m", "scalebench.runner.launchers.rank_agent", str(folder)))


def read_mpi_rank(variables: Mapping[str, str]) -> int:
    """Return the rank that mpirun or srun assigned to this process; LookupError when there is none."""
    for name in RANK_VARIABLES:
        if name in variables:
            return int(variables[name])
    raise LookupError(f"no rank in {', '.join(RANK_VARIABLES)}: this is for mpirun or srun to start")


def read_torchrun_rank(
    variables: Mapping[str, str], spec: RunSpec, hint: str = "see --nnodes and --nproc-per-node"
) -> int:
    """Return the rank that torchrun assigned to this process; InputError where its variables do not fit the run."""
    numbers = {}
    for name in ("RANK", "WORLD_SIZE"):
        try:
            numbers[name] = int(variables[name])
        except KeyError:
            raise InputError(f"{name} is not set: start this with torchrun, as the waiting program says") from None
        except ValueError:
            raise InputError(f"{name}={variables[name]} is not a number") from None
    rank, size = numbers["RANK"], numbers["WORLD_SIZE"]
    if size != spec.processes or not 0 <= rank < size:
        raise InputError(
            f"RANK={rank} of WORLD_SIZE={size} does not fit the run, of processes={spec.processes} nodes={spec.nodes}; "
            f"{hint}"
        )
    place = spec.places[rank]
    for name, expected in (("LOCAL_RANK", place.local_rank), ("GROUP_RANK", place.node)):
        if variables.get(name, str(expected)) != str(expected):
            raise InputError(
                f"rank {rank} should have {name}={expected} and has {variables[name]}; see each node's --nproc-per-node"
            )
    return rank


def _torchrun_group(folder: Path) -> TorchrunGroup:
    """Read by_hand.json; InputError where no launcher waits for ranks of this folder."""
    try:
        return read_record(folder / TORCHRUN_FILE, TorchrunGroup)
    except FileNotFoundError:
        why = "its run is over" if (folder / RESULT_FILE).exists() else f"start one with strategy.launcher={BY_HAND}"
        raise InputError(f"no scalebench waits for ranks of {folder}; {why}") from None


def _run_under_torchrun(folder: Path) -> int:
    try:
        spec, group = read_spec(folder), _torchrun_group(folder)
        rank = read_torchrun_rank(os.environ, spec)
    except (InputError, OSError) as error:
        return _refuse("scalebench.runner.worker", str(error))
    _drop_torchrun_variables()
    os.environ |= {RUN_ID_VARIABLE: group.run_id, RANK_ADDRESSES: ",".join(group.addresses)}
    return TorchrunAgent(folder, rank).run(spec, group.module)


def _run_under_mpi(folder: Path, module: str) -> int:
    try:
        rank = read_mpi_rank(os.environ)
    except LookupError as error:
        return _refuse("scalebench.runner.launchers.rank_agent", error.args[0])
    try:
        spec = read_spec(folder)
    except OSError as error:
        where = f"{socket.gethostname()} cannot read {folder / SPEC_FILE} ({error.strerror})"
        return _refuse("scalebench", f"{where}; {SHARED_FOLDER}")
    if (misplaced := _misplaced(rank)) is not None:
        return _refuse("scalebench", misplaced)
    return RankAgent(folder, rank).run(spec, module)


def _run_under_command(folder: Path, module: str) -> int:
    """Run a rank whose process a command of the user's has started: torchrun, mpirun, or just Python for one."""
    spec = read_spec(folder)
    pairs = [(os.environ.get(rank), os.environ.get(size)) for rank, size in COMMAND_VARIABLES]
    number, size = next((pair for pair in pairs if None not in pair), ("0", "1"))
    variables = os.environ | {"RANK": str(number), "WORLD_SIZE": str(size)}
    try:
        rank = read_torchrun_rank(variables, spec, "does script.command have @gpus where it says how many?")
    except InputError as error:
        return _refuse("scalebench", str(error))
    _drop_torchrun_variables()
    return RankAgent(folder, rank).run(spec, module)


def _drop_torchrun_variables() -> None:
    for name in [name for name in os.environ if name.startswith(TORCHRUN_VARIABLES)]:
        del os.environ[name]


def _misplaced(rank: int) -> str | None:
    """Return why a rank is not on the node of its placement, which would make its figures misleading; None where it is,
    and where SLURM does not name the node."""
    hosts = [split_address(address)[0] for address in os.environ[RANK_ADDRESSES].split(",")]
    node = os.environ.get(SLURM_NODE, hosts[rank])
    if len(set(hosts)) == 1 or node == hosts[rank] or SLURM_STEP not in os.environ:
        return None
    return f"SLURM started rank {rank} on {node} and not on {hosts[rank]}; ask for as many tasks on each node"


def _refuse(program: str, reason: str) -> int:
    print(f"{program}: {reason}", file=sys.stderr, flush=True)
    return 2


def main(arguments: list[str]) -> int:
    """Run one rank in FOLDER; with MODULE under mpirun, srun or a command of the user's, else under torchrun."""
    exit_with_parent.tie_to_launcher()
    folder, *module = arguments
    if PROGRAM_VARIABLE in os.environ:
        return _run_under_command(Path(folder), *module)
    return _run_under_mpi(Path(folder), *module) if module else _run_under_torchrun(Path(folder).absolute())


if __name__ == "__main__":
    # At its end the interpreter resets signal handlers, and a signal that comes then would look like a failure.
    os._exit(main(sys.argv[1:]))
