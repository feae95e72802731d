"""The agent of a node: `python -m scalebench.runner.node_agent HOST:PORT` starts its ranks, and sees how they end.

It connects to the program that waits for it there, or at a path on this machine, with a key from the environment or a
file that only its owner can read. The program says which ranks to start, when they are parked, and when they are to
end; the agent reports their progress and their exits. Where it does not see the run's folder, its ranks have one on
the node, and it sends what they leave there. srun starts one on each node, or a person does; mpirun, `srun
--mpi` and a command of the user's start one for each rank, whose worker is its child. A program that is gone ends the
ranks at once. The agent ends last, when the program says so: mpirun and srun would end the others with it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalebench.core import exit_with_parent
from scalebench.core.claim.sitecustomize import PROGRAM_VARIABLE
from scalebench.core.errors import InputError
from scalebench.core.json_files import parse_record
from scalebench.core.process import KEY_VARIABLE, wait_until
from scalebench.core.run_folder import (
    OUTPUT_FILES,
    RUN_ID_VARIABLE,
    SPEC_FILE,
    progress_path,
    rank_log_name,
    rank_record_path,
)
from scalebench.core.spec import RunSpec
from scalebench.measure.monitor.monitor_process import MonitorProcess
from scalebench.measure.nodes import record_node
from scalebench.measure.progress import read_progress
from scalebench.runner.launchers import link as wire
from scalebench.runner.launchers.link import Link
from scalebench.runner.launchers.local import Children
from scalebench.runner.launchers.rank_environment import build_environment, split_address
from scalebench.runner.launchers.supervise import LaunchRequest

# SLURM_PROCID last: it is also set for the process that runs mpirun in a job, and for all that follow from it.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SLURM_STEP, SLURM_NODE = "SLURM_STEP_ID", "SLURMD_NODENAME"
# By which a command of the user's says the rank of a process and how many there are.
COMMAND_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
)
COMMAND_PREFIXES = ("TORCHELASTIC_", "TORCH_", "GROUP_", "ROLE_")  # torchrun's, for groups that use its own store
ENDING = (signal.SIGTERM, signal.SIGINT)
# A scheduler warns ranks with SIGUSR1 or SIGUSR2, which must not end their agent; SIGCHLD also tells of a stopped rank.
NOTICED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
SIGTERM_GAP_S = 0.5  # between the effect of SIGTERM on a rank and on its agent, where SLURM sends it to both
RETRY_S = 1.0  # between two tries to connect to a program that is not there yet
LOOK_INTERVAL_S = 0.1  # between two looks for progress, where the kernel does not report it


class NodeAgent:
    """Starts the ranks that the program named, and does what it says until it says that they are to end."""

    def __init__(self, link: Link, order: wire.Start, spec: RunSpec, folder: Path, by_mpi: bool) -> None:
        self._link, self._order, self._spec, self._by_mpi = link, order, spec, by_mpi
        self._folder, self._is_shared = folder, folder == Path(order.folder)
        self._monitor: MonitorProcess | None = None  # of this node
        self._children = Children(LaunchRequest(spec, self._folder, order.run_id, module=order.module), order.ranks)
        self._watch = self._children.watch()
        self._wakeups, writer = os.pipe()
        os.set_blocking(writer, False)
        for number in NOTICED:
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written in whichever thread a signal arrives
        self._running = dict[int, int]()  # position in the group by rank
        self._is_terminated = self._is_parking = self._is_over = False

    def run(self) -> int:
        """Run the ranks to their end. Return the exit status of the agent."""
        order, first = self._order, self._order.ranks[0]
        variables = build_environment(self._spec, order.run_id, first, order.addresses, self._by_mpi)
        try:
            with record_node(
                self._spec, self._folder, first, variables, lambda report: self._link.send(wire.Report(report))
            ) as self._monitor:
                self._start()
                while self._running:
                    self._follow()
            ranks = {name for rank in order.ranks for name in _rank_files(rank)}
            self._send_files({path.name for path in self._folder.iterdir()} - ranks)
            self._link.send(wire.Over())
            while not self._is_over:
                self._follow()
        except (EOFError, OSError, ValueError):  # the program is gone, or is not ours
            return 1
        finally:
            self._children.end(0.0)
        return 0

    def _start(self) -> None:
        try:
            self._children.start(self._order.addresses, by_mpi=self._by_mpi)
        except OSError as error:
            self._link.send(wire.Refuse(f"{socket.gethostname()} cannot start a rank: {error.strerror or error}"))
        pids = {rank: child.pid for rank, child in zip(self._order.ranks, self._children.members, strict=False)}
        self._running = {rank: position for position, rank in enumerate(pids)}
        self._link.send(wire.Started(pids))

    def _follow(self) -> None:
        """Wait for a message, a signal or a report of a rank, and deal with it."""
        has_events = self._watch.fileno() >= 0
        sources: list[Any] = [self._link, self._wakeups, *([self._watch] if has_events else [])]
        ready, _, _ = select.select(sources, [], [], None if has_events else LOOK_INTERVAL_S)
        if self._wakeups in ready and set(os.read(self._wakeups, 4096)) & set(ENDING):
            self._is_terminated, self._is_over = True, not self._running
            for child in self._children.members:
                child.signal(signal.SIGTERM)
                child.signal(signal.SIGCONT)  # a parked rank handles it only when it continues
        if not has_events or self._watch in ready:
            names = self._watch.clear()
            for rank in self._order.ranks:
                if not has_events or progress_path(self._folder, rank).name in names:
                    self._report_progress(rank)
            self._send_files({rank_record_path(self._folder, rank).name for rank in self._order.ranks} & {*names})
        if self._link in ready:
            self._obey(self._link.receive(wire.ToAgent))
        if self._is_parking and self._children.is_paused():
            self._is_parking = False
            sizes = self._children.resident_bytes()
            self._link.send(wire.Paused(dict(zip(self._order.ranks, sizes, strict=True))))
        self._report_exits()

    def _report_progress(self, rank: int) -> None:
        if (state := read_progress(self._folder, rank, self._order.run_id)) is not None:
            self._link.send(wire.Progress(state))

    def _send_files(self, names: Iterable[str], seen: bool = False) -> None:
        """Send files to a program that does not see them, or also to one that does; of a long log only its end."""
        for name in filter(OUTPUT_FILES.fullmatch, names) if seen or not self._is_shared else []:
            path = self._folder / name
            if not path.exists():
                continue
            with open(path, "rb") as file:
                if path.suffix == ".log":
                    file.seek(max(0, path.stat().st_size - wire.PART_BYTES))
                is_first = True
                while (content := file.read(wire.PART_BYTES)) or is_first:
                    self._link.send(wire.Part(name, is_first, content))
                    is_first = False

    def _report_exits(self) -> None:
        for rank, position in [*self._running.items()]:
            child = self._children.members[position]
            if (code := child.poll()) is None:
                continue
            if code == -signal.SIGTERM and not self._is_terminated and SLURM_STEP in os.environ:
                wait_until(self._was_terminated, SIGTERM_GAP_S)  # SLURM signals all processes of a step, in any order
            child.signal(signal.SIGKILL)  # its children that are left
            self._report_progress(rank)
            log, record = _rank_files(rank)
            self._send_files([log])
            self._send_files([record], seen=True)  # over NFS it may appear there half a minute later
            self._link.send(wire.Exit(rank, code, self._is_terminated))
            del self._running[rank]

    def _was_terminated(self) -> bool:
        ready, _, _ = select.select([self._wakeups], [], [], 0)
        self._is_terminated |= bool(ready and set(os.read(self._wakeups, 4096)) & set(ENDING))
        return self._is_terminated

    def _obey(self, message: wire.Message) -> None:
        if not isinstance(message, wire.Order):
            return
        if self._monitor is not None and message.action in ("pause", "resume"):
            self._monitor.pause() if message.action == "pause" else self._monitor.resume()
        try:
            match message.action:
                case "warm_up":
                    self._children.warm_up()
                case "pause":
                    self._children.pause()
                    self._is_parking = True
                case "resume" if message.turn is not None:
                    self._children.resume(message.turn)
                case "stacks":
                    self._link.send(wire.Stopped(self._children.request_stacks()))
                case "end":
                    self._is_over = True
                    self._children.end(message.grace_s)
        except OSError as error:
            self._link.send(wire.Refuse(f"its turn cannot be written: {error.strerror}"))


def _rank_files(rank: int) -> tuple[str, str]:
    return rank_log_name(rank), rank_record_path(Path(), rank).name


def open_folder(order: wire.Start, spec: RunSpec) -> Path:
    """Return the folder of the ranks: that of the run, or a new one where this node does not see that, and then also
    not the samples."""
    folder = Path(order.folder)
    with contextlib.suppress(OSError):
        if (folder / SPEC_FILE).stat().st_mtime_ns == order.written_ns:
            return folder
    if spec.config.script.path is None and spec.config.dataset.loader is None:
        from scalebench.workloads import datasets  # whose libraries take a while

        datasets.prepare(spec.config)
    folder = Path(tempfile.mkdtemp(prefix="scalebench-"))
    (folder / SPEC_FILE).write_text(order.spec, encoding="utf-8")
    return folder


def find_seat(variables: Mapping[str, str], node: str | None) -> wire.Hello:
    """Return the first message: what this agent is for. InputError where nothing says that."""
    host = socket.gethostname()
    if node is not None:
        return wire.Hello(variables.get(node, node), host)
    if PROGRAM_VARIABLE in variables:
        pairs = [(variables.get(rank), variables.get(size)) for rank, size in COMMAND_VARIABLES]
        rank, size = next((pair for pair in pairs if None not in pair), ("0", "1"))
        return wire.Hello(str(rank), host, int(str(size)))
    for name in RANK_VARIABLES:
        if name in variables:
            return wire.Hello(variables[name], host)
    raise InputError(f"no rank in {', '.join(RANK_VARIABLES)}: name the node with --node, as the waiting program says")


def read_key(path: str | None) -> str:
    """Return the key of the run, and remove it from the environment, which ranks inherit."""
    key = os.environ.pop(KEY_VARIABLE, None)
    if path is None and key is None:
        raise InputError(f"no key: set {KEY_VARIABLE}, or name a file with --key-file, as the waiting program says")
    if path is None:
        return str(key)
    try:
        with open(path, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise InputError(f"{path} can be read by others: chmod 600 it, and let it be yours")
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); is its run over?"
        ) from error


def await_run(address: str, key: str, hello: wire.Hello) -> tuple[Link, wire.Message]:
    """Wait for a run, and return its connection and its first message in a child of this process, which itself waits
    for the next one, since runs take turns. It ends with the program."""
    signal.signal(
        signal.SIGTERM, lambda number, frame: os._exit(128 + number)
    )  # else a container's first process lives
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children
    parent, is_connected = os.getpid(), False
    while True:
        try:
            link = wire.connect(address, key)
            link.send(hello)
            is_connected = True
            order = link.receive(wire.ToAgent)
        except (InputError, EOFError, OSError):
            if is_connected:
                os._exit(0)
            time.sleep(RETRY_S)  # its pod starts at the same time as this one
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            exit_with_parent.tie_to_parent(parent, signal.SIGKILL)
            return link, order
        link.leave()


def _misplaced(order: wire.Start) -> str | None:
    """Return why a rank that SLURM started by itself is not on the node of its placement, which would make its figures
    misleading; None where it is, and where SLURM does not name the node."""
    hosts, rank = [split_address(address)[0] for address in order.addresses], order.ranks[0]
    node = os.environ.get(SLURM_NODE, hosts[rank])
    if len(set(hosts)) == 1 or node == hosts[rank] or SLURM_STEP not in os.environ:
        return None
    return f"SLURM started rank {rank} on {node} and not on {hosts[rank]}; ask for as many tasks on each node"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scalebench.runner.node_agent", description="Starts the ranks of a node."
    )
    parser.add_argument("address", help="HOST:PORT of the program that waits for agents, or a path on this machine")
    parser.add_argument("--node", help="the name of this node, as hardware.hosts has it, or of the variable with it")
    parser.add_argument("--key-file", help=f"a file with the key; without it {KEY_VARIABLE} has the key itself")
    parser.add_argument(
        "--stay", action="store_true", help="wait for the program, and serve run after run until it ends"
    )
    options = parser.parse_args(arguments)
    if exit_with_parent.LAUNCHER_VARIABLE in os.environ:
        exit_with_parent.tie_to_launcher()
    link = None
    try:
        hello = find_seat(os.environ, options.node)
        key = read_key(options.key_file)
        if options.stay:
            link, order = await_run(options.address, key, hello)
        else:
            link = wire.connect(options.address, key)
            link.send(hello)
            order = link.receive(wire.ToAgent)
        if not isinstance(order, wire.Start):
            raise InputError(getattr(order, "reason", "the run ended before it began"))
        if options.node is None and (misplaced := _misplaced(order)) is not None:
            raise InputError(misplaced)
        if order.works_in is not None:
            with contextlib.suppress(OSError):  # code of the user's that is missed then says so
                os.chdir(order.works_in)
        spec = parse_record(order.spec.encode(), RunSpec)
        folder = open_folder(order, spec)
    except (InputError, EOFError, OSError, ValueError) as error:
        if link is not None:
            with contextlib.suppress(OSError):
                link.send(wire.Refuse(str(error)))
        print(f"scalebench: {error}", file=sys.stderr, flush=True)
        return 2
    os.environ[RUN_ID_VARIABLE] = order.run_id
    if PROGRAM_VARIABLE in os.environ:
        for name in [name for name in os.environ if name.startswith(COMMAND_PREFIXES)]:
            del os.environ[name]
    try:
        return NodeAgent(link, order, spec, folder, by_mpi=options.node is None).run()
    finally:
        if folder != Path(order.folder):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # At its end the interpreter resets signal handlers, and a signal that comes then would look like a failure.
    os._exit(main(sys.argv[1:]))
