"""Run parts of a sweep as jobs of a scheduler: submit them at once, follow them to their results, or cancel them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.cluster.commands import Slurm, find_site
from scalebench.cluster.jobset import is_on_pods
from scalebench.cluster.submit import Submission, read_submission, submit_job
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock, clear_run_folder
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, RunKey, copy_run
from scalebench.core.spec import RunSpec
from scalebench.sweeps.console import Console
from scalebench.sweeps.estimate import estimate_s

if TYPE_CHECKING:
    from scalebench.runner.jobs import JobFollower, PlannedJob
    from scalebench.runner.parent import RunRequest
    from scalebench.sweeps.jobset_runs import JobSetFollower
    from scalebench.sweeps.plan import SweepRun


QUEUES = ("queue", "pods")  # where a run waits for nodes


class UserDetached(KeyboardInterrupt):
    """The user detached; the jobs keep running."""


def is_submitted(spec: RunSpec) -> bool:
    """Return whether this run becomes a job. Within an allocation, and where it is unsupported, it does not."""
    return spec.can_start and find_site(spec.config.hardware) in QUEUES


def select_submitted(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Return those of the runs that become jobs."""
    return [run for run in runs if run.earlier is None and is_submitted(run.spec)]


def adopt(submitted: Sequence[SweepRun], planned: Sequence[SweepRun], sweep_dir: Path) -> list[SweepRun]:
    """Have those of the runs whose jobs still run, since only the program that submitted them was killed, follow these.
    Return the baselines that such a job does once more."""
    running = find_running([run.spec for run in submitted], sweep_dir.parent)
    matched = match_running(submitted, running)
    for run, folder in matched.items():
        run.adopted = folder
    by_key = {run.key: run for run in planned}
    more = [
        (by_key[key], folder)
        for folder, key in running.items()
        if folder.parent == sweep_dir and folder.name.isdecimal() and key in by_key and folder not in matched.values()
    ]
    return [replace(run, added=True, earlier=None, adopted=folder, number=int(folder.name)) for run, folder in more]


def find_running(specs: Sequence[RunSpec], root: Path) -> dict[Path, RunKey]:
    """Return the folders of runs at or below `root` whose jobs are pending or running, in the order of submission, with
    the schedulers of `specs`."""
    from scalebench.runner.jobs import find_jobsets, find_running_jobs

    on_slurm = [spec for spec in specs if not is_on_pods(spec)]
    running = find_running_jobs(root, _slurm_of(on_slurm)) if on_slurm else {}
    return running | (find_jobsets(root) if len(on_slurm) < len(specs) else {})


def match_running(runs: Sequence[SweepRun], running: Mapping[Path, RunKey]) -> dict[SweepRun, Path]:
    """Return the folder of the running job of each of these runs that has one: its own folder, else the one that was
    submitted last. Raise InputError where a run's own folder is used by a job of another run."""
    matched: dict[SweepRun, Path] = {}
    for run in runs:
        same = [folder for folder, key in running.items() if key == run.key]
        if same:
            matched[run] = run.folder if run.folder in same else same[-1]
        elif run.folder in running:
            raise InputError(f"{run.folder} is where a job of another run still runs; choose another hydra.sweep.dir")
    own_folders = {run.folder for run in runs}
    if any(folder in own_folders and folder != run.folder for run, folder in matched.items()):
        raise InputError(
            "jobs of this sweep still run under other numbers of it; give its arguments in the order that they had"
        )
    return matched


