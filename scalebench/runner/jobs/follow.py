"""Follows jobs to their results: looks into their folders, and queries the scheduler now and then. Layer 3."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from scalebench.core import process
from scalebench.core.result import Result
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import outcome as verdict
from scalebench.runner.jobs.job import Job, JobRequest, Queue, queue
from scalebench.runner.jobs.submit import Submit, Submitter, adopt
from scalebench.slurm import submit
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.job_states import JobState, Watcher, never, over

POLL_INTERVAL_S = 0.5  # between two looks into the folders
RESULT_LIMIT_S = 10.0  # that a result has to show up in a shared folder once the scheduler reports the job as over
EXPLAIN_LIMIT_S = 60.0  # that the scheduler has to explain a result that is not ok
MAX_UNKNOWN = 8  # answers, one after the other, without a job that was in no answer before
CANCEL_LIMIT_S = 60.0  # that jobs have to end once they are cancelled
SILENCE_LIMIT_S = 3600.0  # that the scheduler may be silent while no result comes in either

JobResult = tuple[JobRequest, Result]


class JobWatcher(Protocol):
    """The part of slurm.watcher.Watcher that is needed here."""

    queries: int

    def look(self, job_ids: Sequence[str]) -> dict[str, JobState]: ...


def pause(seconds: float) -> None:
    """Sleep; KeyboardInterrupt at Ctrl-C and SIGTERM."""
    if process.cancelled.wait(seconds):
        raise KeyboardInterrupt


class Cluster:
    """The jobs of one program, at most `max_jobs` of them unfinished at a time (None: no limit).

    `on_change` gets the state of the queue whenever that changes, and at every look while some of them run, whose
    progress files it may want to read.
    """

    def __init__(
        self,
        slurm: Slurm,
        max_jobs: int | None = None,
        on_change: Callable[[Queue], None] = lambda queue: None,
        *,
        submit: Submit = submit.submit,
        watcher: JobWatcher | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = pause,
    ) -> None:
        self._slurm, self._max_jobs, self._on_change = slurm, max_jobs, on_change
        self._watcher = watcher or Watcher(slurm, clock=clock)
        self._clock, self._pause = clock, pause
        self._names = verdict.names_from(slurm)
        self._submitter = Submitter(submit, clock)
        self._jobs: list[Job] = []
        self._ready: deque[JobResult] = deque()
        self._done, self._look_at_s = 0, clock()
        self._reported: Queue | None = None
        self._trouble: str | None = None
        self._silent_since_s = clock()
        self._cancelled_s: float | None = None

    @property
    def unfinished(self) -> int:
        """Jobs that have been submitted and are not over."""
        return len(self._jobs)

    def follow(self, requests: Sequence[JobRequest] = ()) -> Iterator[JobResult]:
        """Submit these runs, and yield each with its result as soon as there is one; adopted ones are only followed.

        InputError, before anything is submitted, for a folder that holds a result. A KeyboardInterrupt leaves all jobs
        as they are, and the iterator goes on where it was when it is called again.
        """
        self._submitter.add([request for request in requests if not request.adopted])
        for request in requests:
            if request.adopted:
                self._take(request, adopt(request))
        return iter(self._next, None)

    def cancel(self) -> None:
        """End all jobs, and do not submit the runs that wait; follow's iterator then yields their results, and is not
        interrupted by the signal that led to this. A scheduler that does not answer is not waited for without end."""
        process.cancelled.clear()
        self._cancelled_s = self._clock()
        with process.signals_later():
            while self._submitter.waiting:
                request = self._submitter.waiting.popleft()
                outcome = RunOutcome("cancelled", "cancelled before it was submitted")
                self._settle(request, verdict.write(request, outcome))
        self._scancel([job for job in self._jobs if job.over_s is None])

    def _next(self) -> JobResult | None:
        while not self._ready:
            if not self._submitter.waiting and not self._jobs:
                self._report()
                return None
            submitted = self._submit_one()
            if self._clock() >= self._look_at_s:
                self._look()
                self._look_at_s = self._clock() + POLL_INTERVAL_S
                self._report()
            if not self._ready and not submitted:
                self._pause(POLL_INTERVAL_S)
        return self._ready.popleft()

    def _submit_one(self) -> bool:
        full = self._max_jobs is not None and len(self._jobs) >= self._max_jobs
        if full or not self._submitter.ready:
            return False
        with process.signals_later():  # a job whose number got lost would run on unseen
            request, made = self._submitter.next()
            self._take(request, made)
        return made is not None

    def _take(self, request: JobRequest, made: Job | Result | None) -> None:
        if isinstance(made, Job):
            self._jobs.append(made)
        elif made is not None:
            self._settle(request, made)

    def _look(self) -> None:
        self._query()
        with process.signals_later():
            for job in list(self._jobs):
                row = self._row(job)
                if row is not None:
                    submit.clean(job.request.folder)
                    self._jobs.remove(job)
                    self._settle(job.request, row)

    def _query(self) -> None:
        """Query the state of every job, where it is time for it."""
        ids = [job.id for job in self._jobs]
        before = self._watcher.queries
        try:
            found = self._watcher.look(ids) if ids else {}
        except SlurmError as error:
            self._silent_since_s = self._silent_since_s if self._trouble else self._clock()
            self._trouble = str(error)
            return
        if self._watcher.queries == before:
            return
        self._trouble = None
        for job in self._jobs:
            self._update(job, found.get(job.id))
        if self._cancelled_s is not None:  # those that it did not accept the first time
            self._scancel([job for job in self._jobs if job.over_s is None and not job.cancelled])

    def _update(self, job: Job, state: JobState | None) -> None:
        if state is None:
            job.unknown += 1
            gone = job.state is not None or job.unknown >= MAX_UNKNOWN  # the watcher itself drops none early
        else:
            job.state, job.unknown = state, 0
            gone = over(state)
            why = None if gone or job.never else never(state)
            if why is not None and self._scancel([job]):
                job.never = why
        if gone and job.over_s is None:
            job.over_s = self._clock()

    def _row(self, job: Job) -> Result | None:
        """Return the result of a job, once there is one that will not change any more."""
        now_s = self._clock()
        if job.result is None:
            job.result, job.result_s = verdict.read_left_result(job.request.folder, fresh=not job.pending), now_s
        row = job.result
        if row is not None:
            waits = verdict.may_change(row) and job.over_s is None and now_s - job.result_s < EXPLAIN_LIMIT_S
            return None if waits else verdict.amend(row, job, self._names)
        if job.never is not None:
            return self._made(job, RunOutcome("unsupported", job.never))
        if job.over_s is not None:  # a job that never ran has left nothing
            in_time = job.state is None or not over(job.state) or job.ran
            return None if in_time and now_s - job.over_s < RESULT_LIMIT_S else verdict.write_missing(job, self._names)
        return self._given_up(job, now_s)

    def _given_up(self, job: Job, now_s: float) -> Result | None:
        """Give up a job of which the scheduler reports nothing any more."""
        if self._cancelled_s is not None and now_s - self._cancelled_s >= CANCEL_LIMIT_S:
            words = (
                f"cancelled; after {CANCEL_LIMIT_S:g} s SLURM had not said that job {job.id} is over: scancel {job.id}"
            )
            outcome = RunOutcome("cancelled", words)
        elif self._trouble is not None and now_s - self._silent_since_s >= SILENCE_LIMIT_S:
            words = f"nothing was heard of job {job.id} for {SILENCE_LIMIT_S / 60:g} min: {self._trouble}"
            outcome = RunOutcome("failed", words)
        else:
            return None
        return self._made(job, outcome)

    def _made(self, job: Job, outcome: RunOutcome) -> Result:
        return verdict.write(job.request, outcome, scheduler=verdict.record(job, self._names, None))

    def _scancel(self, jobs: Sequence[Job]) -> bool:
        """Return whether the scheduler accepted it."""
        if not jobs:
            return True
        try:
            self._slurm.run("scancel", *(job.id for job in jobs))
        except SlurmError as error:
            self._trouble = str(error)
            return False
        for job in jobs:
            job.cancelled = True
        return True

    def _settle(self, request: JobRequest, row: Result) -> None:
        self._done += 1
        self._ready.append((request, row))

    def _report(self) -> None:
        now = queue(len(self._submitter.waiting), self._jobs, self._done, self._trouble)
        if now.runs or now != self._reported:
            self._reported = now
            self._on_change(now)
