"""What SLURM says of a job, as its commands print it, and what that means for a run. Layer 2.

States and reasons: https://slurm.schedmd.com/squeue.html and the list of job reason codes, both of 22.05.

Asks SLURM how jobs stand, seldom and for all of them at once. Layer 2.
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

from scalebench.slurm.commands import Slurm, SlurmError

# The reason comes last: it is prose, and may hold anything.
SQUEUE_FORMAT = "%i|%T|%N|%S|%V|%l|%r"
SACCT_FORMAT = "JobID,State,ExitCode,NodeList,Start,Submit,Timelimit"
WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# How jobs end: the status of a run that left no row, and what happened.
END_STATES = {
    "COMPLETED": ("failed", "ended, and left no row"),
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
# Reasons of a pending job that waiting does not change.
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
# Limits on one job, not on what the others of a user or a group leave of them.
PER_JOB_LIMIT = re.compile(r"(?:Assoc|QOS)(?:Max\w+Per(?:Job|Node)|Min)")
EXIT_CODE_REASONS = {"0:53": "SLURM could not open its log; do the nodes see the run's folder?"}


@dataclass(frozen=True)
class JobState:
    """A job as SLURM last spoke of it."""

    job_id: str
    state: str  # in capitals, without what may stand behind it
    reason: str | None = None  # why it waits, or how it ended
    node_list: str | None = None  # as SLURM shortens it: h[1-2]
    exit_code: str | None = None  # CODE:SIGNAL; null: not told
    started_at_s: float | None = None  # seconds since the epoch; null: it has not started
    submitted_at_s: float | None = None
    limit: str | None = None  # of its time, as SLURM writes it: 1-00:00:00
    cancelled_by: str | None = None  # number of the user


def parse_squeue(text: str) -> dict[str, JobState]:
    """States by job from `squeue --noheader --format=SQUEUE_FORMAT`; lines that are none are passed over."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|", 6)
        if len(parts) == 7 and _is_id(parts[0]):
            job_id, state, nodes, start, submit, limit, reason = parts
            found[job_id.strip()] = _job_state(job_id, state, nodes, start, submit, limit, reason)
    return found


