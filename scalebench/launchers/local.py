"""Starts the processes of a run on this machine, watches them, and ends them, all of them. Layer 2."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.measure.progress import Progress, read_progress
from scalebench.spec import RunSpec

POLL_S = 0.02
LOOK_S = 0.5  # between two looks at the progress files
STACK_S = 0.3  # that a rank has to write its stack
GRACE_S = 5.0  # between SIGTERM and SIGKILL
FOLLOW_S = 5.0  # that the other ranks have to notice a dead one and say so
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Ended:
    """How a group of processes ended."""

    exit_codes: list[int | None]  # by rank; negative: the signal; None: still running when it was ended
    started_at_s: float
    wall_s: float
    died_first: list[int] = field(default_factory=list)  # ranks that were seen to end badly at the first glance
    timeout: str | None = None  # why the group was ended from here
    timeout_at_s: float | None = None  # seconds since the epoch; what ranks say later is only about being ended
    stopped: list[int] = field(default_factory=list)  # ranks that a signal had put to sleep then
    pids: list[int] = field(default_factory=list)
    services: dict[int, str] = field(default_factory=dict)  # role by rank of those that end when the others have


cancelled = threading.Event()  # set by the program's signal handlers: an exception alone can get lost in a __del__


class StartError(OSError):
    """A process could not be started."""


def log_name(rank: int) -> str:
    return f"rank{rank}.log"


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
    started_at_s, start_s = time.time(), time.monotonic()
    addresses = [f"127.0.0.1:{port}" for port in free_ports(spec.processes)]
    group: list[subprocess.Popen[bytes]] = []
    try:
        # One by one, so that an exception half-way leaves the started ones where `finally` finds them.
        for rank in range(spec.processes):
            with _signals_later(), _start_errors():
                group.append(_start(spec, folder, run_id, rank, addresses, module))
        died_first, timeout = _watch(spec, folder, group, on_look)
        timeout_at_s = None if timeout is None else time.time()
        stopped = [] if timeout is None else _stopped(group)
        if timeout is not None:
            _ask_for_stacks(group)
    finally:
        codes = [process.poll() for process in group]
        try:
            end_group(group, GRACE_S)
        except KeyboardInterrupt:  # again: somebody is in a hurry
            end_group(group, 0.0)
            raise
    wall_s = time.monotonic() - start_s
    pids = [process.pid for process in group]
    return Ended(codes, started_at_s, wall_s, died_first, timeout, timeout_at_s, stopped, pids, spec.services)


def free_ports(count: int) -> list[int]:
    """So many different ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    return free_ports(1)[0]


def environment(spec: RunSpec, run_id: str, rank: int, addresses: Sequence[str]) -> dict[str, str]:
    """This process's environment and a rank's own variables, under the names that torchrun uses.

    `addresses` are host:port of every rank: the first is where a group meets, and a cluster needs them all.
    """
    place = spec.places[rank]
    host, _, port = addresses[0].rpartition(":")
    local = sum(p.node == place.node for p in spec.places)
    variables = dict(os.environ)
    variables.update({name: str(place.threads) for name in THREAD_VARIABLES})
    variables.update(
        RANK=str(rank),
        WORLD_SIZE=str(spec.processes),
        LOCAL_RANK=str(place.local_rank),
        LOCAL_WORLD_SIZE=str(local),
        NODE_RANK=str(place.node),
        MASTER_ADDR=host,
        MASTER_PORT=port,
        GLOO_SOCKET_IFNAME="lo",
        PYTHONUNBUFFERED="1",
        SCALEBENCH_ADDRESSES=",".join(addresses),
        SCALEBENCH_RUN_ID=run_id,
        SCALEBENCH_PARENT_PID=str(os.getpid()),
    )
    return variables


def _start(
    spec: RunSpec, folder: Path, run_id: str, rank: int, addresses: Sequence[str], module: str
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", module, str(folder)]
    env = environment(spec, run_id, rank, addresses)
    if spec.config.debug and rank == 0:  # in the foreground, where a debugger can be
        return subprocess.Popen(command, env=env)
    with open(folder / log_name(rank), "wb") as log:
        # A session of its own: Ctrl-C reaches the parent alone, which then ends the group in one way.
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartError(*error.args) from error


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of this: an interrupted start would lose sight of its process."""
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return
    came: list[int] = []
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    try:
        for sign in before:
            signal.signal(sign, lambda number, frame: came.append(number))
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
    if came:
        signal.raise_signal(came[0])


def _watch(
    spec: RunSpec, folder: Path, group: list[subprocess.Popen[bytes]], on_look: Callable[[list[Progress]], None]
) -> tuple[list[int], str | None]:
    """(ranks that ended badly first, why the group must be ended), when it is time to end or all have ended."""
    settings = spec.config.measure
    limited = not spec.config.debug
    begin_s = changed_s = looked_s = time.monotonic()
    seen: list[tuple[int, float]] = []
    services = spec.services
    measuring = [rank for rank in range(len(group)) if rank not in services]
    while True:
        if cancelled.is_set():
            raise KeyboardInterrupt
        codes = [process.poll() for process in group]
        if all(codes[rank] == 0 for rank in measuring):
            return [], None
        bad = [rank for rank, code in enumerate(codes) if code is not None and (code != 0 or rank in services)]
        if bad:
            _wait_all([group[rank] for rank in measuring], FOLLOW_S)
            return bad, None
        now_s = time.monotonic()
        if now_s - looked_s >= LOOK_S:
            looked_s = now_s
            progress = [p for p in (read_progress(folder, rank) for rank in range(len(group))) if p is not None]
            now_seen = [(p.rank, p.at_s) for p in progress]
            if now_seen != seen:
                seen, changed_s = now_seen, now_s
            on_look(progress)
        if limited and now_s - changed_s > settings.hang_s:
            return [], f"no rank made progress for {settings.hang_s:g} s (measure.hang_s)"
        if limited and now_s - begin_s > settings.timeout_s:
            return [], f"not over after {settings.timeout_s:g} s (measure.timeout_s)"
        time.sleep(POLL_S)


def _wait_all(group: list[subprocess.Popen[bytes]], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and any(process.poll() is None for process in group):
        time.sleep(POLL_S)


def _stopped(group: list[subprocess.Popen[bytes]]) -> list[int]:
    """Ranks that SIGSTOP or a debugger holds: nothing else tells why they make no progress."""
    import psutil

    found = []
    for rank, process in enumerate(group):
        with contextlib.suppress(psutil.Error):
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                found.append(rank)
    return found


def _ask_for_stacks(group: list[subprocess.Popen[bytes]]) -> None:
    """Have ranks that hang write where they are into their logs; worker.py listens to SIGUSR1."""
    for process in group:
        if process.poll() is None:
            _signal(process, signal.SIGUSR1)
            _signal(process, signal.SIGCONT)
    time.sleep(STACK_S)


def end_group(group: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    """SIGTERM to every process group, SIGKILL after `grace_s` to what is left; stopped ones are woken first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        alive = [process for process in group if process.poll() is None]
        for process in alive:
            _signal(process, sign)
            _signal(process, signal.SIGCONT)
        _wait_all(alive, grace_s)
    for process in group:
        process.wait()
        _signal(process, signal.SIGKILL)  # children that outlived their leader


def _signal(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getpgid(0) == _group_of(process):
            process.send_signal(sign)  # a debugged rank shares our group
        else:
            os.killpg(process.pid, sign)


def _group_of(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
