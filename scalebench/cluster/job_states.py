"""The states of jobs: how SLURM's commands print them, what they mean for a run, and polling them for all jobs at once.

States and reasons: https://slurm.schedmd.com/squeue.html and the list of job reason codes, both of 22.05.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scalebench.cluster.commands import Slurm, SlurmError, SlurmUnreachable
from scalebench.cluster.partition import parse_limit_minutes

# squeue and sacct print these fields in a line, separated by |. They have scontrol's names here. The reason comes last,
# since it is free text.
SQUEUE_FORMAT = "%i|%T|%N|%S|%V|%l|%r"
SQUEUE_FIELDS = "JobId JobState NodeList StartTime SubmitTime TimeLimit Reason".split()
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,Submit,Timelimit"
SACCT_FIELDS = "JobId JobState ExitCode NodeList StartTime SubmitTime TimeLimit".split()
SCONTROL_FIELDS = [*SQUEUE_FIELDS, "ExitCode"]
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
MAX_POLL_INTERVAL_S = 60.0  # between two queries of a controller that does not answer
# Queries without an answer about a job that left the queue before it counts as lost: accounting may be a little behind.
MAX_LATE_ANSWERS = 12
NO_ACCOUNTING = "accounting storage is disabled"
EXIT_CODE_REASONS = {"0:53": "SLURM could not open its log; do the nodes see the run's folder?"}


@dataclass(frozen=True)
class JobState:
    """The state of a job as SLURM last reported it."""

    job_id: str
    state: str  # in capitals, without a suffix
    reason: str | None = None  # why it waits, or how it ended
    node_list: str | None = None  # in SLURM's short form: h[1-2]
    exit_code: str | None = None  # CODE:SIGNAL; None: not reported
    started_at_s: float | None = None  # seconds since the epoch; None: not started
    submitted_at_s: float | None = None
    limit: str | None = None  # time limit as SLURM writes it: 1-00:00:00
    cancelled_by: str | None = None  # the number of a user


def parse_table(text: str, fields: Sequence[str]) -> dict[str, JobState]:
    """Return the states by job from lines of squeue or sacct with these fields, ignoring other lines."""
    lines = (line.split("|", len(fields) - 1) for line in text.splitlines())
    return _make_states(dict(zip(fields, parts, strict=True)) for parts in lines if len(parts) == len(fields))


def parse_scontrol(text: str) -> dict[str, JobState]:
    """Return the states by job from `scontrol --oneliner show job`."""
    lines = (dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", line)) for line in text.splitlines())
    return _make_states(fields for fields in lines if fields.get("JobState"))


def is_over(state: JobState | str) -> bool:
    """Return whether a job in this state has ended for good; an unknown state counts as not over."""
    return (state.state if isinstance(state, JobState) else state) in END_STATES


def classify_end(state: JobState) -> tuple[str, str]:
    """Return status and reason of a run that left no result, from the final state of its job."""
    if (reason := why_never_starts(state)) is not None:
        return "unsupported", reason
    status, what = END_STATES.get(state.state, ("failed", "is lost"))
    where = f": {state.node_list}" if state.node_list else ""
    detail = ""
    if state.state == "TIMEOUT":
        minutes = None if state.limit is None else parse_limit_minutes(state.limit)
        count = "" if minutes is None else f"{int(minutes)} minute{'' if int(minutes) == 1 else 's'}"
        detail = f" of {count}" if count else ""
    elif state.state == "CANCELLED" and state.cancelled_by is not None:
        user = state.cancelled_by
        with contextlib.suppress(KeyError, ValueError, OverflowError):
            user = pwd.getpwuid(int(user)).pw_name
        detail = f" by user {user}"
    reported = state.state if state.cancelled_by is None else f"{state.state} by {state.cancelled_by}"
    if state.state == "FAILED":
        parts = [state.reason, None if state.exit_code in (None, "0:0") else f"exit code {state.exit_code}"]
        reported, why = ", ".join(["FAILED", *filter(None, parts)]), EXIT_CODE_REASONS.get(state.exit_code or "")
        where = f": {why}" if why else ""
    elif state.state not in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"):
        where = ""
    return status, f"SLURM job {state.job_id} {what}{detail} ({reported}){where}"


def why_never_starts(state: JobState) -> str | None:
    """Return why this job can never start; None where it can, or has."""
    reason = state.reason or ""
    if state.state not in ("PENDING", "FAILED") or not (reason in PERMANENT_REASONS or PER_JOB_LIMIT.match(reason)):
        return None
    why = PERMANENT_REASONS.get(reason, "it asks for more, or less, than one job may have")
    return f"SLURM job {state.job_id} cannot start ({reason}): {why}"


def is_script_killed(state: JobState) -> bool:
    """Return whether the job's script on its first node was killed, or never started."""
    signal = (state.exit_code or "").partition(":")[2]
    return state.state == "FAILED" and (state.reason == "JobLaunchFailure" or signal not in ("", "0"))


