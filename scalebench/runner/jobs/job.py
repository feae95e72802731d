"""Jobs, their runs, and their states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalebench.cluster.job_states import WAITING_STATES, JobState
from scalebench.cluster.submit import Submission
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_LOG
from scalebench.core.spec import RunSpec


@dataclass(eq=False)
class JobRequest:
    """A run to do in a job, in a folder of its own."""

    number: int
    spec: RunSpec
    folder: Path
    adopted: bool = False  # an earlier program submitted its job
    bare: str | None = None  # fingerprint of its baseline without a wrapper


@dataclass(eq=False)
class PlannedJob:
    """A job to submit. Its log and script are in `folder`, which for a job of one run is that of the run."""

    folder: Path
    units: list[list[JobRequest]]  # one after the other; the runs of a unit take turns

    @property
    def requests(self) -> list[JobRequest]:
        return [request for unit in self.units for request in unit]


@dataclass
class JobRun:
    """A run of a job, as job_runs.json holds it."""

    number: int
    folder: str  # from that of the job
    bare: str | None = None


@dataclass
class JobRuns:
    """The content of job_runs.json."""

    units: list[list[JobRun]]


@dataclass(eq=False)
class SubmittedJob:
    """A run whose job has been submitted and that has no result yet. Times are by the clock of the JobFollower."""

    request: JobRequest
    submission: Submission
    state: JobState | None = None  # in the scheduler's last answer
    unknown_count: int = 0  # later answers of the scheduler without this job
    result: Result | None = None  # left by the job; the scheduler may explain it better
    result_s: float = 0.0  # when that was first read
    over_s: float | None = None  # when it was first reported as over
    cancelled: bool = False  # by this program
    never_starts: str | None = None  # why it could not start, and was removed from the queue

    @property
    def id(self) -> str:
        return self.submission.job_id

    @property
    def log(self) -> Path:
        return self.request.folder / self.submission.job_folder / JOB_LOG

    @property
    def pending(self) -> bool:
        """Return whether it was waiting at the last answer; it may have started since."""
        return self.over_s is None and (self.state is None or self.state.state in WAITING_STATES)

    @property
    def ran(self) -> bool:
        """Return whether it got nodes: the start time of a job without nodes is only expected."""
        return self.state is not None and not self.pending and bool(self.state.node_list)


@dataclass(frozen=True)
class QueueState:
    """The state of all runs of a JobFollower."""

    waiting: int  # not submitted yet
    pending: int
    reason: str | None  # the scheduler's most frequent reason why jobs are pending
    runs: tuple[JobRequest, ...]  # whose jobs run now
    over: int
    error: str | None = None  # why the scheduler does not answer
    limit: str | None = None  # on submitted jobs, which the others wait for

    @property
    def running(self) -> int:
        return len(self.runs)
