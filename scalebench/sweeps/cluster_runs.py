"""Run parts of a sweep as jobs of a scheduler: submit them at once, follow them to their results, or cancel them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock, clear_run_folder
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE
from scalebench.core.spec import HardwareSpec, RunSpec, write_spec
from scalebench.slurm.commands import Slurm, SlurmError, in_allocation
from scalebench.slurm.job_states import JobStatePoller
from scalebench.slurm.submit import Submission, read_submission, submit_job, submit_sweep
from scalebench.sweeps.console import Console
from scalebench.sweeps.time_estimate import estimate_s

if TYPE_CHECKING:
    from scalebench.runner.jobs import JobRequest

REPORT_LIMIT_S = 60.0  # for the job of a sweep to end after its last run
POLL_INTERVAL_S = 0.5


class UserDetached(KeyboardInterrupt):
    """The user detached; the jobs keep running."""


def is_submitted(spec: RunSpec) -> bool:
    """Return whether this run becomes a job. Within an allocation, and where it is unsupported, it does not."""
    return spec.can_start and is_for_cluster(spec)


def is_for_cluster(spec: RunSpec) -> bool:
    """Return whether this run is one for a scheduler, and not within an allocation already."""
    hardware = spec.config.hardware
    return hardware.scheduler == "slurm" and not hardware.this_machine and not in_allocation()


def is_one_job(specs: Sequence[RunSpec]) -> bool:
    """Return whether the sweep of these runs is to be submitted as one job. Raise InputError where it cannot be."""
    specs = [spec for spec in specs if spec.can_start]
    if not any(is_submitted(spec) and spec.config.hardware.slurm.one_job for spec in specs):
        return False
    if not all(map(is_submitted, specs)) or len({repr(spec.config.hardware.slurm) for spec in specs}) > 1:
        raise InputError("hardware.slurm.one_job=true: hardware.slurm differs between the runs of this sweep")
    return True


def run_single(spec: RunSpec, folder: Path, console: Console, resume: bool) -> Result:
    """Return the result of a single run, done by the scheduler in `folder`."""
    from scalebench.runner.jobs import JobRequest

    ((_, result),) = follow_jobs([JobRequest(0, spec, folder)], console, folder if resume else None)
    return result


def follow_jobs(
    requests: Sequence[JobRequest], console: Console, root: Path | None
) -> Iterator[tuple[JobRequest, Result]]:
    """Submit these runs and yield each with its result as it ends. Runs below `root` whose job still runs, since only
    the program that submitted it was killed, are followed and not submitted again.

    At Ctrl-C the user decides once whether to cancel the jobs: KeyboardInterrupt follows when their results have been
    yielded, UserDetached where they keep running. They do when the connection to the user is lost.
    """
    from scalebench.runner.jobs import find_running_jobs

    if not requests:
        return
    hardware = [request.spec.config.hardware for request in requests]
    slurm = Slurm(_find_slurm_bin(hardware))
    limits = [spec.max_jobs for spec in hardware if spec.max_jobs is not None]
    if root is not None:
        requests = _adopt_running_jobs(requests, find_running_jobs(root, slurm))
        for request in requests:
            if not request.adopted and request.folder != root:  # a run that was not successful
                clear_run_folder(request.folder, of_ended_job=(request.folder / JOB_FILE).exists())
    else:
        _check_no_running_job([request.folder for request in requests], slurm)
    for request in requests:
        if not request.adopted and request.folder.exists():  # by a program that is no job
            FolderLock(request.folder, of_ended_job=(request.folder / JOB_FILE).exists()).release()
    yield from _follow(slurm, min(limits, default=None), requests, None, console)


def follow_sweep(
    requests: Sequence[JobRequest],
    folder: Path,
    arguments: Sequence[str],
    console: Console,
    resume: bool,
    mark_folder: Callable[[], None] = lambda: None,
) -> Iterator[tuple[JobRequest, Result]]:
    """Submit the sweep of these runs as one job in `folder`, unless its job still runs, and yield each run with its
    result as it ends. `arguments` are those of the program within the job, which accepts only a folder that
    `mark_folder` has marked as a sweep's. At Ctrl-C as `follow_jobs`."""
    from scalebench.runner.jobs import find_sweep_job

    hardware = [request.spec.config.hardware for request in requests]
    slurm = Slurm(_find_slurm_bin(hardware))
    submission = find_sweep_job(folder, slurm)
    if submission is not None and not resume:
        raise InputError(_describe_running_job(submission.job_id, folder))
    if submission is None:
        of_ended_job = (folder / JOB_FILE).exists()
        for request in requests if resume else ():
            clear_run_folder(request.folder, of_ended_job)  # else its result would be taken for the new one
            request.folder.mkdir(parents=True, exist_ok=True)
            write_spec(request.spec, request.folder)  # by which the job gives it the same number
        mark_folder()
        try:
            specs = [request.spec for request in requests if request.spec.can_start]
            submission = submit_sweep(specs, folder, arguments, [estimate_s(spec)[1] for spec in specs])
        except SlurmError as error:
            raise InputError(f"the sweep could not be submitted: {error}") from error
    yield from _follow(slurm, None, requests, submission, console)
    _await_report(folder, slurm)