def follow(
    jobs: Sequence[Sequence[Sequence[SweepRun]]],
    adopted: Sequence[SweepRun],
    folder: Path,
    console: Console,
    resume: bool,
) -> Iterator[tuple[SweepRun, Result]]:
    """Submit these jobs, lists of units, at once, and follow them and the jobs of adopted runs. Yield each run when its
    result is in its folder; `folder` is that of the sweep.

    At Ctrl-C the user decides once whether to cancel the jobs: KeyboardInterrupt follows when their results have been
    yielded, UserDetached where they keep running. They do when the connection to the user is lost.
    """
    from scalebench.runner.jobs import JobFollower, PlannedJob
    from scalebench.runner.parent import RunRequest
    from scalebench.sweeps.jobset_runs import JobSetFollower

    runs = {run.number: run for run in (*itertools.chain(*itertools.chain(*jobs)), *adopted)}
    requests = {
        number: RunRequest(number, run.spec, run.adopted or run.folder, run.bare) for number, run in runs.items()
    }
    for run in runs.values():
        if run.adopted is None:
            _clear_folder(run, resume)
    planned = []
    for job in jobs:
        numbers = [run.number for unit in job for run in unit]
        of_job = runs[numbers[0]].folder if len(numbers) == 1 else folder.absolute() / f"job{min(numbers)}"
        planned.append(PlannedJob(of_job, [[requests[run.number] for run in unit] for unit in job]))

    def submit(specs: Sequence[RunSpec], folder: Path) -> Submission:
        return submit_job(specs, folder, [estimate_s(spec)[1] for spec in specs])

    is_single = [run.folder for run in runs.values()] == [folder]
    limits = [run.spec.config.hardware.max_jobs for run in runs.values()]
    max_jobs = min((limit for limit in limits if limit is not None), default=None)
    for on_pods in (True, False):  # one scheduler after the other
        jobs_of_it = [job for job in planned if is_on_pods(job.requests[0].spec) == on_pods]
        adopted_jobs = [requests[run.number] for run in adopted if is_on_pods(run.spec) == on_pods]
        if not (jobs_of_it or adopted_jobs):
            continue
        with console.show_queue() as on_change:
            follower: JobFollower | JobSetFollower
            if on_pods:
                follower = JobSetFollower(on_change, console.print_line)
            else:
                specs = [request.spec for job in jobs_of_it for request in job.requests]
                slurm = _slurm_of([*specs, *(request.spec for request in adopted_jobs)])
                follower = JobFollower(slurm, max_jobs, on_change, submit=submit)
            for request, result in _follow_to_end(
                follower, jobs_of_it, adopted_jobs, console, folder if is_single else None
            ):
                with delay_interrupts():
                    copy_earlier_run(request.folder, runs[request.number].folder)
                yield runs[request.number], result


def _follow_to_end(
    follower: JobFollower | JobSetFollower,
    jobs: Sequence[PlannedJob],
    adopted: Sequence[RunRequest],
    console: Console,
    folder: Path | None,
) -> Iterator[tuple[RunRequest, Result]]:
    """Yield what the follower does, and decide with the user what Ctrl-C means; `folder` is that of a single run."""
    results = follower.follow(jobs, adopted)
    try:
        yield from results
        return
    except KeyboardInterrupt:
        process.cancelled.clear()  # handled; a user in a hurry presses Ctrl-C again
        left = follower.unfinished
        is_lost = process.cancelled.by_hang_up and left
        if is_lost or not console.confirm_cancel(left, process.cancelled.by_user):
            keep = "1 job keeps" if left == 1 else f"{left} jobs keep"
            where = "" if folder is None else f"hydra.run.dir={folder} "
            raise UserDetached(f"{keep} running; the same command with {where}resume=true waits for the rest") from None
        follower.cancel()
    yield from results
    raise KeyboardInterrupt


def _clear_folder(run: SweepRun, resume: bool) -> None:
    """Remove what an earlier try of a run has left. Raise InputError where its job still runs, or another program."""
    of_ended_job = (run.folder / JOB_FILE).exists()
    if resume:
        clear_run_folder(run.folder, of_ended_job)  # of a run that was not successful
    elif (submission := read_submission(run.folder)) is not None and find_running([run.spec], run.folder):
        raise InputError(
            f"job {submission.job_id} of {run.folder} still runs; resume=true waits for it, or choose another folder"
        )
    if run.folder.exists():  # by a program that is not a job
        FolderLock(run.folder, of_ended_job).release()


def copy_earlier_run(earlier: Path, folder: Path) -> None:
    """Copy an earlier run into a sweep, so that the sweep's folder is complete by itself."""
    if earlier.resolve() != folder.resolve():
        clear_run_folder(folder)
        copy_run(earlier, folder)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C while a result is handled; `follow_jobs` gets it afterwards, and asks the user."""
    try:
        with process.defer_signals():
            yield
    except KeyboardInterrupt:
        if not process.cancelled.is_set():
            raise


def _slurm_of(specs: Sequence[RunSpec]) -> Slurm:
    bins = {spec.config.hardware.slurm.bin for spec in specs}
    if len(bins) > 1:
        raise InputError("hardware.slurm.bin differs between the runs of one sweep; a sweep goes to one cluster")
    return Slurm(bins.pop())
