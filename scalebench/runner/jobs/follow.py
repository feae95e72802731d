"""Submits jobs of SLURM and follows them to their results; finds those of a program that has ended."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from scalebench.cluster.commands import JobRefused, Slurm, SlurmError, SlurmUnreachable, SubmitLimit
from scalebench.cluster.job_states import JobState, is_over, query_jobs, why_never_starts
from scalebench.cluster.jobset import is_on_pods
from scalebench.cluster.kubectl import Kubectl, KubectlError
from scalebench.cluster.submit import Submission, read_submission, write_submission
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.json_files import write_json
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_RUNS_FILE, RESULT_FILE, RunKey, is_owned, remove_leftovers
from scalebench.core.spec import RunSpec, read_spec, write_spec
from scalebench.runner.collect import RunOutcome
from scalebench.runner.jobs import job as jobs_of_slurm
from scalebench.runner.jobs.job import Job, JobRuns, PlannedJob, QueueState
from scalebench.runner.parent import RunRequest

POLL_INTERVAL_S = 0.5  # between two checks of the folders
QUERY_INTERVAL_S = 5.0  # between two queries of the scheduler
RETRY_PAUSES_S = (2.0, 5.0, 10.0, 20.0)  # before further tries to submit; the controller may just be restarting
LIMIT_PAUSE_S = 30.0  # before the next try where the user or the cluster has too many jobs
RESULT_LIMIT_S = 10.0  # for a result to appear in a shared folder after the scheduler reports the job as over
# The same of a job that ended by itself, and so has left results: an NFS client may not see new files for a minute.
COMPLETED_RESULT_LIMIT_S = 90.0
EXPLAIN_LIMIT_S = 60.0  # for the scheduler to explain a result that is not ok
MAX_UNLISTED = 8  # consecutive answers without a job before it counts as lost: accounting may be a little behind
CANCEL_LIMIT_S = 60.0  # for jobs to end after they are cancelled
SILENCE_LIMIT_S = 3600.0  # for the scheduler not to answer, while no result comes in either
MAX_CLOCK_OFFSET_S = 600.0  # between hosts of one cluster; job ids are reused, and other clusters have the same

JobResult = tuple[RunRequest, Result]
SubmitFunction = Callable[[Sequence[RunSpec], Path], Submission]


def sleep_until_cancelled(seconds: float) -> None:
    """Sleep; KeyboardInterrupt at Ctrl-C and SIGTERM."""
    if process.cancelled.wait(seconds):
        raise KeyboardInterrupt


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
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = sleep_until_cancelled,
    ) -> None:
        self._slurm, self._max_jobs, self._on_change, self._submit = slurm, max_jobs, on_change, submit
        self._clock, self._pause = clock, pause
        self._waiting: deque[PlannedJob] = deque()
        self._limit: str | None = None  # on submitted jobs, because of which the first one waits
        self._tries, self._next_submission_s = 0, clock()
        self._jobs: list[Job] = []
        self._ready: deque[JobResult] = deque()
        self._done, self._next_check_s, self._next_query_s = 0, clock(), clock()
        self._reported: QueueState | None = None
        self._error: str | None = None  # why the scheduler did not answer last time
        self._last_news_s = clock()  # when it answered last, or a result came in
        self._cancelled_s: float | None = None

    @property
    def unfinished(self) -> int:
        """Return the number of jobs that have been submitted and have runs without a result."""
        return len(self._jobs)

    def follow(self, jobs: Sequence[PlannedJob] = (), adopted: Sequence[RunRequest] = ()) -> Iterator[JobResult]:
        """Submit these jobs, and yield each of their runs with its result as soon as there is one, and so those of
        `adopted`, whose jobs were submitted before. A KeyboardInterrupt leaves all jobs as they are, and the iterator
        continues when it is called again."""
        self._waiting += jobs
        for request in adopted:
            self._adopt(request)
        return iter(self._next, None)

    def cancel(self) -> None:
        """End all jobs, and do not submit the runs that wait; follow's iterator then yields their results, and is not
        interrupted by the signal that led to this. The wait for a scheduler that does not answer is limited."""
        process.cancelled.clear()
        self._cancelled_s = self._clock()
        with process.defer_signals():
            while self._waiting:
                self._settle(
                    self._waiting.popleft().requests, RunOutcome("cancelled", "cancelled before it was submitted")
                )
        self._scancel([job for job in self._jobs if job.over_s is None])

    def _next(self) -> JobResult | None:
        while not self._ready:
            if not self._waiting and not self._jobs:
                self._report()
                return None
            submitted = self._submit_next()
            if self._clock() >= self._next_check_s:
                self._query()
                with process.defer_signals():
                    for job in [*self._jobs]:
                        self._check(job)
                self._next_check_s = self._clock() + POLL_INTERVAL_S
                self._report()
            if not self._ready and not submitted:
                self._pause(POLL_INTERVAL_S)
        return self._ready.popleft()

    def _settle(self, requests: Sequence[RunRequest], outcome: RunOutcome) -> None:
        """Write the results of runs that have no job."""
        self._ready += [(each, jobs_of_slurm.write_result_for(each, outcome)) for each in requests]
        self._done += len(requests)

    # Jobs are submitted.

    def _submit_next(self) -> bool:
        """Submit the first job that waits, if it is time for that; return whether it waits no longer."""
        is_full = self._max_jobs is not None and self.unfinished >= self._max_jobs
        if not self._waiting or is_full or self._clock() < self._next_submission_s:
            return False
        job = self._waiting[0]
        with process.defer_signals():  # a job whose id was lost would go on unnoticed
            try:
                prepare_job_folders(job)
                submission = self._submit([request.spec for request in job.requests], job.folder)
                for request in job.requests:
                    own = replace(submission, job_folder=os.path.relpath(job.folder, request.folder))
                    write_submission(own, request.folder)
            except SubmitLimit as error:
                self._limit, self._next_submission_s = str(error), self._clock() + LIMIT_PAUSE_S
                return False
            except JobRefused as error:
                self._settle(job.requests, RunOutcome("unsupported", str(error)))
            except (SlurmError, InputError, OSError) as error:
                # After all pauses each of the remaining jobs has one try.
                if isinstance(error, SlurmUnreachable) and self._tries < len(RETRY_PAUSES_S):
                    self._next_submission_s = self._clock() + RETRY_PAUSES_S[self._tries]
                    self._tries += 1
                    return False
                self._settle(job.requests, RunOutcome("failed", f"it could not be submitted: {error}"))
            else:
                self._tries, self._limit = 0, None
                self._jobs.append(Job(submission, job.folder, job.requests))
            self._waiting.popleft()
        return True

    def _adopt(self, request: RunRequest) -> None:
        """Follow the job of a run that an earlier program submitted; the run has failed where that left no job.json."""
        reason = f"{request.folder} holds no {JOB_FILE}, so that its job cannot be followed"
        try:
            submission = read_submission(request.folder)
        except InputError as error:
            submission, reason = None, str(error)
        if submission is None:
            self._settle([request], RunOutcome("failed", reason))
        elif job := next((job for job in self._jobs if job.id == submission.job_id), None):
            job.runs.append(request)
        else:
            folder = Path(os.path.normpath(request.folder / submission.job_folder))
            self._jobs.append(Job(submission, folder, [request]))

    # They are followed.

    def _query(self) -> None:
        """Query the states of all jobs, if it is time for that."""
        jobs = [job for job in self._jobs if job.over_s is None]
        now_s = self._clock()
        if not jobs:
            self._last_news_s = now_s
        if not jobs or now_s < self._next_query_s:
            return
        self._next_query_s = now_s + QUERY_INTERVAL_S
        try:
            states = query_jobs(self._slurm, [job.id for job in jobs])
        except SlurmError as error:
            self._error = str(error)
            return
        self._error, self._last_news_s = None, now_s
        for job in jobs:
            job.unlisted = 0 if job.id in states else job.unlisted + 1
            job.state = states.get(job.id, job.state)
            if job.unlisted >= MAX_UNLISTED or (job.state is not None and is_over(job.state)):
                job.over_s = now_s
            elif job.state is not None and job.never_starts is None:
                why = why_never_starts(job.state)
                job.never_starts = why if why is not None and self._scancel([job]) else None
        if self._cancelled_s is not None:  # the scheduler may have refused an earlier scancel
            self._scancel([job for job in jobs if job.over_s is None and not job.cancelled])

    def _check(self, job: Job) -> None:
        """Take the results of the runs of a job that will not change any more."""
        for request in [*job.runs]:
            if (result := self._final_result(job, request)) is not None:
                job.runs.remove(request)
                self._done += 1
                self._last_news_s = self._clock()
                self._ready.append((request, result))
        if not job.runs:
            self._jobs.remove(job)

    def _final_result(self, job: Job, request: RunRequest) -> Result | None:
        now_s = self._clock()
        result = jobs_of_slurm.read_job_result(request.folder)
        if result is not None:
            waited_s = now_s - job.result_s.setdefault(request.folder, now_s)
            may_change = result.status in jobs_of_slurm.UNEXPLAINED and job.over_s is None
            if may_change and waited_s < EXPLAIN_LIMIT_S:
                return None
            return jobs_of_slurm.amend_result(result, job, request, self._slurm)
        if job.never_starts is not None:
            outcome = RunOutcome("unsupported", job.never_starts)
        elif job.over_s is not None:  # a job that never ran has left nothing
            is_completed = job.state is not None and job.state.state == "COMPLETED"
            limit_s = COMPLETED_RESULT_LIMIT_S if is_completed else RESULT_LIMIT_S
            if job.ran and now_s - job.over_s < limit_s:
                return None
            return jobs_of_slurm.write_missing_result(job, request, self._slurm)
        # The scheduler has not reported its end.
        elif self._cancelled_s is not None and now_s - self._cancelled_s >= CANCEL_LIMIT_S:
            silence = f"after {CANCEL_LIMIT_S:g} s SLURM still did not report job {job.id} as over"
            outcome = RunOutcome("cancelled", f"cancelled; {silence}: scancel {job.id}")
        elif self._error is not None and now_s - self._last_news_s >= SILENCE_LIMIT_S:
            outcome = RunOutcome("failed", f"no news of job {job.id} for {SILENCE_LIMIT_S / 60:g} min: {self._error}")
        else:
            return None
        return jobs_of_slurm.write_result_for(request, outcome, self._slurm, job)

    def _scancel(self, jobs: Sequence[Job]) -> bool:
        """Cancel jobs; return whether the scheduler accepted that."""
        try:
            if jobs:
                self._slurm.run("scancel", *(job.id for job in jobs))
        except SlurmError as error:
            self._error = str(error)
            return False
        for job in jobs:
            job.cancelled = True
        return True

    def _report(self) -> None:
        pending = [job for job in self._jobs if job.pending]
        reasons = Counter(job.state.reason for job in pending if job.state is not None and job.state.reason)
        now = QueueState(
            sum(len(job.requests) for job in self._waiting),
            sum(len(job.runs) for job in pending),
            reason=next((reason for reason, _ in reasons.most_common(1)), None),
            runs=tuple(request for job in self._jobs if not job.pending for request in job.runs),
            over=self._done,
            error=self._error,
            limit=self._limit if self._waiting else None,
        )
        if now.runs or now != self._reported:
            self._reported = now
            self._on_change(now)


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


# Jobs of a program that has ended.


def find_running_jobs(root: Path, slurm: Slurm | None) -> dict[Path, RunKey]:
    """Return the folders of runs at or below `root` whose jobs are pending or running, in the order of submission: of
    SLURM, or where that is None, whose JobSets exist. A JobSet that is over is followed as well: what it has done is in
    its log. Results of other users and folders that cannot be read are skipped.

    A job that the scheduler does not list may be another cluster's. InputError where the scheduler does not answer:
    submitting a run again while it still runs would spoil both.
    """
    submitted: list[tuple[Submission, Path, RunSpec]] = []
    for path in sorted(root.rglob(JOB_FILE)):
        folder = path.parent
        if not (is_owned(path) and is_owned(folder)) or (folder / RESULT_FILE).exists():
            continue
        with contextlib.suppress(OSError, ValueError):  # InputError is one
            submission, spec = read_submission(folder), read_spec(folder)
            if submission is not None and is_on_pods(spec) == (slurm is None):
                submitted.append((submission, folder, spec))
    submitted.sort(key=lambda each: each[0].submitted_at_s)
    try:
        if slurm is None:
            names = {own.job_id: spec.config.hardware.kubernetes.namespace for own, _, spec in submitted}
            present = {name for name, namespace in names.items() if Kubectl(namespace).has_jobset(name)}
            running = [each for each in submitted if each[0].job_id in present]
        else:
            states = query_jobs(slurm, [own.job_id for own, _, _ in submitted]) if submitted else {}
            running = [each for each in submitted if _is_running(each[0], states.get(each[0].job_id))]
    except (SlurmError, KubectlError) as error:
        raise InputError(
            f"it is unknown whether job {submitted[0][0].job_id} of {submitted[0][1]} still runs ({error}); "
            f"try again later, or remove its {JOB_FILE}"
        ) from error
    return {folder.absolute(): (spec.fingerprint, spec.config.repeat) for _, folder, spec in running}


def _is_running(submission: Submission, state: JobState | None) -> bool:
    """Return whether this is the state of the job that was submitted, and not of another with its number, and that is
    not over."""
    if state is None or is_over(state):
        return False
    offset_s = (state.submitted_at_s or submission.submitted_at_s) - submission.submitted_at_s
    return abs(offset_s) < MAX_CLOCK_OFFSET_S
