"""Runs that are jobs of a scheduler: submitted at once, followed to their results, left or cancelled. Layer 4."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.result import Result
from scalebench.core.spec import HardwareSpec, RunSpec
from scalebench.slurm.commands import Slurm, inside
from scalebench.slurm.submit import read_submission
from scalebench.sweeps.console import Console

if TYPE_CHECKING:
    from scalebench.runner.jobs import JobRequest

terminated = Event()  # set by the program's handler of SIGTERM: there is no user to answer then


class LeftQueued(KeyboardInterrupt):
    """The user detached; the jobs keep running."""


def submits(spec: RunSpec) -> bool:
    """Return whether this run becomes a job. Within an allocation, and where it is unsupported, it does not."""
    hardware = spec.config.hardware
    return hardware.scheduler == "slurm" and not hardware.this_machine and spec.starts and not inside()


def one(spec: RunSpec, folder: Path, console: Console, resume: bool) -> Result:
    """Return the result of a single run, done by the scheduler in `folder`."""
    from scalebench.runner.jobs import JobRequest

    ((_, result),) = follow([JobRequest(0, spec, folder)], console, folder if resume else None)
    return result


def follow(requests: Sequence[JobRequest], console: Console, root: Path | None) -> Iterator[tuple[JobRequest, Result]]:
    """Submit these runs and yield each with its result, as they end. Below `root` may be folders of runs whose job
    still runs after the program that submitted it was killed: they are followed, and not submitted once more.

    At Ctrl-C the user decides once whether to cancel the jobs: KeyboardInterrupt when their results have been yielded,
    LeftQueued where they keep running.
    """
    from scalebench.runner.jobs import Cluster, find_running

    if not requests:
        return
    hardware = [run.spec.config.hardware for run in requests]
    slurm = Slurm(_common_bin(hardware))
    limits = [spec.max_jobs for spec in hardware if spec.max_jobs is not None]
    if root is not None:
        requests = _with_running(requests, find_running(root, slurm))
        for run in requests:
            if not run.adopted and run.folder != root:
                shutil.rmtree(run.folder, ignore_errors=True)  # of a run that did not go well
    else:
        _refuse_running([run.folder for run in requests], slurm)
    with console.following() as on_change:
        cluster = Cluster(slurm, min(limits, default=None), on_change)
        rows = cluster.follow(requests)
        try:
            yield from rows
            return
        except KeyboardInterrupt:
            process.cancelled.clear()  # handled; a user in a hurry presses Ctrl-C again
            if not console.shall_cancel(cluster.unfinished, not terminated.is_set()):
                raise LeftQueued(_how_to_return(requests, cluster.unfinished)) from None
            cluster.cancel()
        yield from rows
    raise KeyboardInterrupt


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back while a result is handled; `follow` gets it afterwards, and asks the user."""
    try:
        with process.signals_later():
            yield
    except KeyboardInterrupt:
        if not process.cancelled.is_set():
            raise


def _how_to_return(requests: Sequence[JobRequest], left: int) -> str:
    jobs = "1 job goes" if left == 1 else f"{left} jobs go"
    where = f"hydra.run.dir={requests[0].folder} " if len(requests) == 1 else ""
    return f"{jobs} on without; the same command with {where}resume=true waits for the rest"


def _refuse_running(folders: Sequence[Path], slurm: Slurm) -> None:
    """InputError where a job of an earlier program still runs in one of these folders: two would spoil each other."""
    from scalebench.runner.jobs import find_running

    for folder in folders:
        submission = read_submission(folder)
        if submission is not None and find_running(folder, slurm):
            raise InputError(
                f"job {submission.job_id} of {folder} still goes on; resume=true waits for it, or choose another folder"
            )


def _with_running(requests: Sequence[JobRequest], running: dict[tuple[str, int], Path]) -> list[JobRequest]:
    from scalebench.runner.jobs import JobRequest

    going_on = {key: folder.absolute() for key, folder in running.items()}
    found = []
    for run in requests:
        folder = going_on.get((run.spec.fingerprint, run.spec.config.repeat))
        if folder is None and run.folder in going_on.values():
            raise InputError(
                f"{run.folder} is where a job of another run still goes on; choose another hydra.sweep.dir"
            )
        found.append(run if folder is None else JobRequest(run.number, run.spec, folder, adopted=True))
    own = {run.folder for run in requests}
    if any(
        run.adopted and run.folder in own and run.folder != old.folder for run, old in zip(found, requests, strict=True)
    ):
        raise InputError(
            "jobs of this sweep still go on in other numbers of it; give its words in the order that they had"
        )
    return found


def _common_bin(hardware: Sequence[HardwareSpec]) -> str | None:
    bins = {spec.slurm.bin for spec in hardware}
    if len(bins) > 1:
        raise InputError("hardware.slurm.bin differs between the runs of one sweep; a sweep goes to one cluster")
    return bins.pop()
