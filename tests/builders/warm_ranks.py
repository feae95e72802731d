"""Ranks of tests that start as copies of a process which has imported their framework, in a tenth of the time.

A measurement has no such ranks: copies share the layout of their memory, so that the spread between starts, which
intervals rest on, would be understated. Only tests ask for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalebench.core.json_files import read_json
from scalebench.core.machine import gpus
from scalebench.core.machine.private_network import PrivateNetwork
from scalebench.core.process import build_python_command
from scalebench.core.run_folder import SPEC_FILE
from scalebench.runner.launchers.local import start_program
from scalebench.runner.launchers.rank_environment import THREAD_VARIABLES, common_environment
from tests.builders import zygote
from tests.builders.zygote import MAX_MESSAGE_BYTES, drop_per_rank

# Ranks of a framework import these besides the adapter of their strategy; torch imports its compiler at the first step
# of an optimizer.
WORKERS = ("scalebench.testing.strategy_worker",)
PRELOADED: dict[str, tuple[str, ...]] = {
    "none": WORKERS,
    "torch": (*WORKERS, "scalebench.strategies.torch.base", "torch._dynamo"),
    "tensorflow": (*WORKERS, "scalebench.strategies.tensorflow.bare"),
}
# A copy of a process with threads is not safe. pyarrow, which Keras imports, would start one that gives back memory.
ONE_THREAD = {**dict.fromkeys(THREAD_VARIABLES, "1"), "JE_ARROW_MALLOC_CONF": "background_thread:false"}
IMPORT_LIMIT_S = 300.0
END_LIMIT_S = 10.0


class NotForked(Exception):
    """A zygote forks no rank; the message is its reason."""


class WarmProcess:
    """A process that a zygote has forked, as subprocess.Popen shows one."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.returncode: int | None = None
        answer = self._read(IMPORT_LIMIT_S)
        if not answer.isdecimal():
            answers.close()
            raise NotForked(answer or "the zygote has ended")
        self.pid = int(answer)

    def _read(self, limit_s: float | None) -> str:
        self._answers.settimeout(limit_s)
        return self._answers.recv(MAX_MESSAGE_BYTES).decode()

    def poll(self) -> int | None:
        """Return its exit status, or the negative number of the signal that ended it; None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = int(self._read(timeout) or -signal.SIGKILL)  # its zygote has ended, and it with that
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("a warm rank", timeout or 0.0) from None
            self._answers.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


class Forker:
    """A zygote, as the program that asks it for processes sees it. It ends when its socket is closed."""

    def __init__(self, requests: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._requests, self.process = requests, process

    @classmethod
    def start(cls, variables: Mapping[str, str]) -> Forker:
        """Start a zygote with this environment."""
        requests, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end:
            process = subprocess.Popen(
                build_python_command("-m", zygote.__name__, str(far_end.fileno())), env={**variables, **ONE_THREAD},
                pass_fds=[far_end.fileno()], start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return cls(requests, process)

    def load(self, modules: Sequence[str]) -> None:
        """Have it import modules, without waiting for that."""
        with contextlib.suppress(ConnectionError):  # it has ended: it will not fork either
            self._requests.sendall(json.dumps({"modules": modules}).encode())

    def fork(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        descriptors: Sequence[int],
        is_safe: bool,
        **more: str | None,
    ) -> WarmProcess:
        """Fork a process that runs a module, the first of the arguments, on the same cores as this one. The descriptors
        are its input, output and errors, and its namespaces. `more` may have its folder, and in `prepare` the module
        whose prepare() is called before."""
        place = {"cpus": sorted(os.sched_getaffinity(0)), "is_safe": is_safe, "prepare": more.get("prepare")}
        place["folder"] = more.get("folder") or os.getcwd()
        blocked = [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        request = {"modules": [], "arguments": arguments, "variables": dict(variables), "blocked": blocked, **place}
        answers, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far_end, contextlib.suppress(ConnectionError):
            socket.send_fds(self._requests, [json.dumps(request).encode()], [far_end.fileno(), *descriptors])
        return WarmProcess(answers)

    def close(self) -> None:
        """End it, and with it all processes that it has forked."""
        self._requests.close()
        if self.process is None:
            return
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WarmRanks:
    """The zygotes of a session, which start when their first process does.

    There are two for each framework, between which ranks alternate: each has hash seeds of its own, so that an order
    that comes from a set differs between ranks, as it does in a run.
    """

    def __init__(self) -> None:
        self._environment = common_environment()
        self.zygotes: dict[tuple[str, int], Forker] = {}  # by framework, and number among its two
        self.lock = threading.Lock()

    def start_program(
        self,
        command: list[str],
        variables: dict[str, str],
        log: Path,
        in_foreground: bool,
        network: PrivateNetwork | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes] | WarmProcess:
        """Start a rank as local.start_program does: forked, or where that is not possible as a new process."""
        if not in_foreground and folder is None:
            namespaces = [] if network is None else network.descriptors
            with contextlib.suppress(NotForked), open(log, "wb") as file, open(os.devnull, "rb") as nothing:
                forker = self._find_forker(command, variables)
                streams = [nothing.fileno(), file.fileno(), file.fileno()]
                at = command.index("-m")
                return forker.fork(command[at + 1 :], variables, [*streams, *namespaces], "-P" in command[:at])
        return start_program(command, variables, log, in_foreground, network, folder)

    def _find_forker(self, command: list[str], variables: dict[str, str]) -> Forker:
        """Return the one that imports what this rank needs. Raise NotForked where a copy differs from a new process."""
        strategy = _read_strategy(Path(command[-1]))
        kind = strategy.get("framework", "")
        if kind not in PRELOADED:
            raise NotForked(f"unknown framework '{kind}'")
        adapter = (strategy.get("adapter") or "").partition(":")[0]
        own = [adapter] if adapter.startswith("scalebench.") else []  # what a plugin's code does, its rank alone does
        check_forks(variables, self._environment)
        with self.lock:
            for number in range(min(2, int(variables["WORLD_SIZE"]))):  # both import at the same time
                self.load(kind, number, variables, *own)
            return self.zygotes[kind, int(variables["RANK"]) % 2]

    def load(self, kind: str, number: int, variables: Mapping[str, str], *modules: str) -> Forker:
        """Return a zygote that imports what this kind needs; it starts with these variables, if it is not there yet."""
        if (kind, number) not in self.zygotes:
            self.zygotes[kind, number] = Forker.start(variables)
        self.zygotes[kind, number].load([*PRELOADED[kind], *modules])
        return self.zygotes[kind, number]

    def close(self) -> None:
        while self.zygotes:
            self.zygotes.popitem()[1].close()


def check_forks(variables: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raise NotForked where a copy of a process with this environment is not as a new process with these variables."""
    if not hasattr(os, "pidfd_open") or gpus.count_gpus():
        raise NotForked("not on this machine: no Linux, or with GPUs")
    if drop_per_rank(variables) != drop_per_rank(environment):
        raise NotForked("a library may read another environment when it is imported")


def _read_strategy(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, LookupError):
        return dict(read_json(folder / SPEC_FILE)["config"]["strategy"])
    return {}
