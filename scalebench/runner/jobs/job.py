"""Jobs, their runs, and the result of a run: the one that its job left, or one made from its ranks' files and the
scheduler's report."""

from __future__ import annotations

import contextlib
import copy
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalebench.cluster.commands import Slurm, SlurmError, expand_nodes
from scalebench.cluster.job_states import END_STATES, WAITING_STATES, JobState, classify_end, is_over, is_script_killed
from scalebench.cluster.submit import Submission
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_tail
from scalebench.core.result import Result, SchedulerRecord, read_result, write_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE
from scalebench.runner import collect
from scalebench.runner.collect import ResultParts, RunId, RunOutcome
from scalebench.runner.launchers import srun
from scalebench.runner.parent import RunRequest, StartedRun

# Ends from outside the run; failures that ranks report then follow from them.
EXTERNAL_ENDS = frozenset(END_STATES) - {"COMPLETED", "FAILED"}
UNEXPLAINED = ("failed", "cancelled")  # which the scheduler may know better: a process that is killed cannot tell why
MAX_LOG_BYTES, MAX_LOG_LINE_CHARACTERS = 1 << 20, 200


@dataclass(eq=False)
class PlannedJob:
    """A job to submit. Its log and script are in `folder`, which for a job of one run is that of the run."""

    folder: Path
    units: list[list[RunRequest]]  # one after the other; the runs of a unit take turns

    @property
    def requests(self) -> list[RunRequest]:
        return [request for unit in self.units for request in unit]


@dataclass
class JobRuns:
    """The content of job_runs.json: the folders of the runs of each unit, from that of the job, each with the
    fingerprint of its baseline without a wrapper."""

    units: list[dict[str, str | None]]


@dataclass(eq=False)
class Job:
    """A job that has been submitted, with its runs that have no result yet. Times are by the clock of the follower."""

    submission: Submission
    folder: Path  # of its log
    runs: list[RunRequest]
    state: JobState | None = None  # as last reported
    unlisted: int = 0  # answers of the scheduler since then without this job
    over_s: float | None = None  # when it was first reported as over
    cancelled: bool = False  # by this program
    never_starts: str | None = None  # why it could not start, and was removed from the queue
    result_s: dict[Path, float] = field(default_factory=dict)  # when the result in a folder was first read

    @property
    def id(self) -> str:
        return self.submission.job_id

    @property
    def pending(self) -> bool:
        """Return whether it was waiting at the last answer; it may have started since."""
        return self.over_s is None and (self.state is None or self.state.state in WAITING_STATES)

    @property
    def ran(self) -> bool:
        """Return whether it got nodes: the start time of a job without nodes is only expected."""
        return self.state is not None and not self.pending and bool(self.state.node_list)


@dataclass(frozen=True)
class QueueState:
    """The state of all runs of a follower."""

    waiting: int  # not submitted yet
    pending: int
    reason: str | None  # the scheduler's most frequent reason why jobs are pending
    runs: tuple[RunRequest, ...]  # whose jobs run now
    over: int
    error: str | None = None  # why the scheduler does not answer
    limit: str | None = None  # on submitted jobs, which the others wait for


def read_job_result(folder: Path) -> Result | None:
    """Return the result that the job left; None before that, and where it is incomplete. The folder is listed, since
    over NFS a look at one file may be cached for a minute."""
    try:
        return read_result(folder / RESULT_FILE) if RESULT_FILE in os.listdir(folder) else None
    except (OSError, InputError):
        return None


def amend_result(result: Result, job: Job, request: RunRequest, slurm: Slurm) -> Result:
    """Add the scheduler's facts to a result that the job left, and rewrite its file if they change it."""
    outcome = None
    if job.state is not None and result.status in UNEXPLAINED and job.state.state in EXTERNAL_ENDS:
        ranks = {rank.rank: rank for rank in result.ranks}
        records = [*map(ranks.get, range(result.scale.processes))]
        outcome = collect.keep_figures(RunOutcome(*classify_end(job.state)), records, request.spec.services)
    amended = collect.with_job_outcome(result, make_scheduler_record(job, slurm, result.scheduler), outcome)
    if amended != result:
        with contextlib.suppress(OSError):  # a file that cannot be rewritten stays as the job left it
            write_result(amended, request.folder)
    return amended


