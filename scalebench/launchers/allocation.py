"""The nodes that SLURM has given this process, where it has: by the variables of a job. Layer 2."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from scalebench.process import StartError
from scalebench.results import SchedulerRecord
from scalebench.slurm.commands import Slurm, SlurmError, inside
from scalebench.slurm.states import parse_scontrol
from scalebench.slurm.submission import read_submission
from scalebench.spec import InputError, RunSpec

JOB_ID, PARTITION = "SLURM_JOB_ID", "SLURM_JOB_PARTITION"
TASKS = "SLURM_TASKS_PER_NODE"  # 2(x3),1
NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")  # the latter in older versions


def gives_nodes(spec: RunSpec) -> bool:
    """Whether the ranks of `spec` go to nodes of the job that this process is in."""
    hardware = spec.config.hardware
    return hardware.scheduler == "slurm" and not hardware.here and inside()


def nodes_of_job(bin: str | None = None) -> list[str]:
    """Names of the job's nodes, in SLURM's order. SlurmError where it does not tell them."""
    told = next((os.environ[name] for name in NODE_LISTS if os.environ.get(name)), None)
    if told is None:
        raise SlurmError(f"{NODE_LISTS[0]} is not set: this shell is in no allocation")
    if not set("[,") & set(told):
        return [told]
    return Slurm(bin).run("scontrol", "show", "hostnames", told).split()


def nodes_of_run(spec: RunSpec) -> list[str]:
    """Names of the nodes that the ranks stand on: the first ones of the job. StartError where it has too few."""
    names = _names(spec.config.hardware.slurm.bin)
    if len(names) < spec.nodes:
        job = os.environ.get(JOB_ID)
        has = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        raise StartError(
            f"job {job} has {has} and gpus={spec.gpus} wants {spec.nodes}; ask for more nodes, or lower gpus"
        )
    return names[: spec.nodes]


def _names(bin: str | None) -> list[str]:
    try:
        return nodes_of_job(bin)
    except SlurmError as error:
        raise StartError(str(error)) from error


def hosts_of_ranks(spec: RunSpec) -> list[str]:
    """The name of each rank's node."""
    names = nodes_of_run(spec)
    return [names[place.node] for place in spec.places]


def deals_as(hosts: list[str]) -> bool:
    """Whether SLURM, left to itself, puts as many tasks on each node as ranks are to stand there.

    It goes by how the job was asked for: `salloc -N2 -n4` may well give three tasks to one node and one to the other.
    """
    told = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get(TASKS, ""))
    tasks = [int(count) for count, nodes in told for _ in range(int(nodes or 1))]
    counts = [hosts.count(name) for name in dict.fromkeys(hosts)]
    return tasks[: len(counts)] == counts


def tasks_as(hosts: list[str], bin: str | None = None) -> dict[str, str]:
    """The variables of the job, had it been asked for with as many tasks on each node as ranks are to stand there.

    Open MPI has no other way to give a node more: it takes its slots from there, and --host can only lower them. One
    that is told not to ask SLURM (ras=^slurm) still starts its daemons by srun, and then all on the first node.
    StartError where SLURM does not tell its nodes.
    """
    if deals_as(hosts):
        return {}
    return {TASKS: ",".join(str(hosts.count(name) or 1) for name in _names(bin))}


def record(spec: RunSpec, folder: Path) -> SchedulerRecord | None:
    """The job that this process is in; None where it is in none, or the run has nothing to do with it."""
    if not gives_nodes(spec):
        return None
    try:
        nodes = nodes_of_job(spec.config.hardware.slurm.bin)[: spec.nodes]
    except SlurmError:
        nodes = []
    job_id, slurm = os.environ[JOB_ID], Slurm(spec.config.hardware.slurm.bin)
    return SchedulerRecord("slurm", job_id, os.environ.get(PARTITION), nodes, queued_s=_queued_s(folder, job_id, slurm))


def _queued_s(folder: Path, job_id: str, slurm: Slurm) -> float | None:
    """From submission to the start of this job, by SLURM's own clock; None where it was not submitted for this run
    alone, or SLURM does not say."""
    with contextlib.suppress(InputError, SlurmError):  # not worth a figure of the run
        submission = read_submission(folder)
        if submission is None or submission.job_id != job_id:
            return None
        told = parse_scontrol(slurm.run("scontrol", "--oneliner", "show", "job", job_id)).get(job_id)
        if told is not None and told.started_at_s is not None and told.submitted_at_s is not None:
            return told.started_at_s - told.submitted_at_s
    return None
