"""Ranks under agents that something else starts: a person on each host, where there is neither a scheduler nor MPI, or
the pods of a JobSet, whose leader is this program. There they wait for run after run."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections import defaultdict, deque

from scalebench.cluster.commands import find_site
from scalebench.cluster.jobset import JOBSET_VARIABLE, PODS_VARIABLE
from scalebench.config import placement as host_lists
from scalebench.core.process import NODE_AGENT, build_python_command
from scalebench.core.result import SchedulerRecord
from scalebench.core.run_folder import KEY_FILE
from scalebench.core.spec import RunSpec
from scalebench.runner.launchers import link as wire
from scalebench.runner.launchers.agents import AgentRanks, accept_agents
from scalebench.runner.launchers.link import Link
from scalebench.runner.launchers.rank_environment import assign_rank_addresses
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise

# The agents of pods that wait, by the name of their node. A new one comes for each that a run has taken.
_waiting = defaultdict[str, deque[tuple[wire.Hello, Link]]](deque)


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end. StartError where an agent does not come within measure.timeout_s; the limits of the
    run count from when all are there."""
    spec, hardware, limit_s = request.spec, request.spec.config.hardware, request.spec.config.measure.timeout_s
    is_by_hand = find_site(hardware) != "pods"
    hosts = host_lists.list_hostnames(hardware.hosts if is_by_hand else list_pods(), spec.places)
    group, key_file = AgentRanks(request, hosts), request.folder.absolute() / KEY_FILE
    try:
        if is_by_hand:
            address = group.listen(hosts)
            with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
                file.write(group.key)
            command = build_python_command("-m", NODE_AGENT, address, "--key-file", str(key_file), "--node")
            print(f"{spec.label} waits {limit_s:g} s for its agents; start on each host, in {os.getcwd()}:", flush=True)
            for host in dict.fromkeys(hosts):
                print(f"{host}: {shlex.join([*command, host])}", flush=True)
        addresses = assign_rank_addresses(hosts, request.run_id, hardware.ports)
        works_in = os.getcwd() if is_by_hand else None
        group.gather(addresses, works_in, limit_s, lambda name: _waiting[name].popleft() if _waiting[name] else None)
        return supervise(request, group, lambda: None, time.time())
    finally:
        group.end(0.0)
        key_file.unlink(missing_ok=True)


def listen(port: int, key: str) -> None:
    """Have the agents of pods wait for the runs of this program from now on; OSError."""
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
