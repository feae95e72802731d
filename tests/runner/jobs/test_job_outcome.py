"""The result of one job: its status, reason and log, and how long it is waited for."""

from datetime import UTC, datetime

import msgspec
import pytest

from scalebench.cluster.job_states import JobState, classify_end, why_never_starts
from scalebench.core.json_files import write_json
from scalebench.core.result import SchedulerRecord, read_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE, rank_record_path
from scalebench.runner.jobs import follow
from tests.builders.runs import rank
from tests.runner.jobs.fake_scheduler import BEGUN_S, Scheduler, end_of, forgotten, leaves, leaves_result, runs, state

ENDINGS = {
    "CANCELLED": "cancelled", "PREEMPTED": "cancelled", "TIMEOUT": "timeout", "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom", "NODE_FAIL": "failed", "BOOT_FAIL": "failed",
}  # fmt: skip


def leaves_rank(number, seconds=(), at_s=1.0, reason=None):
    """Return an event in which a rank leaves its figures, or the record of a failure."""

    def happens(scheduler, job_id, folder):
        failure = {"status": "failed", "reason": reason, "failed_at_s": at_s} if reason else {}
        write_json(rank_record_path(folder, number), rank(number, list(seconds), **failure))
        leaves(f"rank{number}.log")(scheduler, job_id, folder)

    return happens


def reason_of_end(ending, reason=None):
    return classify_end(JobState("101", ending, reason, node_list="h1"))[1]


@pytest.mark.parametrize(("ending", "status"), ENDINGS.items())
def test_an_external_end_is_the_reason(ending, status, tmp_path):
    """Also where ranks report its consequences."""
    script = runs(
        (20.0, leaves_rank(1, reason="Connection reset by peer")), (21.0, leaves("progress0.json")),
        (22.0, state(ending)),
    )  # fmt: skip
    result = end_of(tmp_path, script, gpus=2)
    assert (result.status, result.reason, result.log) == (status, reason_of_end(ending), JOB_LOG)
    assert [r.rank for r in result.ranks] == [1], "what was left is kept"
    assert result.scheduler == SchedulerRecord("slurm", "101", "main", ["h1"], 8.0, ending, result.scheduler.reason)
    assert result.started_at == datetime.fromtimestamp(BEGUN_S + 8.0, UTC).isoformat(timespec="milliseconds")
    assert read_result(tmp_path / "0" / RESULT_FILE) == result
    assert not (tmp_path / "0" / "progress0.json").exists()


@pytest.mark.gpu
@pytest.mark.parametrize(("ending", "status"), ENDINGS.items())
@pytest.mark.parametrize("measured", [1, 2])
@pytest.mark.parametrize("leaves_row", [True, False])
def test_an_external_end_during_the_probes_keeps_the_figures(leaves_row, measured, ending, status, tmp_path):
    """Somebody who cancels a run means all of it."""
    ranks = [rank(number, [0.1] * 4) for number in range(measured)]
    left = [leaves_result("cancelled", "cancelled while it ran", gpus=2, ranks=ranks)] if leaves_row else []
    left = left or [leaves_rank(number, [0.1] * 4) for number in range(measured)]
    result = end_of(tmp_path, runs(*((20.0, event) for event in left), (22.0, state(ending))), gpus=2)
    is_ok = measured == 2 and status != "cancelled"
    assert (result.status, result.reason) == (("ok", None) if is_ok else (status, reason_of_end(ending)))
    assert ("probe_failed" in result.flags) == is_ok
    assert result.ranks[0].probe_failures == ({"probes": reason_of_end(ending)} if is_ok else {})
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


