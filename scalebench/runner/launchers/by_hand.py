"""Waits for agents that a person starts, one on each host, where there is neither a scheduler nor MPI."""

from __future__ import annotations

import os
import shlex
import time

from scalebench.config import placement as host_lists
from scalebench.core.process import NODE_AGENT, build_python_command
from scalebench.core.run_folder import KEY_FILE
from scalebench.runner.launchers.agents import AgentRanks
from scalebench.runner.launchers.rank_environment import assign_rank_addresses
from scalebench.runner.launchers.supervise import GroupExit, LaunchRequest, supervise


def launch(request: LaunchRequest) -> GroupExit:
    """Run all ranks to their end; see supervise.Launcher. StartError where an agent does not come within
    measure.timeout_s; the limits of the run count from when all are there."""
    spec, key_file = request.spec, request.folder.absolute() / KEY_FILE
    hosts = host_lists.list_hostnames(spec.config.hardware.hosts, spec.places)
    group = AgentRanks(request, hosts)
    limit_s = spec.config.measure.timeout_s
    try:
        address = group.listen(hosts)
        with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(group.key)
        command = build_python_command("-m", NODE_AGENT, address, "--key-file", str(key_file), "--node")
        print(f"{spec.label} waits {limit_s:g} s for its agents; start on each host, in {os.getcwd()}:", flush=True)
        for host in dict.fromkeys(hosts):
            print(f"{host}: {shlex.join([*command, host])}", flush=True)
        addresses = assign_rank_addresses(hosts, request.run_id, spec.config.hardware.ports)
        group.gather(addresses, os.getcwd(), limit_s)
        return supervise(request, group, lambda: None, time.time())
    finally:
        group.end(0.0)
        key_file.unlink(missing_ok=True)
