"""The processes of a test cluster: identified by a mark in their environment, and by their network namespace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.cluster.settings import ClusterError

# Never in the environment of a job: a job brings the environment of the shell that submitted it.
FOLDER_MARK = "SCALEBENCH_TESTCLUSTER_OF"
HOST_MARK = "SCALEBENCH_TESTCLUSTER_HOST"


def mark(folder: Path, host: str) -> dict[str, str]:
    """Variables by which a process that stays is found again."""
    return {FOLDER_MARK: str(folder), HOST_MARK: host}


def marked(folder: Path) -> list[psutil.Process]:
    """The daemons of the cluster in `folder`, and what holds its namespaces."""
    return [process for process in psutil.process_iter() if _variable(process, FOLDER_MARK) == str(folder)]


def host_of(process: psutil.Process) -> str | None:
    return _variable(process, HOST_MARK)


def running(folder: Path, host: str, name: str) -> psutil.Process | None:
    """The daemon `name` of `host`."""
    for process in marked(folder):
        if _name(process) == name and host_of(process) == host:
            return process
    return None


def network(pid: int) -> str | None:
    """The network namespace of a process, such as net:[4026532173]."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def everything(folder: Path) -> list[psutil.Process]:
    """All that keeps a namespace of the cluster alive: its daemons, the jobs, and commands of users on the head."""
    ours = marked(folder)
    networks = {network(process.pid) for process in ours} - {None, network(os.getpid())}
    inside = [process for process in psutil.process_iter() if network(process.pid) in networks]
    return list({process.pid: process for process in [*ours, *inside] if process.pid != os.getpid()}.values())


def until(check: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait for `check`; ClusterError says what did not come."""
    end = time.monotonic() + limit_s
    while not check():
        if time.monotonic() > end:
            raise ClusterError(f"{what} did not come in {limit_s:g} s")
        time.sleep(0.1)


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _name(process: psutil.Process) -> str | None:
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
