"""The states of jobs: how SLURM's commands print them, what they mean for a run, and polling them for all jobs at once.

States and reasons: https://slurm.schedmd.com/squeue.html and the list of job reason codes, both of 22.05.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from scalebench.slurm.commands import Slurm, SlurmError, SlurmUnreachable

# The reason comes last: it is free text, which may contain the separator.
SQUEUE_FORMAT = "%i|%T|%N|%S|%V|%l|%r"
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,Submit,Timelimit"
SCONTROL_FIELDS = "JobId JobState NodeList StartTime SubmitTime TimeLimit Reason ExitCode".split()
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
    "PartitionNodeLimit": "it wants more nodes than the partition has or gives to one job",
    "PartitionTimeLimit": "its time limit is above that of the partition; lower hardware.slurm.time_minutes",
    "BadConstraints": "no nodes are as it wants them",
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


def parse_squeue(text: str) -> dict[str, JobState]:
    """Return the states by job from `squeue --noheader --format=SQUEUE_FORMAT`, ignoring other lines."""
    states = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) == 7 and _is_id(parts[0]):
            job_id, state, nodes, start, submit, limit, reason = parts
            states[job_id.strip()] = _job_state(job_id, state, nodes, start, submit, limit, reason)
    return states


def parse_sacct(text: str) -> dict[str, JobState]:
    """Return the states by job from `sacct --allocations --noheader --parsable2 --format=SACCT_FORMAT`."""
    states = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 7 and _is_id(parts[0]):
            job_id, state, code, nodes, start, submit, limit = parts
            states[job_id.strip()] = _job_state(job_id, state, nodes, start, submit, limit, None, code)
    return states


def parse_scontrol(text: str) -> dict[str, JobState]:
    """Return the states by job from `scontrol --oneliner show job`."""
    states = {}
    for line in text.splitlines():
        fields = {key: _field(line, key) for key in SCONTROL_FIELDS}
        if _is_id(fields["JobId"]) and fields["JobState"]:
            states[fields["JobId"]] = _job_state(*fields.values())
    return states


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
        detail = _format_limit(state.limit)
    elif state.state == "CANCELLED" and state.cancelled_by is not None:
        detail = f" by user {_user_name(state.cancelled_by)}"
    reported = state.state if state.cancelled_by is None else f"{state.state} by {state.cancelled_by}"
    if state.state == "FAILED":
        reported, where = _describe_failure(state)
    elif state.state not in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"):
        where = ""
    return status, f"SLURM job {state.job_id} {what}{detail} ({reported}){where}"


def why_never_starts(state: JobState) -> str | None:
    """Return why this job can never start; None where it can, or has."""
    reason = state.reason or ""
    if state.state not in ("PENDING", "FAILED") or not (reason in PERMANENT_REASONS or PER_JOB_LIMIT.match(reason)):
        return None
    why = PERMANENT_REASONS.get(reason, "it wants more, or less, than one job may have")
    return f"SLURM job {state.job_id} cannot start ({reason}): {why}"


def is_script_killed(state: JobState) -> bool:
    """Return whether the job's script on its first node was killed, or never started."""
    signal = (state.exit_code or "").partition(":")[2]
    return state.state == "FAILED" and (state.reason == "JobLaunchFailure" or signal not in ("", "0"))


def _describe_failure(state: JobState) -> tuple[str, str]:
    """Return what SLURM reports about a failed job, and what its exit code means."""
    parts = [state.state, *([] if state.reason is None else [state.reason])]
    parts += [] if state.exit_code in (None, "0:0") else [f"exit code {state.exit_code}"]
    why = EXIT_CODE_REASONS.get(state.exit_code or "")
    return ", ".join(parts), f": {why}" if why else ""


def _job_state(
    job_id: str,
    state: str,
    nodes: str,
    start: str,
    submit: str,
    limit: str,
    reason: str | None,
    code: str | None = None,
) -> JobState:
    parts = state.split()
    name = parts[0].rstrip("+").upper() if parts else "UNKNOWN"
    cancelled_by = parts[2] if len(parts) == 3 and parts[1] == "by" else None
    node_list = _value_or_none(nodes)
    # squeue's start time of a pending job is an estimate, and of a job cancelled before its start the cancellation.
    started_at_s = None if node_list is None or name in WAITING_STATES else _parse_time(start)
    return JobState(
        job_id.strip(), name, _value_or_none(reason), node_list, _value_or_none(code), started_at_s,
        _parse_time(submit), _value_or_none(limit), cancelled_by,
    )  # fmt: skip


def _is_id(text: str) -> bool:
    """Return whether this is the number of a job: 12, 12_3, 12_[1-5], 12+0; not 12.batch, which is a job step."""
    return re.fullmatch(r"\s*\d+(?:[_+]\S*)?\s*", text) is not None and "." not in text


def _field(line: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match else ""


def _value_or_none(text: str | None) -> str | None:
    text = (text or "").strip()
    return None if text in ("", "None", "(null)", "N/A", "Unknown", "None assigned", "NOT_SET", "INVALID") else text


def _parse_time(text: str) -> float | None:
    """Return seconds since the epoch, from such a number or from a local time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return float(text) or None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    return None


def _format_limit(text: str | None) -> str:
    """Return ` of 5 minutes` for [DAYS-]HOURS:MINUTES:SECONDS, where the hours may be missing."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text or "", re.ASCII)
    if match is None:
        return ""
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    total = (days * 24 + hours) * 60 + minutes
    return f" of {total} minute{'' if total == 1 else 's'}"


def _user_name(number: str) -> str:
    try:
        return pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError, OverflowError):
        return number


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
            states = self._run_squeue() if self._slurm.has("squeue") else self._run_scontrol(open_ids)
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
        """Query the jobs that have left the queue."""
        try:
            states = self._run_sacct(lost) if self._accounting else self._run_scontrol(lost)
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

    def _run_squeue(self) -> dict[str, JobState]:
        # By user rather than by job: the number of a job that has left the queue would be an error.
        arguments = ["--noheader", "--all", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FORMAT}"]
        return parse_squeue(self._run("squeue", *arguments))

    def _run_sacct(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        arguments = ["--allocations", "--noheader", "--parsable2", f"--format={SACCT_FORMAT}"]
        return parse_sacct(self._run("sacct", *arguments, f"--jobs={','.join(job_ids)}"))

    def _run_scontrol(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Query each job by itself: without a number scontrol lists the jobs of all users of the cluster."""
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