def parse_sacct(text: str) -> dict[str, JobState]:
    """States by job from `sacct --allocations --noheader --parsable2 --format=SACCT_FORMAT`."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) == 7 and _is_id(parts[0]):
            job_id, state, code, nodes, start, submit, limit = parts
            found[job_id.strip()] = _job_state(job_id, state, nodes, start, submit, limit, None, code)
    return found


def parse_scontrol(text: str) -> dict[str, JobState]:
    """States by job from `scontrol --oneliner show job`."""
    found = {}
    for line in text.splitlines():
        told = {key: _field(line, key) for key in SCONTROL_FIELDS.split()}
        if _is_id(told["JobId"]) and told["JobState"]:
            found[told["JobId"]] = _job_state(*told.values())
    return found


SCONTROL_FIELDS = "JobId JobState NodeList StartTime SubmitTime TimeLimit Reason ExitCode"


def is_over(state: JobState | str) -> bool:
    """Whether a job in this state runs no more, nor ever will. One that nobody has heard of is not over."""
    return (state.state if isinstance(state, JobState) else state) in END_STATES


def classify_end(state: JobState) -> tuple[str, str]:
    """(status, reason) of a run whose job ended so, and that left no better word of it."""
    if why_never_starts(state) is not None:
        return "unsupported", str(why_never_starts(state))
    status, what = END_STATES.get(state.state, ("failed", "is lost"))
    where = f": {state.node_list}" if state.node_list else ""
    detail = ""
    if state.state == "TIMEOUT":
        detail = _format_limit(state.limit)
    elif state.state == "CANCELLED" and state.cancelled_by is not None:
        detail = f" by user {_user_name(state.cancelled_by)}"
    word = state.state if state.cancelled_by is None else f"{state.state} by {state.cancelled_by}"
    if state.state == "FAILED":
        word, where = _describe_failure(state)
    elif state.state not in ("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"):
        where = ""
    return status, f"SLURM job {state.job_id} {what}{detail} ({word}){where}"


def why_never_starts(state: JobState) -> str | None:
    """Why this job cannot start, ever; None where it can, or has."""
    reason = state.reason or ""
    if state.state not in ("PENDING", "FAILED") or not (reason in PERMANENT_REASONS or PER_JOB_LIMIT.match(reason)):
        return None
    why = PERMANENT_REASONS.get(reason, "it wants more, or less, than one job may have")
    return f"SLURM job {state.job_id} cannot start ({reason}): {why}"


def is_script_killed(state: JobState) -> bool:
    """Whether what the job runs on its first node was killed, or never started."""
    signal = (state.exit_code or "").partition(":")[2]
    return state.state == "FAILED" and (state.reason == "JobLaunchFailure" or signal not in ("", "0"))


def _describe_failure(state: JobState) -> tuple[str, str]:
    told = [state.state, *([] if state.reason is None else [state.reason])]
    told += [] if state.exit_code in (None, "0:0") else [f"exit code {state.exit_code}"]
    why = EXIT_CODE_REASONS.get(state.exit_code or "")
    return ", ".join(told), f": {why}" if why else ""


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
    words = state.split()
    word = words[0].rstrip("+").upper() if words else "UNKNOWN"
    by = words[2] if len(words) == 3 and words[1] == "by" else None
    node_list = _value_or_none(nodes)
    # squeue tells of a pending job when it may start, and of one cancelled before when that was.
    started_at_s = None if node_list is None or word in WAITING_STATES else _parse_time(start)
    return JobState(
        job_id.strip(),
        word,
        _value_or_none(reason),
        node_list,
        _value_or_none(code),
        started_at_s,
        _parse_time(submit),
        _value_or_none(limit),
        by,
    )


def _is_id(text: str) -> bool:
    """12, 12_3, 12_[1-5], 12+0; not 12.batch, which is a step."""
    return re.fullmatch(r"\s*\d+(?:[_+]\S*)?\s*", text) is not None and "." not in text


def _field(line: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match else ""


def _value_or_none(text: str | None) -> str | None:
    text = (text or "").strip()
    return None if text in ("", "None", "(null)", "N/A", "Unknown", "None assigned", "NOT_SET", "INVALID") else text


def _parse_time(text: str) -> float | None:
    """Seconds since the epoch, from those or from a local time."""
    text = text.strip()
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        return float(text) or None
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    return None


def _format_limit(text: str | None) -> str:
    """` of 5 minutes`, from [DAYS-]HOURS:MINUTES:SECONDS, of which the hours may be missing."""
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


MAX_POLL_INTERVAL_S = 60.0  # between two questions to a controller that does not answer
# Answers about a job that the queue has forgotten which may be behind: accounting hears of its end a little later.
MAX_LATE_ANSWERS = 12
NO_ACCOUNTING = "accounting storage is disabled"


class JobStatePoller:
    """Remembers what it was told, and how a job ended for good.

    squeue knows the jobs that wait or run and, for some minutes, those that are over. Of those that it has forgotten
    sacct tells, and scontrol where there is no accounting.
    """

    def __init__(self, slurm: Slurm, interval_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.queries = 0  # commands that were run
        self._slurm, self._interval_s, self._clock = slurm, interval_s, clock
        self._ask_at_s = float("-inf")
        self._failures = 0  # of the queue's command, one after the other
        self._known: dict[str, JobState] = {}
        self._lost: dict[str, int] = {}  # jobs that the queue has forgotten: answers that did not tell their end
        self._asked_queue = False  # at the last question
        self._accounting = slurm.has("sacct")

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The state of each job that SLURM knows of.

        It is asked at most once in `interval_s`, otherwise the answer is what is known. One that nobody knows any more
        is left out. SlurmError where the controller does not answer, which then is asked less often.
        """
        open_ids = [job_id for job_id in job_ids if job_id not in self._known or not is_over(self._known[job_id])]
        if open_ids and self._clock() >= self._ask_at_s:
            try:
                self._ask(open_ids)
            finally:
                pause_s = min(self._interval_s * 2**self._failures, max(MAX_POLL_INTERVAL_S, self._interval_s))
                self._ask_at_s = self._clock() + pause_s
        return {job_id: self._known[job_id] for job_id in job_ids if job_id in self._known}

    def _ask(self, open_ids: Sequence[str]) -> None:
        """One question: of the queue, or in turn with that about those it has forgotten."""
        lost = [job_id for job_id in open_ids if job_id in self._lost]
        self._asked_queue = not lost or not self._asked_queue
        if self._asked_queue:
            self._ask_queue(open_ids)
            if self._interval_s > 0:
                return
            lost = [job_id for job_id in open_ids if job_id in self._lost]  # nobody will come back for them
        if lost:
            self._ask_about(lost)

    def _ask_queue(self, open_ids: Sequence[str]) -> None:
        try:
            found = self._queue() if self._slurm.has("squeue") else self._controller()
        except SlurmError:
            self._failures += 1
            raise
        self._failures = 0
        for job_id in open_ids:
            if job_id in found:
                self._known[job_id] = found[job_id]
                self._lost.pop(job_id, None)
            else:
                self._lost.setdefault(job_id, 0)

    def _ask_about(self, lost: Sequence[str]) -> None:
        """Jobs that the queue has forgotten."""
        try:
            found = self._accounts(lost) if self._accounting else self._controller()
        except SlurmError as error:
            if self._accounting and NO_ACCOUNTING in str(error):
                self._accounting = False  # which nobody will change while a sweep runs, and nobody had to be asked for
                self._ask_about(lost)
                return
            found = {}
        for job_id in lost:
            if job_id in found:
                self._known[job_id] = found[job_id]
            self._lost[job_id] += 1
            # The controller is never behind: what it does not know is gone.
            if self._lost[job_id] >= (MAX_LATE_ANSWERS if self._accounting else 2) and not self._over(job_id):
                self._known.pop(job_id, None)

    def _over(self, job_id: str) -> bool:
        return job_id in self._known and is_over(self._known[job_id])

    def _queue(self) -> dict[str, JobState]:
        # Of a user rather than of jobs: an id that it has forgotten would be an error.
        words = ["--noheader", "--all", "--states=all", f"--user={os.getuid()}", f"--format={SQUEUE_FORMAT}"]
        return parse_squeue(self._run("squeue", *words))

    def _accounts(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        words = ["--allocations", "--noheader", "--parsable2", f"--format={SACCT_FORMAT}"]
        return parse_sacct(self._run("sacct", *words, f"--jobs={','.join(job_ids)}"))

    def _controller(self) -> dict[str, JobState]:
        return parse_scontrol(self._run("scontrol", "--oneliner", "show", "job"))

    def _run(self, name: str, *words: str) -> str:
        self.queries += 1
        return self._slurm.run(name, *words)
