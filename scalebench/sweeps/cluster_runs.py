"""Parts of a sweep as jobs of a scheduler: their plan, submitted at once, followed to their results, or cancelled."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from scalebench.cluster.commands import Slurm, find_site
from scalebench.cluster.jobset import is_on_pods
from scalebench.cluster.submit import Submission, read_submission, submit_job
from scalebench.config.support import is_reachable
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.folder_lock import FolderLock, clear_run_folder
from scalebench.core.result import Result
from scalebench.core.run_folder import JOB_FILE, RunKey, copy_run
from scalebench.core.spec import RunSpec
from scalebench.core.units import format_count
from scalebench.sweeps.console import Console, describe_queue, format_repeat
from scalebench.sweeps.estimate import estimate_s

if TYPE_CHECKING:
    from scalebench.runner.jobs.follow import JobFollower
    from scalebench.runner.jobs.job import PlannedJob, QueueState
    from scalebench.runner.parent import RunRequest
    from scalebench.sweeps.jobset_runs import JobSetFollower
    from scalebench.sweeps.plan import SweepRun


QUEUES = ("queue", "pods")  # where a run waits for nodes
# The command that submits jobs, and where it is, by scheduler.
SUBMITTED = {"slurm": ("sbatch", "a login node"), "kubernetes": ("kubectl", "a machine with access to the cluster")}


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
    """Return the folders of runs at or below `root` whose jobs are pending or running, in the order of submission, by
    the scheduler of `specs`."""
    from scalebench.runner.jobs import follow as jobs

    return jobs.find_running_jobs(root, None if is_on_pods(specs[0]) else _slurm_of(specs)) if specs else {}


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
    from scalebench.runner.jobs.follow import JobFollower
    from scalebench.runner.jobs.job import PlannedJob
    from scalebench.runner.parent import RunRequest
    from scalebench.sweeps.jobset_runs import JobSetFollower

    runs = {run.number: run for run in (*itertools.chain(*itertools.chain(*jobs)), *adopted)}
    requests = {
        number: RunRequest(number, run.spec, run.adopted or run.folder, run.bare) for number, run in runs.items()
    }
    specs = [run.spec for run in runs.values()]
    slurm = _slurm_of(specs)
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
    followed = [requests[run.number] for run in adopted]
    with console.show_line("submitting") as update:

        def on_change(queue: QueueState) -> None:
            update(describe_queue(queue), describe_queue(queue))

        follower: JobFollower | JobSetFollower
        if is_on_pods(specs[0]):
            follower = JobSetFollower(on_change, console.print_line)
        else:
            follower = JobFollower(slurm, max_jobs, on_change, submit=submit)
        for request, result in _follow_to_end(follower, planned, followed, console, folder if is_single else None):
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


def refuse_running(runs: Sequence[SweepRun]) -> None:
    """Raise InputError where the job of an earlier command still runs in one of these folders."""
    for run in runs:
        if (submission := read_submission(run.folder)) is not None and find_running([run.spec], run.folder):
            raise InputError(
                f"job {submission.job_id} of {run.folder} still runs; "
                "resume=true waits for it, or choose another folder"
            )


def _clear_folder(run: SweepRun, resume: bool) -> None:
    """Remove what an earlier try of a run has left. Raise InputError where another program runs there."""
    of_ended_job = (run.folder / JOB_FILE).exists()
    if resume:
        clear_run_folder(run.folder, of_ended_job)  # of a run that was not successful
    if run.folder.exists():  # by a program that is not a job
        FolderLock(run.folder, of_ended_job).release()


def copy_earlier_run(earlier: Path, folder: Path) -> None:
    """Copy an earlier run into a sweep, so that the sweep's folder is complete by itself."""
    if earlier.resolve() != folder.resolve():
        clear_run_folder(folder)
        copy_run(earlier, folder)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C while a result is handled; `_follow_to_end` gets it afterwards, and asks the user."""
    try:
        with process.defer_signals():
            yield
    except KeyboardInterrupt:
        if not process.cancelled.is_set():
            raise


def _slurm_of(specs: Sequence[RunSpec]) -> Slurm:
    """Return the cluster of these runs. Raise InputError where they have several."""
    if len({(spec.config.hardware.scheduler, spec.config.hardware.slurm.bin) for spec in specs}) > 1:
        raise InputError(
            "the cluster (hardware.slurm.bin) differs between the runs of one sweep; divide it into one for each"
        )
    return Slurm(specs[0].config.hardware.slurm.bin)


def print_jobs(console: Console, jobs: Sequence[Sequence[SweepRun]], folder: Path, several: bool) -> None:
    """Print a line for each job, by its runs, what all may take at most, and the batch script of the largest one.
    `folder` is that of the sweep (`several`), or of the run."""
    from scalebench.cluster.resources import sweep_geometry, time_limit_minutes

    specs = [[run.spec for run in job] for job in jobs]
    sizes = [sweep_geometry(each) for each in specs]
    minutes = [time_limit_minutes(each, [estimate_s(spec)[1] for spec in each]) for each in specs]
    for job, size, limit in zip(jobs, sizes, minutes, strict=True):
        spec, hardware = job[0].spec, job[0].spec.config.hardware
        label = spec.label + format_repeat(spec) + " (baseline, added)" * job[0].added
        if len(job) > 1:
            label = (
                f"gpus={','.join(map(str, sorted({run.spec.gpus for run in job if not run.added})))}: {len(job)} runs"
            )
        gpus = "" if size.gpus_per_node is None else f", {size.gpus_per_node} GPUs per node"
        cores = format_count(size.cpus_per_task, "core")
        console.print_line(
            f"{label}: {format_count(size.nodes, 'node')} of {hardware.name}, {size.tasks_per_node} x {cores} per "
            f"node{gpus}, at most {limit} minutes"
        )
    node_hours = sum(size.nodes * limit for size, limit in zip(sizes, minutes, strict=True)) / 60
    total = f"{format_count(len(jobs), 'job')}, {node_hours:,.1f} node-hours if each takes all of its minutes"
    console.print_line(f"{total}; nothing was submitted")
    for hardware in {spec.config.hardware.name: spec.config.hardware for job in specs for spec in job}.values():
        if not is_reachable(hardware):  # less was checked
            command, where = SUBMITTED[hardware.scheduler]
            console.print_line(
                f"there is no {command} here: the plan is for {where} of hardware={hardware.name}, whose packages "
                "were not checked"
            )
    largest = max(range(len(jobs)), key=lambda n: (sizes[n].nodes, len(jobs[n]), -n))
    own = str(jobs[largest][0].number) if len(jobs[largest]) == 1 else f"job{min(run.number for run in jobs[largest])}"
    if len(jobs) > 1:
        console.print_line("\nThe largest job; the others differ in the numbers above, their name and their folder.")
    _print_script(console, jobs[largest], folder / own if several else folder)


def _print_script(console: Console, job: Sequence[SweepRun], folder: Path) -> None:
    """Print the batch script of a job, and for one of a single run the command in it that starts the ranks."""
    from scalebench.cluster import resources, submit
    from scalebench.runner.launchers import choose_launcher
    from scalebench.sweeps.jobset_runs import make_manifest

    specs = [run.spec for run in job]
    what = specs[0].label if len(job) == 1 else f"its {len(job)} runs"
    if is_on_pods(specs[0]):
        secret = "a Secret of the same name has the agents' key and the specs of the runs"
        console.print_line(f"\n{what} would be submitted with kubectl; {secret}:\n")
        console.print_line(OmegaConf.to_yaml(OmegaConf.create(make_manifest(specs))))
        return
    console.print_line(f"\n{what} would be submitted with sbatch:\n")
    console.print_line(submit.render_script(specs, folder, [estimate_s(spec)[1] for spec in specs]))
    if len(job) == 1:
        by_srun = shlex.join(resources.srun_command(specs[0], folder))
        starters = {"slurm": by_srun, "mpi": "mpirun, with the nodes of the job", "command": "script.command"}
        console.print_line(f"ranks, from within the job:\n\n{starters[choose_launcher(specs[0], 'allocation')]}\n")
