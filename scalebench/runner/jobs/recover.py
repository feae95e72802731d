"""Recovers the jobs of a program that has ended: finds those that still run, and writes the results of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalebench.cluster.commands import Slurm, SlurmError
from scalebench.cluster.job_states import JobStatePoller, is_over
from scalebench.cluster.jobset import is_on_pods
from scalebench.cluster.kubectl import Kubectl, KubectlError
from scalebench.cluster.submit import read_submission
from scalebench.core.errors import InputError
from scalebench.core.run_folder import JOB_FILE, RESULT_FILE, RunKey, is_owned
from scalebench.core.spec import read_spec
from scalebench.runner.jobs import outcome
from scalebench.runner.jobs.follow import POLL_INTERVAL_S, JobWatcher, limit_result_wait_s, sleep_until_cancelled
from scalebench.runner.jobs.job import SubmittedJob
from scalebench.runner.parent import RunRequest

MAX_CLOCK_OFFSET_S = 600.0  # between hosts of one cluster; job ids are reused, and other clusters have the same


def find_running_jobs(
    root: Path,
    slurm: Slurm,
    *,
    watcher: JobWatcher | None = None,
    pause: Callable[[float], None] = sleep_until_cancelled,
) -> dict[Path, RunKey]:
    """Return the folders of runs at or below `root` whose jobs are pending or running, in the order of submission.

    A job that is over and left no result gets one here, so that its run does not look as if it was never submitted; a
    job that the scheduler does not list may be another cluster's, and is left alone. InputError where the scheduler
    does not answer: submitting a run again while it still runs would spoil both.
    """
    jobs = _without_result(root, on_pods=False)
    if not jobs:
        return {}
    try:
        states = (watcher or JobStatePoller(slurm, interval_s=0.0)).look(list(dict.fromkeys(job.id for job in jobs)))
    except SlurmError as error:
        raise _unknown(jobs[0], error) from error
    running, ended = {}, []
    for job in jobs:
        job.state = states.get(job.id)
        if job.state is None:
            continue
        listed_s = job.state.submitted_at_s
        if listed_s is not None and abs(listed_s - job.submission.submitted_at_s) >= MAX_CLOCK_OFFSET_S:
            continue  # another job with the same number
        if is_over(job.state):
            ended.append(job)
        else:
            running[job.request.folder.absolute()] = job.request.spec.fingerprint, job.request.spec.config.repeat
    waited_s = 0.0  # for results that jobs left and that are not visible yet
    while ended := [job for job in ended if outcome.read_job_result(job.request.folder, fresh=True) is None]:
        if all(waited_s >= limit_result_wait_s(job.state) for job in ended):
            break
        pause(POLL_INTERVAL_S)
        waited_s += POLL_INTERVAL_S
    for job in ended:
        outcome.write_missing_result(job, slurm)
    return running


def find_jobsets(root: Path) -> dict[Path, RunKey]:
    """Return the folders of runs at or below `root` whose JobSets exist. One that is over is followed as well: what it
    has done is in its log. InputError as for jobs of SLURM."""
    jobs = _without_result(root, on_pods=True)
    try:
        names = {job.id: job.request.spec.config.hardware.kubernetes.namespace for job in jobs}
        present = {name for name, namespace in names.items() if Kubectl(namespace).has_jobset(name)}
    except KubectlError as error:
        raise _unknown(jobs[0], error) from error
    runs = (job.request for job in jobs if job.id in present)
    return {run.folder.absolute(): (run.spec.fingerprint, run.spec.config.repeat) for run in runs}


def _unknown(job: SubmittedJob, error: Exception) -> InputError:
    return InputError(
        f"it is unknown whether job {job.id} of {job.request.folder} still runs ({error}); "
        f"try again later, or remove its {JOB_FILE}"
    )


def _without_result(root: Path, on_pods: bool) -> list[SubmittedJob]:
    """Return the jobs of this user, or JobSets, that have no result, in the order of submission; folders that cannot be
    read are skipped."""
    jobs = []
    for path in sorted(root.rglob(JOB_FILE)):
        folder = path.parent
        if not (is_owned(path) and is_owned(folder)):
            continue
        try:
            submission, spec = read_submission(folder), read_spec(folder)
        except (OSError, ValueError):  # InputError is one
            continue
        if submission is not None and is_on_pods(spec) == on_pods and not (folder / RESULT_FILE).exists():
            jobs.append(SubmittedJob(RunRequest(-1, spec, folder), submission))
    return sorted(jobs, key=lambda job: job.submission.submitted_at_s)
