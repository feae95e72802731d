"""Starts ranks in the pods of a JobSet, from within its leader: their agents wait there for run after run."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque

from scalebench.cluster.jobset import JOBSET_VARIABLE, PODS_VARIABLE
from scalebench.config import placement as host_lists
from scalebench.core.result import SchedulerRecord
from scalebench.core.spec import RunSpec
from scalebench.runner.launchers import link as wire
from scalebench.runner.launchers.agents import AgentRanks, accept_agents
from scalebench.runner.launchers.link import Link
from scalebench.runner.launchers.rank_environment import assign_rank_addresses
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise

# The agents that wait, by the name of their node. A new one comes for each that a run has taken.
_waiting = defaultdict[str, deque[tuple[wire.Hello, Link]]](deque)


def listen(port: int, key: str) -> None:
    """Have agents wait for the runs of this program from now on; OSError."""
    family, *_, address = socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(address[:2], family=family)
    accept_agents(listener, key, lambda hello, link: _waiting[hello.seat].append((hello, link)))


def list_pods() -> list[str]:
    """Return the host names of the pods with agents, by node; none where this process leads no JobSet."""
    return os.environ.get(PODS_VARIABLE, "").split(",") if PODS_VARIABLE in os.environ else []


def describe_jobset(spec: RunSpec) -> SchedulerRecord | None:
    """Describe the JobSet that this process leads; None outside of one."""
    pods = list_pods()[: spec.nodes]
    return SchedulerRecord("kubernetes", os.environ[JOBSET_VARIABLE], None, pods) if pods else None


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end; see supervise.Launcher. StartError where a pod does not come within
    measure.timeout_s; the limits of the run count from when all are there."""
    hardware, limit_s = request.spec.config.hardware, request.spec.config.measure.timeout_s
    hosts = host_lists.list_hostnames(list_pods(), request.spec.places)
    group = AgentRanks(request, hosts)
    try:
        addresses = assign_rank_addresses(hosts, request.run_id, hardware.ports)
        group.gather(addresses, None, limit_s, lambda name: _waiting[name].popleft() if _waiting[name] else None)
        return supervise(request, group, lambda: None, time.time())
    finally:
        group.end(0.0)
