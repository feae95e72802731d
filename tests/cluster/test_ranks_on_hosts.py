"""Hosts without a scheduler: ranks that mpirun starts on them, and agents that a user starts.

mpirun reaches them with an agent in the place of ssh, and the program runs on the head, where no rank does.
"""

import shlex
import subprocess
import sys

import pytest

from scalebench.core.result import read_result
from tests.builders.launching import NEEDS_MPIRUN, AgentUser
from tests.builders.runs import find_run_processes
from tests.cluster import hosts
from tests.cluster.settings import HEAD

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
LIMIT_S = 200.0
SHORT = (
    "hardware=cpu gpus=3 dataset.size=2000 measure=quick measure.probes=false measure.min_s=0.3 measure.hang_s=60 "
    "measure.warmup_max_s=0.5 sweep.report=false"
).split()


@pytest.fixture
def mpi(cluster, tmp_path, monkeypatch):
    """Run with mpirun, on the hosts that are named, with what `ssh HOST WORDS...` is elsewhere."""
    agent = tmp_path / "agent"
    cases = [
        f'{node}) exec {shlex.join(hosts.enter(cluster.folder, node, ["sh", "-c"]))} "$*" ;;' for node in cluster.nodes
    ]
    lines = ["#!/bin/bash", "host=$1; shift", "case $host in", *cases, "esac", 'echo "no host $host" >&2; exit 255']
    agent.write_text("\n".join(lines) + "\n")
    agent.chmod(0o755)
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", str(agent))

    def run(folder, named, *words):
        command = [sys.executable, "-m", "scalebench", "strategy.launcher=mpi", f"hardware.hosts={named}"]
        command += [*SHORT, f"hydra.run.dir={folder}", *words]
        subprocess.run(hosts.enter(cluster.folder, HEAD, command), timeout=LIMIT_S, check=False)
        copy = agent.with_name("result.json")
        copy.write_text(cluster.on(HEAD, "cat", str(folder / "result.json")))
        return read_result(copy)

    return run


def check_ranks(result, strategy, cluster):
    assert (result.status, result.reason, result.scale.nodes) == ("ok", None, 2)
    measured = [0] if strategy == "parameter_server" else [0, 1, 1]
    assert [rank.hostname for rank in result.ranks] == stand(cluster, *measured)


def uneven(cluster):
    return f"[{cluster.nodes[0]}:1,{cluster.nodes[1]}:2]"


def stand(cluster, *nodes):
    return [cluster.nodes[node] for node in nodes]


@NEEDS_MPIRUN
@pytest.mark.real
@pytest.mark.parametrize("strategy", ["ddp_gloo", "horovod_mpi", "multiworker_ring", "parameter_server"])
def test_mpirun_starts_the_ranks_on_both_hosts(strategy, mpi, cluster, tmp_path):
    result = mpi(tmp_path / "run", uneven(cluster), f"strategy={strategy}")
    check_ranks(result, strategy, cluster)
    assert [result.machine.hostname, *(m.hostname for m in result.other_machines or [])] == cluster.nodes


@NEEDS_MPIRUN
def test_hosts_are_spread_over(mpi, cluster, tmp_path):
    named = f"[{cluster.nodes[0]}:2,{cluster.nodes[1]}:2]"
    result = mpi(tmp_path / "run", named, "strategy=simulated", "gpus=2", "hardware.layout=spread")
    assert (result.status, result.scale.nodes) == ("ok", 2)
    assert [rank.hostname for rank in result.ranks] == stand(cluster, 0, 1)


@NEEDS_MPIRUN
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("kill", "failed", "rank 2 was killed by SIGKILL"),
        ("hang", "timeout", "no rank made progress for 4 s (measure.hang_s)"),
    ],
)
def test_a_rank_on_the_other_host_goes_wrong(fault, status, reason, mpi, cluster, tmp_path):
    options = [f"strategy.options.fault={fault}", "strategy.options.fault_rank=2", "measure.hang_s=4"]
    result = mpi(tmp_path / "run", uneven(cluster), "strategy=simulated", *options)
    assert (result.status, result.reason) == (status, reason)
    assert not find_run_processes(tmp_path / "run"), "those of the nodes are to be seen from here"


@NEEDS_MPIRUN
def test_a_host_that_cannot_be_reached_and_hosts_that_do_not_share_the_folder(mpi, cluster, tmp_path):
    """Agents send what their ranks leave."""
    result = mpi(tmp_path / "run", f"[{cluster.nodes[0]}:1,nowhere:2]", "strategy=simulated")
    assert (result.status, result.reason, result.log) == ("failed", "mpirun: no host nowhere", "mpirun.log")
    check_ranks(mpi(cluster.unshared / "run", uneven(cluster), "strategy=simulated"), "simulated", cluster)


def hands(cluster, tmp_path, *words):
    """The program on the head, and somebody who is on the nodes."""
    named = [f"hardware.hosts={uneven(cluster)}", f"hydra.run.dir={tmp_path / 'run'}"]
    return AgentUser(
        [*SHORT, *named, *words],
        tmp_path,
        lambda host, command: hosts.enter(cluster.folder, host or HEAD, command, tmp_path),
    )


@pytest.mark.real
@pytest.mark.parametrize("strategy", ["ddp_gloo", "horovod_gloo", "multiworker_ring", "parameter_server"])
def test_agents_on_both_hosts(strategy, cluster, tmp_path):
    with hands(cluster, tmp_path, f"strategy={strategy}") as somebody:
        assert somebody.end(LIMIT_S) == (0, [0, 0]), somebody.said
    check_ranks(read_result(tmp_path / "run" / "result.json"), strategy, cluster)


def test_a_rank_by_hand_is_killed_on_the_other_host(cluster, tmp_path):
    options = ["strategy=simulated", "strategy.options.fault=kill", "strategy.options.fault_rank=2"]
    with hands(cluster, tmp_path, *options) as somebody:
        assert somebody.end(LIMIT_S) == (1, [0, 0]), somebody.said
    result = read_result(tmp_path / "run" / "result.json")
    assert (result.status, result.reason) == ("failed", "rank 2 was killed by SIGKILL")
    assert not find_run_processes(tmp_path / "run")