def write_missing_result(job: Job, request: RunRequest, slurm: Slurm) -> Result:
    """Write the result of a run whose job is over and left none."""
    folder, log = request.folder, None
    try:
        folder.mkdir(parents=True, exist_ok=True)  # a job of several runs may have removed it, to start it once more
        if RESULT_FILE in os.listdir(folder):  # an incomplete one
            os.replace(folder / RESULT_FILE, folder / UNREADABLE_RESULT_FILE)
        outcome = _classify_job(job, request)
        log = JOB_LOG if (folder / JOB_LOG).exists() else None
    except OSError:
        outcome = RunOutcome("failed")
    return write_result_for(request, replace(outcome, log=log), slurm, job)


def write_result_for(
    request: RunRequest, outcome: RunOutcome, slurm: Slurm | None = None, job: Job | None = None
) -> Result:
    """Write a result that the run itself did not write, and return it: with the facts of its `job`, if it has one, from
    `slurm`. Where it cannot be written, its reason says so."""
    scheduler = None if job is None or slurm is None else make_scheduler_record(job, slurm)
    started_at_s = job.state.started_at_s if job is not None and job.state is not None and job.ran else None
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        return StartedRun(request.spec, request.folder, RunId.new(started_at_s), scheduler).finish(outcome)
    except OSError as error:
        why = f"{request.folder} cannot be written: {error.strerror or error}"
        failed = RunOutcome("failed", "; ".join(filter(None, [outcome.reason, why])))
        return collect.assemble_result(request.spec, RunId.new(), failed, ResultParts())


def _classify_job(job: Job, request: RunRequest) -> RunOutcome:
    """Return why a job that left no result of a run is over."""
    spec, state = request.spec, job.state
    if state is None or not is_over(state):
        if job.cancelled:
            return RunOutcome("cancelled", f"cancelled with its job {job.id}")
        return RunOutcome("failed", f"SLURM does not list job {job.id} any more, and it left no {RESULT_FILE}")
    status, reason = classify_end(state)
    ranks = collect.read_ranks(request.folder, spec.processes)
    if state.state in EXTERNAL_ENDS:
        return collect.keep_figures(RunOutcome(status, reason), ranks, spec.services)
    if status == "unsupported":
        return RunOutcome(status, reason)
    # Without cgroups SLURM reports a lack of memory only in the log.
    log = job.folder / JOB_LOG
    lines = read_tail(log, MAX_LOG_BYTES).splitlines() if log.exists() else []
    if state.state == "FAILED" and (memory := srun.memory_outcome("\n".join(lines))) is not None:
        return RunOutcome(*memory)
    if failed := [rank for rank in ranks if rank is not None and rank.status != "ok"]:
        first = collect.outcome_of_first_failure(failed, spec.processes)
        # Where the batch script was killed, the ranks lose their connections because of that.
        return replace(first, reason=f"{reason}; {first.reason}") if is_script_killed(state) else first
    folder, names = request.folder, os.listdir(request.folder)
    if state.node_list and not log.exists() and not any(name.startswith(("rank", "progress")) for name in names):
        return RunOutcome(
            "failed",
            f"job {job.id} ran on {state.node_list} and left nothing in {folder.absolute()}: the nodes do not see this "
            "folder; set hydra.sweep.dir (or hydra.run.dir) to one that they share",
        )
    if UNREADABLE_RESULT_FILE in names:
        where = f"which is now {UNREADABLE_RESULT_FILE}"
        return RunOutcome("failed", f"job {job.id} left an incomplete {RESULT_FILE}, {where}")
    line = f"{log} has its output"  # the last line of a job of several runs may be another run's
    if log.parent == folder:
        line = next(filter(None, map(str.strip, reversed(lines))), "")[:MAX_LOG_LINE_CHARACTERS]
    return RunOutcome("failed", f"{reason}: {line}" if line else reason)


def make_scheduler_record(job: Job, slurm: Slurm, by_job: SchedulerRecord | None = None) -> SchedulerRecord:
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
