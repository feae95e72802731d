"""The states of jobs: how SLURM's commands print them, and what they mean for a run.

States and reasons: https://slurm.schedmd.com/squeue.html and the list of job reason codes, both of 22.05.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.cluster.partition import parse_limit_minutes

# squeue and sacct print these fields in a line, separated by |. The reason comes last, since it is free text.
SQUEUE_FORMAT = "%i|%T|%N|%S|%V|%l|%r"
SACCT_FORMAT = "JobID,State,NodeList,Start,Submit,Timelimit"
WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# Final states of jobs: the status of a run that left no result, and what happened.
END_STATES = {
    "COMPLETED": ("failed", "ended without a result"),
    "FAILED": ("failed", "failed"),
    "LAUNCH_FAILED": ("failed", "could not be started"),
    "CANCELLED": ("cancelled", "was cancelled"),
    "PREEMPTED": ("cancelled", "was preempted: it had to make room for another job"),
    "REVOKED": ("cancelled", "was revoked: another cluster has taken it"),
    "TIMEOUT": ("timeout", "ran out of its time limit"),
    "DEADLINE": ("timeout", "could not be over by its deadline"),
    "OUT_OF_MEMORY": ("oom", "ran out of memory"),
    "NODE_FAIL": ("failed", "lost a node"),
    "BOOT_FAIL": ("failed", "was given a node that did not start"),
    "RECONFIG_FAIL": ("failed", "was given a node that could not be set up"),
}
# Reasons of a pending job that waiting does not change, and what they mean.
PERMANENT_REASONS = {
    "PartitionConfig": "the partition takes no such job: more nodes, cores or minutes than it gives",
    "PartitionNodeLimit": "it needs more nodes than the partition has or gives to one job",
    "PartitionTimeLimit": "its time limit is above that of the partition; lower hardware.slurm.time_minutes",
    "BadConstraints": "no nodes match its constraints",
    "InvalidAccount": "there is no such account; see hardware.slurm.account",
    "AccountNotAllowed": "the account may not use this partition; see hardware.slurm.account",
    "InvalidQOS": "there is no such QOS; see hardware.slurm.qos",
    "QOSNotAllowed": "the QOS may not be used here; see hardware.slurm.qos",
    "RequiresReservation": "the partition is for reservations only; see hardware.slurm.reservation",
    "ReservationDeleted": "its reservation is gone",
    "DependencyNeverSatisfied": "what it depends on did not happen",
}
# Limits of a single job, other than limits on all jobs of a user or group together.
PER_JOB_LIMIT = re.compile(r"(?:Assoc|QOS)(?:Max\w+Per(?:Job|Node)|Min)")
# Reasons of a job whose script on its first node was killed, or never started.
SCRIPT_KILLED = ("JobLaunchFailure", "RaisedSignal")
NOTHING = ("", "None", "(null)", "N/A", "Unknown", "None assigned", "NOT_SET", "INVALID")


@dataclass(frozen=True)
class JobState:
    """The state of a job as SLURM last reported it."""

    job_id: str
    state: str  # in capitals, without a suffix
    reason: str | None = None  # why it waits, or how it ended
    node_list: str | None = None  # in SLURM's short form: h[1-2]
    started_at_s: float | None = None  # seconds since the epoch; None: not started
    submitted_at_s: float | None = None
    limit: str | None = None  # time limit as SLURM writes it: 1-00:00:00


def query_jobs(slurm: Slurm, job_ids: Sequence[str]) -> dict[str, JobState]:
    """Return the state of each of these jobs that SLURM knows; SlurmError where its controller does not answer.

    squeue lists the jobs that are pending or running and, for some minutes, those that are over; sacct, where there is
    accounting, the others.
    """
    # By user rather than by job: the number of a job that has left the queue would be an error.
    words = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FORMAT}")
    states = parse_states(slurm.run("squeue", *words))
    if lost := [job_id for job_id in job_ids if job_id not in states]:
        words = ("--allocations", "--noheader", "--parsable2", f"--format={SACCT_FORMAT}", f"--jobs={','.join(lost)}")
        with contextlib.suppress(SlurmError):
            over = parse_states(slurm.run("sacct", *words)).values()  # it may be behind for those that are not
            states |= {state.job_id: state for state in over if is_over(state)}
    return {job_id: states[job_id] for job_id in job_ids if job_id in states}


def parse_states(text: str) -> dict[str, JobState]:
    """Return the states by job from lines of squeue or of sacct, which reports no reason. Other lines are ignored, and
    what is not the number of a job (12, 12_3, 12_[1-5], 12+0), such as the job step 12.batch."""
    states = {}
    for line in text.splitlines():
        job_id, *fields = [part.strip() for part in line.split("|", 6)]
        if len(fields) < 5 or not re.fullmatch(r"\d+(?:[_+][^\s.]*)?", job_id):
            continue
        words = fields[0].split()  # CANCELLED by 1000
        name = words[0].rstrip("+").upper() if words else "UNKNOWN"
        nodes, start, submit, limit, reason = (
            None if text in NOTHING else text for text in (*fields[1:], *[""] * (6 - len(fields)))
        )
        # squeue's start time of a pending job is an estimate, and of a job cancelled before its start the cancellation.
        has_started = nodes is not None and name not in WAITING_STATES
        started_at_s = _parse_time(start) if has_started else None
        states[job_id] = JobState(job_id, name, reason, nodes, started_at_s, _parse_time(submit), limit)
    return states


def _parse_time(text: str | None) -> float | None:
    """Return seconds since the epoch, from such a number or from a local time."""
    text = text or ""
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return float(text) or None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    return None


def is_over(state: JobState) -> bool:
    """Return whether a job in this state has ended for good; an unknown state counts as not over."""
    return state.state in END_STATES


def classify_end(state: JobState) -> tuple[str, str]:
    """Return status and reason of a run that left no result, from the final state of its job."""
    if (reason := why_never_starts(state)) is not None:
        return "unsupported", reason
    status, what = END_STATES.get(state.state, ("failed", "is lost"))
    minutes = parse_limit_minutes(state.limit or "")
    if state.state == "TIMEOUT" and minutes is not None:
        what += f" of {int(minutes)} min"
    reported = ", ".join(filter(None, [state.state, state.reason if state.state == "FAILED" else None]))
    is_of_node = state.state in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
    where = f": {state.node_list}" if is_of_node and state.node_list else ""
    return status, f"SLURM job {state.job_id} {what} ({reported}){where}"


def why_never_starts(state: JobState) -> str | None:
    """Return why this job can never start; None where it can, or has."""
    reason = state.reason or ""
    if state.state not in ("PENDING", "FAILED") or not (reason in PERMANENT_REASONS or PER_JOB_LIMIT.match(reason)):
        return None
    why = PERMANENT_REASONS.get(reason, "it asks for more, or less, than one job may have")
    return f"SLURM job {state.job_id} cannot start ({reason}): {why}"


def is_script_killed(state: JobState) -> bool:
    """Return whether the job's script on its first node was killed, or never started."""
    return state.state == "FAILED" and (state.reason or "").startswith(SCRIPT_KILLED)
