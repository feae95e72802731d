"""The nodes of the job that a process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench import launchers
from scalebench.launchers import allocation
from scalebench.launchers.watch import StartError
from scalebench.results import SchedulerRecord
from scalebench.slurm.commands import SlurmError
from scalebench.slurm.submission import JOB_FILE, Submission, write_submission
from tests.helpers import simulated_spec
from tests.launchers import slurm_stand_in
from tests.launchers.slurm_stand_in import StandIn
from tests.launchers.slurm_stand_in import job as job  # a fixture


def test_names_are_scontrols(job: StandIn) -> None:
    assert allocation.nodes_of_job(str(job.bin)) == ["n1", "n2"]
    assert (job.folder / "asked").read_text() == "show hostnames n[1-2]\n"


def test_a_single_name_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_stand_in.variables(monkeypatch, nodes="gpu-07")
    assert allocation.nodes_of_job("/missing") == ["gpu-07"]


def test_outside_a_job_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in allocation.NODE_LISTS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SlurmError, match="SLURM_JOB_NODELIST is not set"):
        allocation.nodes_of_job()


def test_a_run_takes_the_first_nodes(job: StandIn) -> None:
    assert allocation.hosts_of_ranks(job.spec(2)) == ["n1", "n1"]
    assert allocation.hosts_of_ranks(job.spec(3)) == ["n1", "n1", "n2"]


def test_too_few_nodes_are_told(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    with pytest.raises(StartError) as caught:
        allocation.hosts_of_ranks(job.spec(3))
    assert str(caught.value) == "job 12 has 1 node and gpus=3 wants 2; ask for more nodes, or lower gpus"


def test_what_scontrol_says_is_the_reason(job: StandIn) -> None:
    job.script("scontrol", "echo 'scontrol: error: host list is empty' >&2; exit 1")
    with pytest.raises(StartError, match="host list is empty"):
        allocation.hosts_of_ranks(job.spec(2))


@pytest.mark.parametrize(
    ("tasks", "hosts", "same"),
    [
        ("2(x2)", "aabb", True),
        ("2(x3)", "aabb", True),
        ("2", "aa", True),
        ("3,1", "aabb", False),
        ("3,1", "aaab", True),
        ("1(x2)", "aabb", False),
        ("", "ab", False),
    ],
)
def test_where_slurm_deals_as_the_places_are(
    tasks: str, hosts: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    assert allocation.deals_as(list(hosts)) == same


def test_tasks_of_a_job_as_the_ranks_are_to_stand(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its nodes has some, also those that this run leaves alone."""
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3,1")
    assert allocation.tasks_as(["n1", "n1", "n2", "n2"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,2"}
    assert allocation.tasks_as(["n1", "n1"], str(job.bin)) == {"SLURM_TASKS_PER_NODE": "2,1"}
    assert allocation.tasks_as(["n1", "n1", "n1", "n2"], "/missing") == {}


def test_who_starts_the_ranks(job: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.spec(2)
    assert launchers.of(spec) == "slurm"
    spec.config.strategy.launcher = "mpi"
    assert launchers.of(spec) == "mpi"
    spec.config.hardware.slurm.mpi = "pmix"
    assert launchers.of(spec) == "slurm"
    assert launchers.of(simulated_spec(gpus=2)) == "local", "the hardware is this machine, whatever job this is"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert launchers.of(job.spec(2)) == "local"


def test_the_record_of_a_job(job: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = SchedulerRecord("slurm", "12", "main", ["n1", "n2"])
    assert allocation.record(job.spec(3), tmp_path) == here, "by hand: nobody knows how long it was queued"
    write_submission(Submission("12", 990.5), tmp_path)
    assert allocation.record(job.spec(3), tmp_path) == SchedulerRecord("slurm", "12", "main", ["n1", "n2"], 9.0)
    write_submission(Submission("11", 990.5), tmp_path)
    assert allocation.record(job.spec(3), tmp_path) == here, "an earlier job of this folder"
    (tmp_path / JOB_FILE).write_text("{")
    assert allocation.record(job.spec(3), tmp_path) == here
    assert allocation.record(simulated_spec(), tmp_path) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert allocation.record(job.spec(3), tmp_path) is None


def test_slurm_that_does_not_say_when_a_job_started(job: StandIn, tmp_path: Path) -> None:
    job.script("scontrol", "exit 1")
    write_submission(Submission("12", 990.5), tmp_path)
    found = allocation.record(job.spec(3), tmp_path)
    assert found is not None and found.queued_s is None