NO_MODULE = "/usr/bin/python3: No module named scalebench"
LOG_OF_NO_MODULE = f"first\n{'x' * 9000}\n{NO_MODULE}\n\n"
NO_MEMORY = "StepId=101.batch exceeded memory limit (2 > 1), being killed"
LOG_OF_NO_MEMORY = f"slurmstepd-h1: error: {NO_MEMORY}\nslurmstepd-h1: error: *** JOB 101 ON h1 CANCELLED AT x ***\n"
LAUNCH_FAILURE = "SLURM job 101 failed (FAILED, JobLaunchFailure)"
LOST = (20.0, leaves_rank(1, reason="lost connection"))
FORGOTTEN = "SLURM does not list job 101 any more, and it left no result.json"
UNSEEN = (
    "job 101 ran on h1 and left nothing in {folder}: the nodes do not see this folder; set "
    "hydra.sweep.dir (or hydra.run.dir) to one that they share"
)
# script, status, reason, log
OUTCOMES = {
    "rank records give the reason where the scheduler has none": (
        runs(
            (20.0, leaves_rank(0, reason="Connection reset", at_s=5.0)),
            (20.0, leaves_rank(1, reason="no memory", at_s=4.0)),
            (22.0, state("FAILED")),
        ),
        "failed", "rank 1: no memory", "rank1.log",
    ),
    "records of ranks whose parent was killed come second": (
        runs(LOST, (22.0, state("FAILED", "JobLaunchFailure"))),
        "failed", f"{LAUNCH_FAILURE}; rank 1: lost connection", "rank1.log",
    ),
    "where SLURM watches memory by itself, it calls such a job FAILED": (
        runs(LOST, (21.0, leaves(JOB_LOG, LOG_OF_NO_MEMORY)), (22.0, state("FAILED", "JobLaunchFailure"))),
        "oom", f"SLURM: {NO_MEMORY}", JOB_LOG,
    ),
    "the last line of the log, of a program that did not start": (
        runs((9.0, leaves(JOB_LOG, LOG_OF_NO_MODULE)), (10.0, state("FAILED"))),
        "failed", f"{reason_of_end('FAILED')}: {NO_MODULE}", JOB_LOG,
    ),
    "it can never start": (
        [(1.0, state("PENDING", "PartitionConfig"))],
        "unsupported", why_never_starts(JobState("101", "PENDING", "PartitionConfig")), None,
    ),
    "it never ran": ([(2.0, state("FAILED", "JobLaunchFailure"))], "failed", LAUNCH_FAILURE, None),
    "the scheduler rejects it later": (
        [(2.0, state("FAILED", "BadConstraints"))],
        "unsupported", reason_of_end("FAILED", "BadConstraints"), None,
    ),
    "completed without a result": (
        runs((20.0, state("COMPLETED"))), "failed", f"{reason_of_end('COMPLETED')}: begun", JOB_LOG,
    ),
    "the wait for an explanation is limited": (
        runs((20.0, leaves_result("failed", "its own"))), "failed", "its own", "rank0.log",
    ),
    # Without accounting SLURM forgets jobs after some minutes, and at once when it is set up anew.
    "forgotten before it ran": ([(1.0, forgotten)], "failed", FORGOTTEN, None),
    "forgotten while it ran": (runs((20.0, forgotten)), "failed", FORGOTTEN, JOB_LOG),
    "the nodes do not see the folder": (
        [(1.0, state("RUNNING", nodes="h1")), (2.0, state("FAILED", "NonZeroExitCode"))], "failed", UNSEEN, None,
    ),
    **{
        f"its own row, {own}, of a job that was {ending}": (
            runs((20.0, leaves_result(own, "cancelled while it ran", gpus=2, block_s=None)), (22.0, state(ending))),
            status, reason_of_end(ending), "rank0.log",
        )
        for own in ("cancelled", "failed") for ending, status in ENDINGS.items()
    },
    **{
        f"a better reason of a job that has {ending}": (
            runs((20.0, leaves_result("failed", "rank 1: no such layer")), (22.0, state(ending))),
            "failed", "rank 1: no such layer", "rank0.log",
        )
        for ending in ("COMPLETED", "FAILED")
    },
    **{
        f"its own status {own}": (
            runs((20.0, leaves_result(own, "its own")), (20.0, state("CANCELLED"))), own, "its own",
            None if own == "ok" else "rank0.log",
        )
        for own in ("ok", "timeout", "oom", "unsupported")
    },
    "its row appears late": (runs((20.0, state("COMPLETED")), (75.0, leaves_result())), "ok", None, None),
    "its row appears in pieces": (
        runs((20.0, leaves(RESULT_FILE, '{"sche')), (26.0, leaves_result())), "ok", None, None
    ),
    "SLURM expects its start": (
        [(1.0, state("PENDING", "Priority", nodes="h1")), (7.0, leaves_result())], "ok", None, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcome_of_a_job(name, tmp_path):
    script, status, reason, log = OUTCOMES[name]
    result = end_of(tmp_path, script, gpus=2)
    assert (result.status, result.log) == (status, log)
    assert result.reason == (reason and reason.replace("{folder}", str(tmp_path / "0")))
    assert read_result(tmp_path / "0" / RESULT_FILE) == result
    assert name != "SLURM expects its start" or result.scheduler.queued_s is None


def test_an_incomplete_result_is_kept_beside_its_replacement(tmp_path):
    result = end_of(tmp_path, runs((20.0, leaves(RESULT_FILE, '{"schema')), (22.0, state("FAILED"))))
    assert result.status == "failed" and UNREADABLE_RESULT_FILE in result.reason
    assert (tmp_path / "0" / UNREADABLE_RESULT_FILE).read_text() == '{"schema'
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


def test_the_clock_of_the_scheduler_takes_precedence_over_those_of_two_hosts(tmp_path):
    """The job computes its time in the queue from the clocks of the login host and of its node."""
    own = SchedulerRecord("slurm", "101", "main", ["h1", "h2"], queued_s=3600.0)
    for name, left in {"none": {}, "own": {"scheduler": own}}.items():
        result = end_of(tmp_path / name, runs((30.0, leaves_result(**left)), nodes="h[1-2]"))
        assert result.scheduler == msgspec.structs.replace(own, queued_s=8.0), "and no state: it was not over yet"
    short = [(1.0, state("RUNNING", nodes="h1")), (2.0, leaves_result(scheduler=own))]
    assert end_of(tmp_path / "short", short).scheduler == own, "which is better than none"


# Script, what gets no answer, status, and when the last look may be.
WAITS = {
    "an ok row does not wait for the scheduler": (
        runs((31.0, leaves_result())), set(), "ok", 31.0, 31.0 + follow.POLL_INTERVAL_S
    ),
    "nor for one that does not answer": (
        runs((30.0, leaves_result())), {"squeue"}, "ok", 30.0, 30.5
    ),
    "a job that never ran leaves no files": (
        [(3.0, state("CANCELLED"))], set(), "cancelled", 3.0, 8.0 + follow.RESULT_LIMIT_S / 2
    ),
    "a job that ran may leave its row": (runs((12.0, state("CANCELLED"))), set(), "cancelled", 12.0, 3600.0),
    "a preempted one as well": (runs((12.0, state("PREEMPTED"))), set(), "cancelled", 12.0, 3600.0),
    "a job that can never start stays until the scheduler accepts its cancellation": (
        [(1.0, state("PENDING", "PartitionConfig")), (22.0, lambda scheduler, *_: scheduler.unreachable.clear())],
        {"scancel"}, "unsupported", 22.0, 28.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_job_is_waited_for_as_long_as_it_may_end_otherwise(name, tmp_path):
    script, unreachable, status, least_s, most_s = WAITS[name]
    scheduler = Scheduler([script], set(unreachable))
    result = end_of(tmp_path, scheduler=scheduler)
    assert result.status == status and least_s <= scheduler.now_s <= most_s
    assert len(scheduler.commands) <= 6, "no more often than the scheduler is queried"
