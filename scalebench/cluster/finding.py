"""Jobs of a program that is no more: those that go on are found again, the others get their rows. Layer 3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalebench.cluster import verdict
from scalebench.cluster.following import GRACE_S, LOOK_S, Asks, pause
from scalebench.cluster.queue import Job, JobRequest
from scalebench.run_folder import JOB_FILE, RESULT_FILE
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.states import over
from scalebench.slurm.submission import read_submission
from scalebench.slurm.watcher import Watcher
from scalebench.spec import InputError, read_spec

CLOCKS_APART_S = 600.0  # of hosts that know of one submission; numbers of jobs are used again, and by other clusters
Key = tuple[str, int]  # fingerprint, repeat


def find_running(
    root: Path, slurm: Slurm, *, watcher: Asks | None = None, pause: Callable[[float], None] = pause
) -> dict[Key, Path]:
    """Folders of runs at or below `root` whose jobs are pending or running; of equal runs the one submitted last.

    A job that is over and left no row gets it here, so that nobody takes its run for one that never was; one that
    nobody knows may be another cluster's, and is let be. InputError where the scheduler does not answer: to submit a
    run once more that still runs would spoil both.
    """
    jobs = _without_rows(root)
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
        if job.state is None or not _is_meant(job):
            continue
        if over(job.state):
            ended.append(job)
        else:
            running[job.request.spec.fingerprint, job.request.spec.config.repeat] = job.request.folder
    _leave_rows(ended, slurm, pause)
    return running


def _without_rows(root: Path) -> list[Job]:
    """What was submitted and has no row; folders that cannot be read are passed over."""
    found = []
    for path in sorted(root.rglob(JOB_FILE)):
        folder = path.parent
        try:
            submission, spec = read_submission(folder), read_spec(folder)
        except (OSError, ValueError):  # InputError is one
            continue
        if submission is not None and not (folder / RESULT_FILE).exists():
            found.append(Job(JobRequest(-1, spec, folder, adopted=True), submission))
    return found


def _is_meant(job: Job) -> bool:
    told_s = None if job.state is None else job.state.submitted_at_s
    return told_s is None or abs(told_s - job.submission.submitted_at_s) < CLOCKS_APART_S


def _leave_rows(ended: list[Job], slurm: Slurm, pause: Callable[[float], None]) -> None:
    """Those that have just ended may have left one that is not to be seen yet."""
    waited_s = 0.0
    while ended := [job for job in ended if verdict.read_left_result(job.request.folder, fresh=True) is None]:
        if waited_s >= GRACE_S:
            break
        pause(LOOK_S)
        waited_s += LOOK_S
    for job in ended:
        verdict.write_missing(job, verdict.names_from(slurm))
