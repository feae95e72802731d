"""Ranks on two real nodes of a real SLURM: as a job that it starts, and in an allocation somebody has."""

import json
import subprocess
import sys

import pytest

from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.core.spec import HardwareSpec, SlurmSpec, write_spec
from tests.builders.runs import find_running, simulated_spec, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
BATCH = "import sys; from scalebench.runner.jobs.job_main import run_job; run_job(sys.argv[1])"
LONG = {"min_s": 600.0, "max_s": 600.0, "timeout_s": 600.0}
LIMIT_S = 90.0


@pytest.fixture
def folder(tmp_path):
    """Of a run, on a path that every node sees."""
    path = tmp_path / "run"
    path.mkdir()
    return path


def spec_of(cluster, gpus=4, **changes):
    hardware = HardwareSpec(
        "testcluster", devices="cpu", gpus_per_node=2, cpus_per_node=8, cpus_per_device=1, max_nodes=2,
        this_machine=False,
        scheduler="slurm", slurm=SlurmSpec(bin=str(cluster.bin)),
    )  # fmt: skip
    spec = simulated_spec(gpus, hardware=hardware, size=40 * gpus, **changes)
    spec.unsupported = None
    return spec


def submitted(cluster, spec, folder):
    """The job's number; one line of Python is all that it runs, on the first of its nodes."""
    write_spec(spec, folder)
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{BATCH}' {folder}\n")
    words = ["--parsable", "--nodes=2", "--ntasks-per-node=2", "--mem=2000", "--time=5", f"--output={folder}/job.log"]
    return cluster.slurm("sbatch", *words, str(script)).strip()


def row(folder, limit_s=LIMIT_S):
    wait_until((folder / RESULT_FILE).exists, limit_s)
    return read_result(folder / RESULT_FILE)


def measuring(folder, ranks=4):
    """Wait until all ranks are at it."""

    def phases():
        return [json.loads(path.read_text())["phase"] for path in folder.glob("progress*.json")]

    wait_until(lambda: phases().count("measure") == ranks, LIMIT_S)


def test_a_job_over_two_nodes(cluster, folder):
    job = submitted(cluster, spec_of(cluster), folder)
    result = row(folder)
    assert (result.status, result.reason, result.log) == ("ok", None, None)
    first, second = cluster.nodes[:2]
    assert [rank.hostname for rank in result.ranks] == [first, first, second, second]
    assert result.scheduler is not None
    assert (result.scheduler.job_id, result.scheduler.nodes) == (job, [first, second])
    assert all(len(rank.affinity) == 1 for rank in result.ranks), "each rank is pinned on its own node"


def test_a_rank_that_is_killed_on_the_other_node(cluster, folder):
    submitted(cluster, spec_of(cluster, measure=LONG), folder)
    measuring(folder)
    pids = json.loads((folder / "pid3.json").read_text())
    assert pids["host"] == cluster.nodes[1]
    cluster.on(cluster.nodes[1], "kill", "-KILL", str(pids["keeper"]))
    result = row(folder)
    assert (result.status, result.reason) == ("failed", "rank 3 was killed by SIGKILL")


def test_a_job_that_is_cancelled(cluster, folder):
    """Its ranks and whoever watches them are told in the same moment."""
    job = submitted(cluster, spec_of(cluster, measure=LONG), folder)
    measuring(folder)
    cluster.slurm("scancel", job)
    assert row(folder, 20.0).status == "cancelled"


def allocation(cluster, folder):
    """Of four tasks, which SLURM may lay three on one node and one on the other; the shell is on neither."""
    words = ["--nodes=2", "--ntasks=4", "--mem=2000", "--time=5", sys.executable, "-c", BATCH, str(folder)]
    return subprocess.Popen(
        [str(cluster.bin / "salloc"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_in_an_allocation_from_a_host_that_is_no_node(cluster, folder):
    write_spec(spec_of(cluster), folder)
    shell = allocation(cluster, folder)
    said = shell.communicate(timeout=LIMIT_S)[0]
    assert "scalebench: simulated gpus=4 ok" in said
    first, second = cluster.nodes[:2]
    assert [rank.hostname for rank in row(folder).ranks] == [first, first, second, second]


def test_nothing_is_left_of_an_allocation_whose_shell_is_killed(cluster, folder):
    write_spec(spec_of(cluster, measure=LONG), folder)
    shell = allocation(cluster, folder)
    try:
        measuring(folder)
        pids = [json.loads((folder / f"pid{rank}.json").read_text())["worker"] for rank in range(4)]
    finally:
        shell.kill()
        shell.communicate()
    # Nodes of the test cluster share the numbers of processes with this machine.
    wait_until(lambda: not find_running(pids), 30.0)