def _await_report(folder: Path, slurm: Slurm) -> None:
    """Wait for the end of the job of a sweep, which writes tables and a report at last."""
    from scalebench.runner.jobs import find_sweep_job

    poller, deadline_s = JobStatePoller(slurm), time.monotonic() + REPORT_LIMIT_S
    with contextlib.suppress(InputError):  # the results are there
        while find_sweep_job(folder, slurm, poller) is not None and time.monotonic() < deadline_s:
            if process.cancelled.wait(POLL_INTERVAL_S):
                return


def _follow(
    slurm: Slurm,
    max_jobs: int | None,
    requests: Sequence[JobRequest],
    submission: Submission | None,
    console: Console,
) -> Iterator[tuple[JobRequest, Result]]:
    from scalebench.runner.jobs import JobFollower

    with console.show_queue() as on_change:
        follower = JobFollower(
            slurm, max_jobs, on_change, submit=lambda spec, folder: submit_job(spec, folder, estimate_s(spec)[1])
        )
        results = follower.follow(requests, submission)
        try:
            yield from results
            return
        except KeyboardInterrupt:
            process.cancelled.clear()  # handled; a user in a hurry presses Ctrl-C again
            is_lost = process.cancelled.by_hang_up and follower.unfinished
            if is_lost or not console.confirm_cancel(follower.unfinished, process.cancelled.by_user):
                raise UserDetached(_describe_resuming(requests, submission, follower.unfinished)) from None
            follower.cancel()
        yield from results
    raise KeyboardInterrupt


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C while a result is handled; `follow_jobs` gets it afterwards, and asks the user."""
    try:
        with process.defer_signals():
            yield
    except KeyboardInterrupt:
        if not process.cancelled.is_set():
            raise


def _describe_resuming(requests: Sequence[JobRequest], submission: Submission | None, left: int) -> str:
    jobs = "1 job keeps" if left == 1 else f"{left} jobs keep"
    where = f"hydra.run.dir={requests[0].folder} " if len(requests) == 1 else ""
    if submission is not None:
        where = f"hydra.sweep.dir={requests[0].folder.parent} "
    return f"{jobs} running; the same command with {where}resume=true waits for the rest"


def _check_no_running_job(folders: Sequence[Path], slurm: Slurm) -> None:
    """Raise InputError where a job of an earlier program still runs in one of these folders and would be disturbed."""
    from scalebench.runner.jobs import find_running_jobs

    for folder in folders:
        submission = read_submission(folder)
        if submission is not None and find_running_jobs(folder, slurm):
            raise InputError(_describe_running_job(submission.job_id, folder))


def _describe_running_job(job_id: str, folder: Path) -> str:
    return f"job {job_id} of {folder} still runs; resume=true waits for it, or choose another folder"


def _adopt_running_jobs(requests: Sequence[JobRequest], running: dict[tuple[str, int], Path]) -> list[JobRequest]:
    """Return the requests, with the folder of the running job for each that has one. Raise InputError where a folder is
    used by a job of another run."""
    from scalebench.runner.jobs import JobRequest

    running_folders = {key: folder.absolute() for key, folder in running.items()}
    adopted = []
    for request in requests:
        folder = running_folders.get((request.spec.fingerprint, request.spec.config.repeat))
        if folder is None and request.folder in running_folders.values():
            raise InputError(
                f"{request.folder} is where a job of another run still runs; choose another hydra.sweep.dir"
            )
        adopted.append(request if folder is None else JobRequest(request.number, request.spec, folder, adopted=True))
    own_folders = {request.folder for request in requests}
    moved = (new.folder for new, old in zip(adopted, requests, strict=True) if new.folder != old.folder)
    if any(folder in own_folders for folder in moved):
        raise InputError(
            "jobs of this sweep still run under other numbers of it; give its arguments in the order that they had"
        )
    return adopted


def _find_slurm_bin(hardware: Sequence[HardwareSpec]) -> str | None:
    bins = {spec.slurm.bin for spec in hardware}
    if len(bins) > 1:
        raise InputError("hardware.slurm.bin differs between the runs of one sweep; a sweep goes to one cluster")
    return bins.pop()
