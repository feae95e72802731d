"""Jobs, their runs, and their states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalebench.cluster.job_states import WAITING_STATES, JobState
from scalebench.cluster.submit import Submission
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_LOG
from scalebench.runner.parent import RunRequest


@dataclass(eq=False)
class PlannedJob:
    """A job to submit. Its log and script are in `folder`, which for a job of one run is that of the run."""

    folder: Path
    units: list[list[RunRequest]]  # one after the other; the runs of a unit take turns

    @property
    def requests(self) -> list[RunRequest]:
        return [request for unit in self.units for request in unit]


@dataclass
class JobRuns:
    """The content of job_runs.json: the folders of the runs of each unit, from that of the job, each with the
    fingerprint of its baseline without a wrapper."""

    units: list[dict[str, str | None]]


@dataclass(eq=False)
class SubmittedJob:
    """A run whose job has been submitted and that has no result yet. Times are by the clock of the JobFollower."""

    request: RunRequest
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
    runs: tuple[RunRequest, ...]  # whose jobs run now
    over: int
    error: str | None = None  # why the scheduler does not answer
    limit: str | None = None  # on submitted jobs, which the others wait for

    @property
    def running(self) -> int:
        return len(self.runs)