def _make_states(lines: Iterable[Mapping[str, str]]) -> dict[str, JobState]:
    """Return the states by job; lines without the number of a job (12, 12_3, 12_[1-5], 12+0), such as those of the job
    step 12.batch, are ignored."""
    states = {}
    for fields in lines:
        job_id, words = fields.get("JobId", "").strip(), fields["JobState"].split()
        if not re.fullmatch(r"\d+(?:[_+][^\s.]*)?", job_id):
            continue
        name = words[0].rstrip("+").upper() if words else "UNKNOWN"
        values = dict.fromkeys(SCONTROL_FIELDS) | {key: _value_or_none(value) for key, value in fields.items()}
        # squeue's start time of a pending job is an estimate, and of a job cancelled before its start the cancellation.
        has_started = values["NodeList"] is not None and name not in WAITING_STATES
        states[job_id] = JobState(
            job_id,
            name,
            reason=values["Reason"],
            node_list=values["NodeList"],
            exit_code=values["ExitCode"],
            started_at_s=_parse_time(values["StartTime"]) if has_started else None,
            submitted_at_s=_parse_time(values["SubmitTime"]),
            limit=values["TimeLimit"],
            cancelled_by=words[2] if len(words) == 3 and words[1] == "by" else None,
        )
    return states


def _value_or_none(text: str) -> str | None:
    text = text.strip()
    return None if text in ("", "None", "(null)", "N/A", "Unknown", "None assigned", "NOT_SET", "INVALID") else text


def _parse_time(text: str | None) -> float | None:
    """Return seconds since the epoch, from such a number or from a local time."""
    text = text or ""
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return float(text) or None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    return None


class JobStatePoller:
    """Polls the states of jobs and remembers the last one of each, for ended jobs the final one.

    squeue knows the jobs that are pending or running and, for some minutes, those that are over. For jobs that have
    left the queue sacct is queried, and scontrol where there is no accounting.
    """

    def __init__(self, slurm: Slurm, interval_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.queries = 0  # commands that were run
        self._slurm, self._interval_s, self._clock = slurm, interval_s, clock
        self._next_query_s = float("-inf")
        self._failures = 0  # consecutive ones of the queue's command
        self._states: dict[str, JobState] = {}
        self._lost: dict[str, int] = {}  # jobs that left the queue: number of answers that did not report their end
        self._queried_queue = False  # by the last query
        self._accounting = slurm.has("sacct")

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Return the state of each job that SLURM knows.

        SLURM is queried at most once in `interval_s`; otherwise the last known states are returned. A job that is no
        longer known anywhere is left out. SlurmError where the controller does not answer, which then is queried less
        often.
        """
        open_ids = [job_id for job_id in job_ids if not self._is_over(job_id)]
        if open_ids and self._clock() >= self._next_query_s:
            try:
                self._query(open_ids)
            finally:
                pause_s = min(self._interval_s * 2**self._failures, max(MAX_POLL_INTERVAL_S, self._interval_s))
                self._next_query_s = self._clock() + pause_s
        return {job_id: self._states[job_id] for job_id in job_ids if job_id in self._states}

    def _query(self, open_ids: Sequence[str]) -> None:
        """Query the queue, or alternately with that the jobs that have left it."""
        lost = [job_id for job_id in open_ids if job_id in self._lost]
        self._queried_queue = not lost or not self._queried_queue
        if self._queried_queue:
            self._query_queue(open_ids)
            if self._interval_s > 0:
                return
            lost = [job_id for job_id in open_ids if job_id in self._lost]  # there may be no next query
        if lost:
            self._query_lost(lost)

    def _query_queue(self, open_ids: Sequence[str]) -> None:
        try:
            # By user rather than by job: the number of a job that has left the queue would be an error.
            words = ("--noheader", "--all", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FORMAT}")
            states = self._read(self._slurm.has("squeue"), open_ids, SQUEUE_FIELDS, "squeue", *words)
        except SlurmError:
            self._failures += 1
            raise
        self._failures = 0
        for job_id in open_ids:
            if job_id in states:
                self._states[job_id] = states[job_id]
                self._lost.pop(job_id, None)
            else:
                self._lost.setdefault(job_id, 0)

    def _query_lost(self, lost: Sequence[str]) -> None:
        try:
            jobs = f"--jobs={','.join(lost)}"
            words = ("--allocations", "--noheader", "--parsable2", f"--format={SACCT_FORMAT}", jobs)
            states = self._read(self._accounting, lost, SACCT_FIELDS, "sacct", *words)
        except SlurmError as error:
            if self._accounting and NO_ACCOUNTING in str(error):
                self._accounting = False  # this does not change while a sweep runs
                self._query_lost(lost)
                return
            states = {}
        for job_id in lost:
            if job_id in states:
                self._states[job_id] = states[job_id]
            self._lost[job_id] += 1
            # The controller is never behind: a job that it does not know is gone.
            if self._lost[job_id] >= (MAX_LATE_ANSWERS if self._accounting else 2) and not self._is_over(job_id):
                self._states.pop(job_id, None)

    def _is_over(self, job_id: str) -> bool:
        return job_id in self._states and is_over(self._states[job_id])

    def _read(self, is_there: bool, job_ids: Sequence[str], fields: Sequence[str], *words: str) -> dict[str, JobState]:
        """Return what a command prints, or scontrol where it is not there: of each job by itself, since without a
        number that lists the jobs of all users of the cluster."""
        if is_there:
            return parse_table(self._run(*words), fields)
        states: dict[str, JobState] = {}
        for job_id in job_ids:
            try:
                states |= parse_scontrol(self._run("scontrol", "--oneliner", "show", "job", job_id))
            except SlurmUnreachable:
                raise
            except SlurmError:  # the controller no longer knows it
                continue
        return states

    def _run(self, name: str, *arguments: str) -> str:
        self.queries += 1
        return self._slurm.run(name, *arguments)
