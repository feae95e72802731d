"""The result of a job: the one that it left, or one made of what its ranks left and the scheduler reports. Layer 3."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scalebench.core.errors import InputError
from scalebench.core.result import Result, SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE, has_rank_files
from scalebench.core.spec import RunSpec
from scalebench.runner.collect import Parts, RunId, RunOutcome, assemble, first_failure, read_ranks, with_job_outcome
from scalebench.runner.jobs.job import Job, JobRequest
from scalebench.runner.launchers import srun
from scalebench.runner.parent import StartedRun
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.job_states import ENDS, JobState, judge, over, script_killed

# Ends that come from outside; what ranks report then only follows from it.
FROM_OUTSIDE = frozenset(ENDS) - {"COMPLETED", "FAILED"}
MAX_LINE_LENGTH = 200  # characters of a log's last line
Names = Callable[[str], list[str]]  # of nodes, from the scheduler's short form


def read_left_result(folder: Path, fresh: bool) -> Result | None:
    """Return the result that the job left; None before that, and for half of one.

    `fresh`: list the folder, which makes NFS ask its server; to look at one file may answer from memory for a minute.
    """
    try:
        there = RESULT_FILE in os.listdir(folder) if fresh else os.path.exists(folder / RESULT_FILE)
        return read_result(folder / RESULT_FILE) if there else None
    except (OSError, InputError):
        return None


def may_change(result: Result) -> bool:
    """Return whether the scheduler may explain it better: a process that is killed does not know by whom."""
    return result.status in ("failed", "cancelled")


def amend(result: Result, job: Job, names: Names) -> Result:
    """Add what the scheduler knows to a result that the job left, also in its file where that changes anything."""
    outcome = None
    if job.state is not None and may_change(result) and job.state.state in FROM_OUTSIDE:
        outcome = RunOutcome(*judge(job.state))
    amended = with_job_outcome(result, record(job, names, result.scheduler), outcome)
    if amended != result:
        with contextlib.suppress(OSError):  # one that cannot be written again stays as the job left it
            write_result(amended, job.request.folder)
    return amended


def write_missing(job: Job, names: Names) -> Result:
    """Write the result of a job that is over and left none."""
    folder = job.request.folder
    try:
        keep_unreadable(folder)
        outcome = cause(job)
    except OSError as error:
        return unwritten(job.request, RunOutcome("failed"), error)
    log = JOB_LOG if (folder / JOB_LOG).exists() else None
    started_at_s = job.state.started_at_s if job.state is not None and job.ran else None
    return write(job.request, replace(outcome, log=log), record(job, names, None), started_at_s)


def write(
    request: JobRequest,
    outcome: RunOutcome,
    scheduler: SchedulerRecord | None = None,
    started_at_s: float | None = None,
) -> Result:
    """Write a result that the run itself did not write. Where it cannot be written its reason says so."""
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        return StartedRun(request.spec, request.folder, RunId.new(started_at_s), scheduler).finish(outcome)
    except OSError as error:
        return unwritten(request, outcome, error)


def unwritten(request: JobRequest, outcome: RunOutcome, error: OSError) -> Result:
    """Make a result that is in no file, since its folder cannot be written."""
    why = f"{request.folder} cannot be written: {error.strerror or error}"
    reason = f"{outcome.reason}; {why}" if outcome.reason else why
    return assemble(request.spec, RunId.new(), RunOutcome("failed", reason), Parts())


def keep_unreadable(folder: Path) -> None:
    """Rename a file that is no whole record, so that it stays to be looked at."""
    if RESULT_FILE in os.listdir(folder):
        os.replace(folder / RESULT_FILE, folder / UNREADABLE_RESULT_FILE)


def cause(job: Job) -> RunOutcome:
    """Return why a job that left no result is over."""
    spec, folder, state = job.request.spec, job.request.folder, job.state
    if state is None or not over(state):
        if job.cancelled:
            return RunOutcome("cancelled", f"cancelled with its job {job.id}")
        return RunOutcome("failed", f"SLURM knows nothing of job {job.id} any more, and it left no {RESULT_FILE}")
    status, reason = judge(state)
    if state.state in FROM_OUTSIDE or status == "unsupported":
        return RunOutcome(status, reason)
    # Without cgroups SLURM reports that nowhere else.
    memory = srun.memory_outcome(srun.read_log(folder / JOB_LOG)) if state.state == "FAILED" else None
    if memory is not None:
        return RunOutcome(*memory)
    failed = [rank for rank in read_ranks(folder, spec.processes) if rank is not None and rank.status != "ok"]
    if not failed:
        return RunOutcome("failed", _unexplained(spec, folder, state, reason))
    first = first_failure(failed, spec.processes)
    # Without the script its ranks lose each other.
    return replace(first, reason=f"{reason}; {first.reason}") if script_killed(state) else first


def _unexplained(spec: RunSpec, folder: Path, state: JobState, reason: str | None) -> str:
    names = os.listdir(folder)
    sign_of_life = JOB_LOG in names or has_rank_files(names)
    if state.node_list and not sign_of_life:
        return (
            f"job {state.job_id} ran on {state.node_list} and left nothing in {folder.absolute()}: the "
            "nodes do not see this folder; set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        )
    if UNREADABLE_RESULT_FILE in names:
        return (
            f"job {state.job_id} left a {RESULT_FILE} that is no whole record; it is kept as {UNREADABLE_RESULT_FILE}"
        )
    line = last_line(folder / JOB_LOG)
    return (reason or f"job {state.job_id} left no {RESULT_FILE}") + (f": {line}" if line else "")


def last_line(log: Path) -> str:
    """Return the last line of a log but for what submitit reports of itself."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("submitit INFO ")]
    return lines[-1][:MAX_LINE_LENGTH] if lines else ""


def record(job: Job, names: Names, by_job: SchedulerRecord | None) -> SchedulerRecord:
    """Return the scheduler's facts, and what the job itself recorded where the scheduler does not have them."""
    made = replace(by_job) if by_job is not None else SchedulerRecord("slurm", job.id, job.submission.partition)
    state = job.state
    if state is None:
        return made
    if not made.nodes and state.node_list:
        made.nodes = names(state.node_list)
    if job.ran and state.started_at_s is not None and state.submitted_at_s is not None:  # both by one clock
        made.queued_s = max(0.0, state.started_at_s - state.submitted_at_s)
    if over(state):
        made.state, made.reason = state.state, state.reason
    return made


def names_from(slurm: Slurm) -> Names:
    """Expand `h[1-2]` to h1, h2; none where that fails. SLURM's own command does it, without its controller."""

    def names(node_list: str) -> list[str]:
        if not any(sign in node_list for sign in "[,"):
            return [node_list]
        try:
            return slurm.run("scontrol", "show", "hostnames", node_list).split()
        except SlurmError:
            return []

    return names
