"""Submits runs to the scheduler, one after the other. It tries again for a while where the scheduler does not answer,
and for as long as it takes where there are too many jobs already."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.folder_lock import refuse_folder_with_result
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, remove_leftovers
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import outcome
from scalebench.runner.jobs.job import JobRequest, SubmittedJob
from scalebench.slurm.commands import JobRefused, SlurmError, SlurmUnreachable, SubmitLimit
from scalebench.slurm.submit import Submission, read_submission

RETRY_PAUSES_S = (2.0, 5.0, 10.0, 20.0)  # before the next tries; the controller may just be restarting
LIMIT_PAUSE_S = 30.0  # before the next try where the user or the cluster has too many jobs

SubmitFunction = Callable[[RunSpec, Path], Submission]


class Submitter:
    """The runs that wait to be submitted, in order."""

    def __init__(self, submit: SubmitFunction, clock: Callable[[], float]) -> None:
        self.waiting: deque[JobRequest] = deque()
        self._submit, self._clock = submit, clock
        self._tries, self._not_before_s = 0, clock()
        self.limit: str | None = None  # on submitted jobs, because of which the first one waits

    def add(self, requests: Sequence[JobRequest]) -> None:
        """Add runs; raise InputError for a folder that holds a result."""
        for request in requests:
            refuse_folder_with_result(request.folder)
        self.waiting += requests

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and self._clock() >= self._not_before_s

    def next(self) -> tuple[JobRequest, SubmittedJob | Result | None]:
        """Submit the first waiting run. Return its job, or its result where it cannot be submitted; None: try again
        later."""
        request = self.waiting[0]
        submitted = self._submit_request(request)
        if submitted is not None:
            self.waiting.popleft()
        return request, submitted

    def _submit_request(self, request: JobRequest) -> SubmittedJob | Result | None:
        if request.spec.plugin_error is not None:
            return outcome.write_result_for(request, RunOutcome("failed", request.spec.plugin_error))
        if request.spec.unsupported is not None:
            return outcome.write_result_for(request, RunOutcome("unsupported", request.spec.unsupported))
        try:
            prepare_job_folder(request)
            submission = self._submit(request.spec, request.folder)
        except JobRefused as error:
            result = outcome.write_result_for(request, RunOutcome("unsupported", str(error)))
        except SubmitLimit as error:
            self.limit, self._not_before_s = str(error), self._clock() + LIMIT_PAUSE_S
            return None
        except SlurmUnreachable as error:
            if self._may_retry():
                return None
            result = outcome.write_result_for(request, RunOutcome("failed", f"it could not be submitted: {error}"))
        except (SlurmError, InputError) as error:
            result = outcome.write_result_for(request, RunOutcome("failed", f"it could not be submitted: {error}"))
        except OSError as error:
            result = outcome.make_unwritten_result(request, RunOutcome("failed"), error)
        else:
            self._tries, self.limit = 0, None
            return SubmittedJob(request, submission)
        return result

    def _may_retry(self) -> bool:
        """Return whether to try again. After all pauses each of the remaining runs has one try."""
        if self._tries == len(RETRY_PAUSES_S):
            return False
        self._not_before_s = self._clock() + RETRY_PAUSES_S[self._tries]
        self._tries += 1
        return True


def adopt_job(request: JobRequest) -> SubmittedJob | Result:
    """Return the job that an earlier program submitted; a failed result where it left no job.json."""
    reason = f"{request.folder} holds no {JOB_FILE}, so that its job cannot be followed"
    try:
        submission = read_submission(request.folder)
    except InputError as error:
        submission, reason = None, str(error)
    if submission is not None:
        return SubmittedJob(request, submission)
    return outcome.write_result_for(request, RunOutcome("failed", reason))


def prepare_job_folder(request: JobRequest) -> None:
    """Prepare the folder of a job, and remove the files of an earlier job; raise OSError where that fails."""
    request.folder.mkdir(parents=True, exist_ok=True)
    write_spec(request.spec, request.folder)
    remove_leftovers(request.folder)
    for name in (JOB_FILE, JOB_LOG):
        (request.folder / name).unlink(missing_ok=True)
