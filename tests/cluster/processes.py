"""The processes of a test cluster: identified by a mark in their environment, and by their network namespace."""

import os
import time

import psutil

from tests.cluster.settings import ClusterError

# Never in the environment of a job: a job brings the environment of the shell that submitted it.
FOLDER_MARK = "SCALEBENCH_TESTCLUSTER_OF"
HOST_MARK = "SCALEBENCH_TESTCLUSTER_HOST"


def mark(folder, host):
    """Variables by which a process that stays is found again."""
    return {FOLDER_MARK: str(folder), HOST_MARK: host}


def marked(folder):
    """The daemons of the cluster in `folder`, and what holds its namespaces."""
    return [process for process in psutil.process_iter() if _variable(process, FOLDER_MARK) == str(folder)]


def host_of(process):
    return _variable(process, HOST_MARK)


def running(folder, host, name):
    """The daemon `name` of `host`."""
    for process in marked(folder):
        if _name(process) == name and host_of(process) == host:
            return process
    return None


def network(pid):
    """The network namespace of a process, such as net:[4026532173]."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def everything(folder):
    """All that keeps a namespace of the cluster alive: its daemons, the jobs, and commands of users on the head."""
    ours = marked(folder)
    networks = {network(process.pid) for process in ours} - {None, network(os.getpid())}
    inside = [process for process in psutil.process_iter() if network(process.pid) in networks]
    return list({process.pid: process for process in [*ours, *inside] if process.pid != os.getpid()}.values())


def until(check, limit_s, what):
    """Wait for `check`; ClusterError says what did not come."""
    end = time.monotonic() + limit_s
    while not check():
        if time.monotonic() > end:
            raise ClusterError(f"{what} did not come in {limit_s:g} s")
        time.sleep(0.1)


def _variable(process, name):
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _name(process):
    try:
        return process.name() if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
