"""The result of a job: the one that it left, or one made from its ranks' files and the scheduler's report."""

from __future__ import annotations

import contextlib
import copy
import os
from dataclasses import replace
from pathlib import Path

from scalebench.cluster.commands import Slurm, SlurmError, expand_nodes
from scalebench.cluster.job_states import END_STATES, JobState, classify_end, is_over, is_script_killed
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_tail
from scalebench.core.result import Result, SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE
from scalebench.runner.collect import (
    ResultParts,
    RunId,
    RunOutcome,
    assemble_result,
    classify_outside_end,
    outcome_of_first_failure,
    read_ranks,
    with_job_outcome,
)
from scalebench.runner.jobs.job import SubmittedJob
from scalebench.runner.launchers import srun
from scalebench.runner.parent import RunRequest, StartedRun

# Ends from outside the run; failures that ranks report then follow from them.
EXTERNAL_ENDS = frozenset(END_STATES) - {"COMPLETED", "FAILED"}
MAX_LOG_LINE_CHARACTERS = 200


def read_job_result(folder: Path, fresh: bool) -> Result | None:
    """Return the result that the job left; None before that, and where it is incomplete.

    `fresh`: list the folder, which makes NFS query its server; a stat of one file may be cached for a minute.
    """
    try:
        exists = RESULT_FILE in os.listdir(folder) if fresh else os.path.exists(folder / RESULT_FILE)
        return read_result(folder / RESULT_FILE) if exists else None
    except (OSError, InputError):
        return None


def scheduler_may_explain(result: Result) -> bool:
    """Return whether the scheduler may explain a result better: a process that is killed cannot tell why."""
    return result.status in ("failed", "cancelled")


def amend_result(result: Result, job: SubmittedJob, slurm: Slurm) -> Result:
    """Add the scheduler's facts to a result that the job left, and rewrite its file if they change it."""
    outcome = None
    if job.state is not None and scheduler_may_explain(result) and job.state.state in EXTERNAL_ENDS:
        ranks = {rank.rank: rank for rank in result.ranks}
        records = [*map(ranks.get, range(result.scale.processes))]
        outcome = classify_outside_end(*classify_end(job.state), records, job.request.spec.services)
    amended = with_job_outcome(result, make_scheduler_record(job, slurm, result.scheduler), outcome)
    if amended != result:
        with contextlib.suppress(OSError):  # a file that cannot be rewritten stays as the job left it
            write_result(amended, job.request.folder)
    return amended


def write_missing_result(job: SubmittedJob, slurm: Slurm) -> Result:
    """Write the result of a job that is over and left none."""
    folder = job.request.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a job of several runs may have removed it, to start it once more
        if RESULT_FILE in os.listdir(folder):  # an incomplete one
            os.replace(folder / RESULT_FILE, folder / UNREADABLE_RESULT_FILE)
        outcome = job_outcome(job)
    except OSError as error:
        return make_unwritten_result(job.request, RunOutcome("failed"), error)
    log = JOB_LOG if (folder / JOB_LOG).exists() else None
    return write_result_for(job.request, replace(outcome, log=log), slurm, job)


def write_result_for(
    request: RunRequest,
    outcome: RunOutcome,
    slurm: Slurm | None = None,
    job: SubmittedJob | None = None,
) -> Result:
    """Write a result that the run itself did not write, and return it: with the facts of its `job`, if it has one, from
    `slurm`. Where it cannot be written, its reason says so."""
    scheduler = None if job is None or slurm is None else make_scheduler_record(job, slurm)
    started_at_s = job.state.started_at_s if job is not None and job.state is not None and job.ran else None
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        return StartedRun(request.spec, request.folder, RunId.new(started_at_s), scheduler).finish(outcome)
    except OSError as error:
        return make_unwritten_result(request, outcome, error)


def make_unwritten_result(request: RunRequest, outcome: RunOutcome, error: OSError) -> Result:
    """Return a result that is in no file, since its folder cannot be written."""
    why = f"{request.folder} cannot be written: {error.strerror or error}"
    reason = f"{outcome.reason}; {why}" if outcome.reason else why
    return assemble_result(request.spec, RunId.new(), RunOutcome("failed", reason), ResultParts())


def job_outcome(job: SubmittedJob) -> RunOutcome:
    """Return why a job that left no result is over."""
    spec, folder, state = job.request.spec, job.request.folder, job.state
    if state is None or not is_over(state):
        if job.cancelled:
            return RunOutcome("cancelled", f"cancelled with its job {job.id}")
        return RunOutcome("failed", f"SLURM does not list job {job.id} any more, and it left no {RESULT_FILE}")
    status, reason = classify_end(state)
    ranks = read_ranks(folder, spec.processes)
    if state.state in EXTERNAL_ENDS:
        return classify_outside_end(*classify_end(state), ranks, spec.services)
    if status == "unsupported":
        return RunOutcome(status, reason)
    # Without cgroups SLURM reports a lack of memory only in the log.
    memory = srun.memory_outcome(srun.read_log(job.log)) if state.state == "FAILED" else None
    if memory is not None:
        return RunOutcome(*memory)
    failed = [rank for rank in ranks if rank is not None and rank.status != "ok"]
    if not failed:
        return RunOutcome("failed", _reason_without_records(job, state, reason))
    first = outcome_of_first_failure(failed, spec.processes)
    # Where the batch script was killed, the ranks lose their connections because of that.
    return replace(first, reason=f"{reason}; {first.reason}") if is_script_killed(state) else first


def _reason_without_records(job: SubmittedJob, state: JobState, reason: str | None) -> str:
    folder = job.request.folder
    names = os.listdir(folder)
    left_files = job.log.exists() or any(name.startswith(("rank", "progress")) for name in names)
    if state.node_list and not left_files:
        return (
            f"job {state.job_id} ran on {state.node_list} and left nothing in {folder.absolute()}: the "
            "nodes do not see this folder; set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        )
    if UNREADABLE_RESULT_FILE in names:
        return f"job {state.job_id} left an incomplete {RESULT_FILE}; it is kept as {UNREADABLE_RESULT_FILE}"
    # The last line of a job of several runs may be another run's.
    is_alone = job.submission.job_folder == "."
    line = "" if is_alone else f"{os.path.normpath(job.log)} has its output"
    if is_alone and job.log.exists():
        line = next(filter(None, map(str.strip, reversed(read_tail(job.log, 4096).splitlines()))), "")
        line = line[:MAX_LOG_LINE_CHARACTERS]
    return (reason or f"job {state.job_id} left no {RESULT_FILE}") + (f": {line}" if line else "")


def make_scheduler_record(job: SubmittedJob, slurm: Slurm, by_job: SchedulerRecord | None = None) -> SchedulerRecord:
    """Return the scheduler's facts on a job, and the job's own where the scheduler has none."""
    facts = copy.copy(by_job) if by_job is not None else SchedulerRecord("slurm", job.id, job.submission.partition)
    state = job.state
    if state is None:
        return facts
    if not facts.nodes and state.node_list:
        with contextlib.suppress(SlurmError):
            facts.nodes = expand_nodes(slurm, state.node_list)
    if job.ran and state.started_at_s is not None and state.submitted_at_s is not None:  # both by one clock
        facts.queued_s = max(0.0, state.started_at_s - state.submitted_at_s)
    if is_over(state):
        facts.state, facts.reason = state.state, state.reason
    return facts
