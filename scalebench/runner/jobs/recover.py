"""Jobs of a program that has ended: those that still run are found again, the others get their results. Layer 3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE
from scalebench.core.spec import read_spec
from scalebench.runner.jobs import outcome
from scalebench.runner.jobs.follow import POLL_INTERVAL_S, RESULT_LIMIT_S, JobWatcher, pause
from scalebench.runner.jobs.job import Job, JobRequest
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.job_states import Watcher, over
from scalebench.slurm.submit import read_submission

MAX_CLOCK_OFFSET_S = 600.0  # between hosts of one cluster; job numbers are used again, and by other clusters
Key = tuple[str, int]  # fingerprint, repeat


def find_running(
    root: Path, slurm: Slurm, *, watcher: JobWatcher | None = None, pause: Callable[[float], None] = pause
) -> dict[Key, Path]:
    """Folders of runs at or below `root` whose jobs are pending or running; of equal runs the one submitted last.

    A job that is over and left no result gets one here, so that its run does not look like one that was never
    submitted; one that the scheduler does not know may be another cluster's, and is left alone. InputError where the
    scheduler does not answer: to submit a run once more that still runs would spoil both.
    """
    jobs = _without_result(root)
    if not jobs:
        return {}
    try:
        states = (watcher or Watcher(slurm, interval_s=0.0)).look([job.id for job in jobs])
    except SlurmError as error:
        first = jobs[0]
        raise InputError(
            f"nobody can tell whether job {first.id} of {first.request.folder} still runs ({error}); "
            f"try again later, or remove its {JOB_FILE}"
        ) from error
    running, ended = {}, []
    for job in sorted(jobs, key=lambda job: job.submission.submitted_at_s):
        job.state = states.get(job.id)
        if job.state is None or not _is_same(job):
            continue
        if over(job.state):
            ended.append(job)
        else:
            running[job.request.spec.fingerprint, job.request.spec.config.repeat] = job.request.folder
    _write_results(ended, slurm, pause)
    return running


def _without_result(root: Path) -> list[Job]:
    """Return the jobs that have no result; folders that cannot be read are passed over."""
    jobs = []
    for path in sorted(root.rglob(JOB_FILE)):
        folder = path.parent
        try:
            submission, spec = read_submission(folder), read_spec(folder)
        except (OSError, ValueError):  # InputError is one
            continue
        if submission is not None and not (folder / RESULT_FILE).exists():
            jobs.append(Job(JobRequest(-1, spec, folder, adopted=True), submission))
    return jobs


def _is_same(job: Job) -> bool:
    submitted_at_s = None if job.state is None else job.state.submitted_at_s
    return submitted_at_s is None or abs(submitted_at_s - job.submission.submitted_at_s) < MAX_CLOCK_OFFSET_S


def _write_results(ended: list[Job], slurm: Slurm, pause: Callable[[float], None]) -> None:
    """Wait a little first: jobs that have just ended may have left a result that is not visible yet."""
    waited_s = 0.0
    while ended := [job for job in ended if outcome.read_left_result(job.request.folder, fresh=True) is None]:
        if waited_s >= RESULT_LIMIT_S:
            break
        pause(POLL_INTERVAL_S)
        waited_s += POLL_INTERVAL_S
    for job in ended:
        outcome.write_missing(job, outcome.names_from(slurm))
