"""The row of a job: the one that it left, or one made of what its ranks left and the scheduler's word. Layer 3."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from scalebench.cluster.queue import Asked, Job
from scalebench.collect import Outcome, assemble, of_first, read_ranks
from scalebench.launchers import srun_words
from scalebench.results import Result, SchedulerRecord, read_result, write_result
from scalebench.run import leave
from scalebench.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE
from scalebench.slurm.commands import Slurm, SlurmError
from scalebench.slurm.states import ENDS, JobState, judge, over, script_killed
from scalebench.spec import InputError, RunSpec

# Ends that come from outside; what ranks say then only follows from it.
FROM_OUTSIDE = frozenset(ENDS) - {"COMPLETED", "FAILED"}
LAST_WORDS = 200  # characters of a log's last line
Names = Callable[[str], list[str]]  # of nodes, from the scheduler's short form


def left_row(folder: Path, fresh: bool) -> Result | None:
    """What the job left; None before that, and for half of one.

    `fresh`: list the folder, which makes NFS ask its server; to look at one file may answer from memory for a minute.
    """
    try:
        there = RESULT_FILE in os.listdir(folder) if fresh else os.path.exists(folder / RESULT_FILE)
        return read_result(folder / RESULT_FILE) if there else None
    except (OSError, InputError):
        return None


def may_change(row: Result) -> bool:
    """Whether the scheduler's word may explain it better: whoever is killed does not know by whom."""
    return row.status in ("failed", "cancelled")


def amend(row: Result, job: Job, names: Names) -> bool:
    """Put the scheduler's word into a row that the job left. Whether that changed it."""
    before = (row.status, row.reason, row.scheduler)
    row.scheduler = record(job, names, row.scheduler)
    if job.state is not None and may_change(row) and job.state.state in FROM_OUTSIDE:
        row.status, row.reason = judge(job.state)
    return (row.status, row.reason, row.scheduler) != before


def missing(job: Job, names: Names) -> Result:
    """The row of a job that is over and left none; written."""
    folder = job.asked.folder
    try:
        keep_unreadable(folder)
        outcome = cause(job)
    except OSError as error:
        return unwritten(job.asked, Outcome("failed"), error)
    log = JOB_LOG if (folder / JOB_LOG).exists() else None
    begun_s = job.state.started_at_s if job.state is not None and job.ran else None
    return make(job.asked, outcome, log, record(job, names, None), begun_s)


def make(
    asked: Asked,
    outcome: Outcome,
    log: str | None = None,
    scheduler: SchedulerRecord | None = None,
    started_at_s: float | None = None,
) -> Result:
    """A row that the run itself did not write. Where it cannot be written it says so, and is in no file."""
    begun = datetime.now(UTC) if started_at_s is None else datetime.fromtimestamp(started_at_s, UTC)
    started_at, run_id = begun.isoformat(timespec="milliseconds"), uuid.uuid4().hex[:12]
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
        return leave(asked.spec, asked.folder, started_at, run_id, outcome, log=log, scheduler=scheduler)
    except OSError as error:
        return unwritten(asked, outcome, error)


def unwritten(asked: Asked, outcome: Outcome, error: OSError) -> Result:
    why = f"{asked.folder} cannot be written: {error.strerror or error}"
    reason = f"{outcome.reason}; {why}" if outcome.reason else why
    begun = datetime.now(UTC).isoformat(timespec="milliseconds")
    return assemble(asked.spec, [], begun, uuid.uuid4().hex[:12], Outcome("failed", reason))


def rewrite(row: Result, folder: Path) -> None:
    """A row that was amended; one that cannot be written anew stays as the job left it."""
    with contextlib.suppress(OSError):
        write_result(row, folder)


def keep_unreadable(folder: Path) -> None:
    """A file that is no whole record makes way for one, and stays to be looked at."""
    if RESULT_FILE in os.listdir(folder):
        os.replace(folder / RESULT_FILE, folder / UNREADABLE_RESULT_FILE)


def cause(job: Job) -> Outcome:
    """Why a job that left no row is over."""
    spec, folder, state = job.asked.spec, job.asked.folder, job.state
    if state is None or not over(state):
        if job.cancelled:
            return Outcome("cancelled", f"cancelled with its job {job.id}")
        return Outcome("failed", f"SLURM knows nothing of job {job.id} any more, and it left no {RESULT_FILE}")
    status, reason = judge(state)
    if state.state in FROM_OUTSIDE or status == "unsupported":
        return Outcome(status, reason)
    # Without cgroups SLURM tells that nowhere else.
    memory = srun_words.memory(srun_words.read(folder / JOB_LOG)) if state.state == "FAILED" else None
    if memory is not None:
        return Outcome(*memory)
    failed = [rank for rank in read_ranks(folder, spec.processes) if rank is not None and rank.status != "ok"]
    if not failed:
        return Outcome("failed", _unexplained(spec, folder, state, reason))
    first = of_first(failed, spec.processes, {})
    if script_killed(state):  # its ranks then lose each other
        first.reason = f"{reason}; {first.reason}"
    return first


def _unexplained(spec: RunSpec, folder: Path, state: JobState, reason: str | None) -> str:
    names = os.listdir(folder)
    sign_of_life = JOB_LOG in names or any(name.startswith(("rank", "progress")) for name in names)
    if state.node_list and not sign_of_life:
        return (
            f"job {state.job_id} ran on {state.node_list} and left nothing in {folder.absolute()}: the "
            "nodes do not see this folder; set hydra.sweep.dir (or hydra.run.dir) to one that they share"
        )
    if UNREADABLE_RESULT_FILE in names:
        return (
            f"job {state.job_id} left a {RESULT_FILE} that is no whole record; it is kept as {UNREADABLE_RESULT_FILE}"
        )
    said = last_words(folder / JOB_LOG)
    return (reason or f"job {state.job_id} left no {RESULT_FILE}") + (f": {said}" if said else "")


def last_words(log: Path) -> str:
    """The last line of a log that says anything of why it ends; submitit tells of its own doings there."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip() and not line.startswith("submitit INFO ")]
    return told[-1][:LAST_WORDS] if told else ""


def record(job: Job, names: Names, known: SchedulerRecord | None) -> SchedulerRecord:
    """The scheduler's facts, and what the job itself knew where it does not tell them."""
    made = SchedulerRecord("slurm", job.id, job.submission.partition)
    if known is not None:
        made = SchedulerRecord(**vars(known))
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
    """`h[1-2]` -> h1, h2; none where nobody can tell. SLURM's own command does it, and asks nobody for it."""

    def names(node_list: str) -> list[str]:
        if not any(sign in node_list for sign in "[,"):
            return [node_list]
        try:
            return slurm.run("scontrol", "show", "hostnames", node_list).split()
        except SlurmError:
            return []

    return names
