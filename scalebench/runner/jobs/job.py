"""Runs that are jobs, and how they stand. Layer 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scalebench.core.result import Result
from scalebench.core.spec import RunSpec
from scalebench.slurm.job_states import WAITING, JobState
from scalebench.slurm.submit import Submission


@dataclass(eq=False)
class JobRequest:
    """A run to submit as a job, in a folder of its own."""

    number: int
    spec: RunSpec
    folder: Path
    adopted: bool = False  # its job exists already, submitted by a program that has ended


@dataclass(eq=False)
class Job:
    """A run that has been submitted and has no result yet. Times are by the follower's clock."""

    request: JobRequest
    submission: Submission
    state: JobState | None = None  # by the scheduler's last answer
    unknown: int = 0  # answers of the scheduler since then that did not know it
    result: Result | None = None  # that it left, and that the scheduler may explain better
    result_s: float = 0.0  # when that was found
    over_s: float | None = None  # when it was first reported as over
    cancelled: bool = False  # by us
    never: str | None = None  # why it could not start, and was taken out of the queue

    @property
    def id(self) -> str:
        return self.submission.job_id

    @property
    def pending(self) -> bool:
        """Whether it waits by the last answer; it may have started since."""
        return self.over_s is None and (self.state is None or self.state.state in WAITING)

    @property
    def ran(self) -> bool:
        """Whether it got nodes; the start time of a job without any is only expected."""
        return self.state is not None and not self.pending and bool(self.state.node_list)


@dataclass(frozen=True)
class Queue:
    """The state of the runs that a scheduler has."""

    waiting: int  # not submitted yet
    pending: int
    reason: str | None  # the scheduler's commonest one for that
    runs: tuple[JobRequest, ...]  # that run now
    over: int
    trouble: str | None = None  # why the scheduler does not answer

    @property
    def running(self) -> int:
        return len(self.runs)


def queue(waiting: int, jobs: Collection[Job], over: int, trouble: str | None) -> Queue:
    pending = [job for job in jobs if job.pending]
    reasons = Counter(job.state.reason for job in pending if job.state is not None and job.state.reason)
    reason = reasons.most_common(1)[0][0] if reasons else None
    return Queue(waiting, len(pending), reason, tuple(job.request for job in jobs if not job.pending), over, trouble)
