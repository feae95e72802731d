"""Hands runs over to the scheduler, one after the other, and waits a little for one that does not answer. Layer 3."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, remove_leftovers
from scalebench.core.spec import RunSpec, write_spec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import outcome
from scalebench.runner.jobs.job import Job, JobRequest
from scalebench.runner.parent import refuse_results
from scalebench.slurm.commands import Refused, SlurmError, Unreachable
from scalebench.slurm.submit import Submission, read_submission

PAUSES_S = (2.0, 5.0, 10.0, 20.0)  # before the controller is tried again; it may just be starting anew

Submit = Callable[[RunSpec, Path], Submission]


class Submitter:
    """Runs that wait to be submitted, in order."""

    def __init__(self, submit: Submit, clock: Callable[[], float]) -> None:
        self.waiting: deque[JobRequest] = deque()
        self._submit, self._clock = submit, clock
        self._tries, self._not_before_s = 0, clock()

    def add(self, requests: Sequence[JobRequest]) -> None:
        """InputError for a folder that holds a result."""
        for request in requests:
            refuse_results(request.folder)
        self.waiting += requests

    @property
    def ready(self) -> bool:
        return bool(self.waiting) and self._clock() >= self._not_before_s

    def next(self) -> tuple[JobRequest, Job | Result | None]:
        """Submit the first that waits. Return its job, or its result where it cannot be one; None: try again later."""
        request = self.waiting[0]
        made = self._made(request)
        if made is not None:
            self.waiting.popleft()
        return request, made

    def _made(self, request: JobRequest) -> Job | Result | None:
        if request.spec.broken is not None:
            return outcome.write(request, RunOutcome("failed", request.spec.broken))
        if request.spec.unsupported is not None:
            return outcome.write(request, RunOutcome("unsupported", request.spec.unsupported))
        try:
            prepare(request)
            submission = self._submit(request.spec, request.folder)
        except Refused as error:
            made = outcome.write(request, RunOutcome("unsupported", str(error)))
        except Unreachable as error:
            if self._later():
                return None
            made = outcome.write(request, RunOutcome("failed", f"it could not be submitted: {error}"))
        except (SlurmError, InputError) as error:
            made = outcome.write(request, RunOutcome("failed", f"it could not be submitted: {error}"))
        except OSError as error:
            made = outcome.unwritten(request, RunOutcome("failed"), error)
        else:
            self._tries = 0
            return Job(request, submission)
        return made

    def _later(self) -> bool:
        """Return whether to try again. Once the controller has had its time, each run that is left has one try."""
        if self._tries == len(PAUSES_S):
            return False
        self._not_before_s = self._clock() + PAUSES_S[self._tries]
        self._tries += 1
        return True


def adopt(request: JobRequest) -> Job | Result:
    """Return the job that an earlier program submitted; a failed result where it left no job.json."""
    reason = f"{request.folder} holds no {JOB_FILE}, so that its job cannot be followed"
    try:
        found = read_submission(request.folder)
    except InputError as error:
        found, reason = None, str(error)
    if found is not None:
        return Job(request, found)
    return outcome.write(request, RunOutcome("failed", reason))


def prepare(request: JobRequest) -> None:
    """Prepare its folder for the job, without what an earlier job left there. OSError."""
    request.folder.mkdir(parents=True, exist_ok=True)
    write_spec(request.spec, request.folder)
    remove_leftovers(request.folder)
    for name in (JOB_FILE, JOB_LOG):
        (request.folder / name).unlink(missing_ok=True)
