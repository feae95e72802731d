"""Run parts of a sweep as jobs of a scheduler: submit them at once, follow them to their results, or cancel them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, RunKey
from scalebench.core.spec import RunSpec
from scalebench.slurm.commands import Slurm, in_allocation
from scalebench.slurm.submit import Submission, read_submission, submit_job
from scalebench.sweeps.console import Console
from scalebench.sweeps.time_estimate import estimate_s

if TYPE_CHECKING:
    from scalebench.runner.jobs import JobRequest, PlannedJob


class UserDetached(KeyboardInterrupt):
    """The user detached; the jobs keep running."""


def is_submitted(spec: RunSpec) -> bool:
    """Return whether this run becomes a job. Within an allocation, and where it is unsupported, it does not."""
    return spec.can_start and is_for_cluster(spec)


def is_for_cluster(spec: RunSpec) -> bool:
    """Return whether this run is one for a scheduler, and not within an allocation already."""
    hardware = spec.config.hardware
    return hardware.scheduler == "slurm" and not hardware.this_machine and not in_allocation()


def run_single(spec: RunSpec, folder: Path, console: Console, resume: bool) -> Result:
    """Return the result of a single run, done by the scheduler in `folder`."""
    from scalebench.runner.jobs import JobRequest, PlannedJob

    request = JobRequest(0, spec, folder)
    if resume and match_running({0: ((spec.fingerprint, spec.config.repeat), folder)}, find_running([spec], folder)):
        request.adopted = True
    jobs = [] if request.adopted else [PlannedJob(folder, [[request]])]
    ((_, result),) = follow_jobs(jobs, [request] if request.adopted else [], console, resume)
    return result


def find_running(specs: Sequence[RunSpec], root: Path) -> dict[Path, RunKey]:
    """Return the folders of runs at or below `root` whose jobs are pending or running, in the order of submission;
    none where nothing of `specs` is submitted."""
    from scalebench.runner.jobs import find_running_jobs

    return find_running_jobs(root, Slurm(_find_slurm_bin(specs))) if specs else {}


def match_running(runs: Mapping[int, tuple[RunKey, Path]], running: Mapping[Path, RunKey]) -> dict[int, Path]:
    """Return the folder of the running job of each of these runs that has one: its own folder, else the one that was
    submitted last. Raise InputError where a run's own folder is used by a job of another run."""
    matched: dict[int, Path] = {}
    for number, (key, own) in runs.items():
        folders = [folder for folder, other in running.items() if other == key]
        if folders:
            matched[number] = own if own in folders else folders[-1]
        elif own in running:
            raise InputError(f"{own} is where a job of another run still runs; choose another hydra.sweep.dir")
    own_folders = {own for _, own in runs.values()}
    if any(folder in own_folders and folder != runs[number][1] for number, folder in matched.items()):
        raise InputError(
            "jobs of this sweep still run under other numbers of it; give its arguments in the order that they had"
        )
    return matched


def follow_jobs(
    jobs: Sequence[PlannedJob], adopted: Sequence[JobRequest], console: Console, resume: bool
) -> Iterator[tuple[JobRequest, Result]]:
    """Submit these jobs and yield each of their runs with its result as it ends; those of `adopted` are followed and
    not submitted again.

    At Ctrl-C the user decides once whether to cancel the jobs: KeyboardInterrupt follows when their results have been
    yielded, UserDetached where they keep running. They do when the connection to the user is lost.
    """
    from scalebench.runner.jobs import JobFollower

    requests = [request for job in jobs for request in job.requests]
    specs = [request.spec for request in (*requests, *adopted)]
    slurm = Slurm(_find_slurm_bin(specs))
    limits = [spec.config.hardware.max_jobs for spec in specs if spec.config.hardware.max_jobs is not None]
    if not resume:
        _check_no_running_job([request.folder for request in requests], slurm)
    for request in requests:
        if request.folder.exists():  # by a program that is no job
            FolderLock(request.folder, of_ended_job=(request.folder / JOB_FILE).exists()).release()
    with console.show_queue() as on_change:
        follower = JobFollower(slurm, min(limits, default=None), on_change, submit=_submit)
        results = follower.follow(jobs, adopted)
        try:
            yield from results
            return
        except KeyboardInterrupt:
            process.cancelled.clear()  # handled; a user in a hurry presses Ctrl-C again
            is_lost = process.cancelled.by_hang_up and follower.unfinished
            if is_lost or not console.confirm_cancel(follower.unfinished, process.cancelled.by_user):
                raise UserDetached(_describe_resuming([*requests, *adopted], follower.unfinished)) from None
            follower.cancel()
        yield from results
    raise KeyboardInterrupt


def _submit(specs: Sequence[RunSpec], folder: Path) -> Submission:
    return submit_job(specs, folder, [estimate_s(spec)[1] for spec in specs])


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C while a result is handled; `follow_jobs` gets it afterwards, and asks the user."""
    try:
        with process.defer_signals():
            yield
    except KeyboardInterrupt:
        if not process.cancelled.is_set():
            raise


def _describe_resuming(requests: Sequence[JobRequest], left: int) -> str:
    jobs = "1 job keeps" if left == 1 else f"{left} jobs keep"
    where = f"hydra.run.dir={requests[0].folder} " if len(requests) == 1 else ""
    return f"{jobs} running; the same command with {where}resume=true waits for the rest"


def _check_no_running_job(folders: Sequence[Path], slurm: Slurm) -> None:
    """Raise InputError where a job of an earlier program still runs in one of these folders and would be disturbed."""
    from scalebench.runner.jobs import find_running_jobs

    for folder in folders:
        submission = read_submission(folder)
        if submission is not None and find_running_jobs(folder, slurm):
            raise InputError(
                f"job {submission.job_id} of {folder} still runs; resume=true waits for it, or choose another folder"
            )


def _find_slurm_bin(specs: Sequence[RunSpec]) -> str | None:
    bins = {spec.config.hardware.slurm.bin for spec in specs}
    if len(bins) > 1:
        raise InputError("hardware.slurm.bin differs between the runs of one sweep; a sweep goes to one cluster")
    return bins.pop()
