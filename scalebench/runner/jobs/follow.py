"""Follows jobs to their results: checks their folders often, and queries the scheduler less often."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.cluster.job_states import JobState, JobStatePoller, is_over, why_never_starts
from scalebench.core import process
from scalebench.core.result import Result
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import outcome as job_results
from scalebench.runner.jobs.job import PlannedJob, QueueState, SubmittedJob
from scalebench.runner.jobs.submit import SubmitFunction, Submitter, adopt_job
from scalebench.runner.parent import RunRequest

POLL_INTERVAL_S = 0.5  # between two checks of the folders
RESULT_LIMIT_S = 10.0  # for a result to appear in a shared folder after the scheduler reports the job as over
# The same of a job that ended by itself, and so has left results: an NFS client may not see new files for a minute.
COMPLETED_RESULT_LIMIT_S = 90.0
EXPLAIN_LIMIT_S = 60.0  # for the scheduler to explain a result that is not ok
MAX_UNKNOWN = 8  # consecutive answers without a job that was in no answer before
CANCEL_LIMIT_S = 60.0  # for jobs to end after they are cancelled
SILENCE_LIMIT_S = 3600.0  # for the scheduler not to answer, while no result comes in either

JobResult = tuple[RunRequest, Result]


class JobWatcher(Protocol):
    """The part of JobStatePoller that is needed here."""

    queries: int

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]: ...


def sleep_until_cancelled(seconds: float) -> None:
    """Sleep; KeyboardInterrupt at Ctrl-C and SIGTERM."""
    if process.cancelled.wait(seconds):
        raise KeyboardInterrupt


def limit_result_wait_s(state: JobState | None) -> float:
    """Return how long to wait for the results of a job that is over."""
    return COMPLETED_RESULT_LIMIT_S if state is not None and state.state == "COMPLETED" else RESULT_LIMIT_S


class JobFollower:
    """The jobs of one program, at most `max_jobs` of them unfinished at a time (None: no limit).

    `on_change` is called with the state of the queue whenever that changes, and at every check while jobs run, since it
    may read their progress files.
    """

    def __init__(
        self,
        slurm: Slurm,
        max_jobs: int | None = None,
        on_change: Callable[[QueueState], None] = lambda queue: None,
        *,
        submit: SubmitFunction,
        watcher: JobWatcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = sleep_until_cancelled,
    ) -> None:
        self._slurm, self._max_jobs, self._on_change = slurm, max_jobs, on_change
        self._watcher = watcher or JobStatePoller(slurm, clock=clock)
        self._clock, self._pause = clock, pause
        self._submitter = Submitter(submit, clock)
        self._jobs: list[SubmittedJob] = []
        self._ready: deque[JobResult] = deque()
        self._done, self._next_check_s = 0, clock()
        self._reported: QueueState | None = None
        self._error: str | None = None  # why the scheduler did not answer last time
        self._silent_since_s = clock()
        self._cancelled_s: float | None = None

    @property
    def unfinished(self) -> int:
        """Return the number of jobs that have been submitted and have no result yet."""
        return len({job.id for job in self._jobs})

    def follow(self, jobs: Sequence[PlannedJob] = (), adopted: Sequence[RunRequest] = ()) -> Iterator[JobResult]:
        """Submit these jobs, and yield each of their runs with its result as soon as there is one, and so those of
        `adopted`, whose jobs were submitted before.

        InputError, before anything is submitted, for a folder that holds a result. A KeyboardInterrupt leaves all jobs
        as they are, and the iterator continues when it is called again.
        """
        self._submitter.add(jobs)
        for request in adopted:
            self._settle(request, adopt_job(request))
        return iter(self._next, None)

    def cancel(self) -> None:
        """End all jobs, and do not submit the runs that wait; follow's iterator then yields their results, and is not
        interrupted by the signal that led to this. The wait for a scheduler that does not answer is limited."""
        process.cancelled.clear()
        self._cancelled_s = self._clock()
        with process.defer_signals():
            while self._submitter.waiting:
                outcome = RunOutcome("cancelled", "cancelled before it was submitted")
                for request in self._submitter.waiting.popleft().requests:
                    self._settle(request, job_results.write_result_for(request, outcome))
        self._scancel([job for job in self._jobs if job.over_s is None])

    def _next(self) -> JobResult | None:
        while not self._ready:
            if not self._submitter.waiting and not self._jobs:
                self._report()
                return None
            submitted = self._submit_one()
            if self._clock() >= self._next_check_s:
                self._check_jobs()
                self._next_check_s = self._clock() + POLL_INTERVAL_S
                self._report()
            if not self._ready and not submitted:
                self._pause(POLL_INTERVAL_S)
        return self._ready.popleft()

    def _submit_one(self) -> bool:
        full = self._max_jobs is not None and self.unfinished >= self._max_jobs
        if full or not self._submitter.ready:
            return False
        with process.defer_signals():  # a job whose id was lost would go on unnoticed
            submitted = self._submitter.next()
            for request, job in submitted:
                self._settle(request, job)
        return bool(submitted)

    def _check_jobs(self) -> None:
        self._query()
        with process.defer_signals():
            for job in list(self._jobs):
                result = self._final_result(job)
                if result is not None:
                    self._jobs.remove(job)
                    self._settle(job.request, result)

    def _query(self) -> None:
        """Query the states of all jobs; the watcher decides whether it is time for that."""
        ids = list(dict.fromkeys(job.id for job in self._jobs))
        before = self._watcher.queries
        try:
            states = self._watcher.look(ids) if ids else {}
        except SlurmError as error:
            self._silent_since_s = self._silent_since_s if self._error else self._clock()
            self._error = str(error)
            return
        if self._watcher.queries == before:
            return
        self._error = None
        for job in self._jobs:
            if (state := states.get(job.id)) is None:
                job.unknown_count += 1
                # The watcher itself does not leave out a job too early.
                has_ended = job.state is not None or job.unknown_count >= MAX_UNKNOWN
            else:
                job.state, job.unknown_count, has_ended = state, 0, is_over(state)
                why = None if has_ended or job.never_starts else why_never_starts(state)
                if why is not None and self._scancel([job]):
                    job.never_starts = why
            if has_ended and job.over_s is None:
                job.over_s = self._clock()
        if self._cancelled_s is not None:  # the scheduler may have refused an earlier scancel
            self._scancel([job for job in self._jobs if job.over_s is None and not job.cancelled])

    def _final_result(self, job: SubmittedJob) -> Result | None:
        """Return the result of a job, once it will not change any more."""
        now_s = self._clock()
        if job.result is None:
            job.result, job.result_s = job_results.read_job_result(job.request.folder, fresh=not job.pending), now_s
        result = job.result
        if result is not None:
            waits = (
                job_results.scheduler_may_explain(result)
                and job.over_s is None
                and now_s - job.result_s < EXPLAIN_LIMIT_S
            )
            return None if waits else job_results.amend_result(result, job, self._slurm)
        if job.never_starts is not None:
            return job_results.write_result_for(
                job.request, RunOutcome("unsupported", job.never_starts), self._slurm, job
            )
        if job.over_s is not None:  # a job that never ran has left nothing
            may_appear = job.state is None or not is_over(job.state) or job.ran
            if may_appear and now_s - job.over_s < limit_result_wait_s(job.state):
                return None
            return job_results.write_missing_result(job, self._slurm)
        # The scheduler has reported nothing of the job for too long.
        if self._cancelled_s is not None and now_s - self._cancelled_s >= CANCEL_LIMIT_S:
            silence = f"after {CANCEL_LIMIT_S:g} s SLURM still did not report job {job.id} as over"
            outcome = RunOutcome("cancelled", f"cancelled; {silence}: scancel {job.id}")
        elif self._error is not None and now_s - self._silent_since_s >= SILENCE_LIMIT_S:
            reason = f"no news of job {job.id} for {SILENCE_LIMIT_S / 60:g} min: {self._error}"
            outcome = RunOutcome("failed", reason)
        else:
            return None
        return job_results.write_result_for(job.request, outcome, self._slurm, job)

    def _scancel(self, jobs: Sequence[SubmittedJob]) -> bool:
        """Cancel jobs; return whether the scheduler accepted that."""
        if not jobs:
            return True
        try:
            self._slurm.run("scancel", *dict.fromkeys(job.id for job in jobs))
        except SlurmError as error:
            self._error = str(error)
            return False
        for job in jobs:
            job.cancelled = True
        return True

    def _settle(self, request: RunRequest, job: SubmittedJob | Result) -> None:
        if isinstance(job, SubmittedJob):
            self._jobs.append(job)
        else:
            self._done += 1
            self._ready.append((request, job))

    def _report(self) -> None:
        waiting = sum(len(job.requests) for job in self._submitter.waiting)
        pending = [job for job in self._jobs if job.pending]
        reasons = Counter(job.state.reason for job in pending if job.state is not None and job.state.reason)
        now = QueueState(
            waiting,
            len(pending),
            reason=next((reason for reason, _ in reasons.most_common(1)), None),
            runs=tuple(job.request for job in self._jobs if not job.pending),
            over=self._done,
            error=self._error,
            limit=self._submitter.limit if waiting else None,
        )
        if now.runs or now != self._reported:
            self._reported = now
            self._on_change(now)
