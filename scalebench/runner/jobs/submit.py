"""Submits jobs to the scheduler, one after the other. It tries again for a while where the scheduler does not answer,
and for as long as it takes where there are too many jobs already."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scalebench.cluster.commands import JobRefused, SlurmError, SlurmUnreachable, SubmitLimit
from scalebench.cluster.submit import Submission, read_submission, write_submission
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import refuse_folder_with_result
from scalebench.core.json_files import write_json
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_RUNS_FILE, remove_leftovers
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import outcome as outcomes
from scalebench.runner.jobs.job import JobRuns, PlannedJob, SubmittedJob
from scalebench.runner.parent import RunRequest

RETRY_PAUSES_S = (2.0, 5.0, 10.0, 20.0)  # before the next tries; the controller may just be restarting
LIMIT_PAUSE_S = 30.0  # before the next try where the user or the cluster has too many jobs

SubmitFunction = Callable[[Sequence[RunSpec], Path], Submission]


class Submitter:
    """The jobs that wait to be submitted, in order."""

    def __init__(self, submit: SubmitFunction, clock: Callable[[], float]) -> None:
        self.waiting: deque[PlannedJob] = deque()
        self._submit, self._clock = submit, clock
        self._tries, self._not_before_s = 0, clock()
        self.limit: str | None = None  # on submitted jobs, because of which the first one waits

    def add(self, jobs: Sequence[PlannedJob]) -> None:
        """Add jobs; raise InputError for a run whose folder holds a result."""
        for job in jobs:
            for request in job.requests:
                refuse_folder_with_result(request.folder)
        self.waiting += jobs

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and self._clock() >= self._not_before_s

    def next(self) -> list[tuple[RunRequest, SubmittedJob | Result]]:
        """Submit the first waiting job. Return its runs, each with its result where it cannot be submitted; none: try
        again later."""
        job = self.waiting[0]
        try:
            prepare_job_folders(job)
            submission = self._submit([request.spec for request in job.requests], job.folder)
            outcome = None
        except JobRefused as error:
            outcome = RunOutcome("unsupported", str(error))
        except SubmitLimit as error:
            self.limit, self._not_before_s = str(error), self._clock() + LIMIT_PAUSE_S
            return []
        except (SlurmError, InputError) as error:
            if isinstance(error, SlurmUnreachable) and self._may_retry():
                return []
            outcome = RunOutcome("failed", f"it could not be submitted: {error}")
        except OSError as error:
            self.waiting.popleft()
            failed = RunOutcome("failed")
            return [(each, outcomes.make_unwritten_result(each, failed, error)) for each in job.requests]
        self.waiting.popleft()
        if outcome is not None:
            return [(request, outcomes.write_result_for(request, outcome)) for request in job.requests]
        self._tries, self.limit = 0, None
        submitted: list[tuple[RunRequest, SubmittedJob | Result]] = []
        for request in job.requests:
            own = replace(submission, job_folder=os.path.relpath(job.folder, request.folder))
            write_submission(own, request.folder)
            submitted.append((request, SubmittedJob(request, own)))
        return submitted

    def _may_retry(self) -> bool:
        """Return whether to try again. After all pauses each of the remaining jobs has one try."""
        if self._tries == len(RETRY_PAUSES_S):
            return False
        self._not_before_s = self._clock() + RETRY_PAUSES_S[self._tries]
        self._tries += 1
        return True


def adopt_job(request: RunRequest) -> SubmittedJob | Result:
    """Return the job that an earlier program submitted; a failed result where it left no job.json."""
    reason = f"{request.folder} holds no {JOB_FILE}, so that its job cannot be followed"
    try:
        submission = read_submission(request.folder)
    except InputError as error:
        submission, reason = None, str(error)
    if submission is not None:
        return SubmittedJob(request, submission)
    return outcomes.write_result_for(request, RunOutcome("failed", reason))


def prepare_job_folders(job: PlannedJob) -> None:
    """Prepare the folders of a job and of its runs, and remove the files of an earlier job; raise OSError where that
    fails."""
    for request in job.requests:
        request.folder.mkdir(parents=True, exist_ok=True)
        write_spec(request.spec, request.folder)
        remove_leftovers(request.folder)
    for folder in (job.folder, *(request.folder for request in job.requests)):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (JOB_FILE, JOB_LOG):
            (folder / name).unlink(missing_ok=True)
    units = [{os.path.relpath(run.folder, job.folder): run.bare for run in unit} for unit in job.units]
    write_json(job.folder / JOB_RUNS_FILE, JobRuns(units))
