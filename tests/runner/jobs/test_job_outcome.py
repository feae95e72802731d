"""The result of a job that failed: its status, the reason of the scheduler, and the log with details."""

from datetime import UTC, datetime

import pytest

from scalebench.core.json_files import write_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE, rank_record_path
from scalebench.slurm.job_states import JobState, classify_end
from tests.builders.runs import rank
from tests.runner.jobs.fake_scheduler import (
    BEGUN_S,
    end_of,
    forgotten,
    leaves,
    leaves_result,
    runs,
    state,
)

ENDINGS = [
    ("CANCELLED", "cancelled"), ("PREEMPTED", "cancelled"), ("TIMEOUT", "timeout"), ("DEADLINE", "timeout"),
    ("OUT_OF_MEMORY", "oom"), ("NODE_FAIL", "failed"), ("BOOT_FAIL", "failed"),
]  # fmt: skip


def leaves_failed_rank(number, reason, at_s=1.0):
    """Return an event in which a rank leaves the record of a failure."""

    def happens(scheduler, job_id, folder):
        failed = rank(number, status="failed", reason=reason, failed_at_s=at_s)
        write_json(rank_record_path(folder, number), failed)
        leaves(f"rank{number}.log")(scheduler, job_id, folder)

    return happens


def reason_of_end(ending):
    return classify_end(JobState("101", ending, node_list="h1"))[1]


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
def test_an_external_end_is_the_reason(ending, status, tmp_path):
    """Also where ranks report its consequences."""
    script = runs(
        (20.0, leaves_failed_rank(1, "Connection reset by peer")),
        (21.0, leaves("progress0.json")),
        (22.0, state(ending)),
    )
    result = end_of(tmp_path, script, gpus=2)
    assert (result.status, result.reason, result.log) == (status, reason_of_end(ending), JOB_LOG)
    assert [r.rank for r in result.ranks] == [1], "what was left is kept"
    s = result.scheduler
    assert s is not None and (s.state, s.nodes, s.queued_s, s.partition) == (ending, ["h1"], 8.0, "main")
    assert result.started_at == datetime.fromtimestamp(BEGUN_S + 8.0, UTC).isoformat(timespec="milliseconds")
    assert read_result(tmp_path / "0" / RESULT_FILE) == result
    assert not (tmp_path / "0" / "progress0.json").exists()


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
@pytest.mark.parametrize("own", ["cancelled", "failed"])
def test_a_result_of_an_ended_job_names_the_external_reason(own, ending, status, tmp_path):
    left = leaves_result(own, "cancelled while it ran", gpus=2, block_s=None)
    result = end_of(tmp_path, runs((20.0, left), (22.0, state(ending))))
    assert (result.status, result.reason, result.run_id) == (status, reason_of_end(ending), "of job 101")
    assert result.scheduler is not None and result.scheduler.state == ending
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


def leaves_measured_rank(number):
    """Return an event in which a rank leaves the figures that it measured before its probes."""
    return lambda scheduler, job_id, folder: write_json(rank_record_path(folder, number), rank(number, [0.1] * 4))


@pytest.mark.gpu
@pytest.mark.parametrize(("ending", "status"), ENDINGS)
@pytest.mark.parametrize("measured", [1, 2])
@pytest.mark.parametrize("leaves_row", [True, False])
def test_an_external_end_during_the_probes_keeps_the_figures(leaves_row, measured, ending, status, tmp_path):
    """Somebody who cancels a run means all of it."""
    ranks = [rank(number, [0.1] * 4) for number in range(measured)]
    left = [leaves_result("cancelled", "cancelled while it ran", gpus=2, ranks=ranks)] if leaves_row else []
    left = left or [leaves_measured_rank(number) for number in range(measured)]
    result = end_of(tmp_path, runs(*((20.0, event) for event in left), (22.0, state(ending))), gpus=2)
    is_ok = measured == 2 and status != "cancelled"
    assert (result.status, result.reason) == (("ok", None) if is_ok else (status, reason_of_end(ending)))
    assert ("probe_failed" in result.flags) == is_ok
    assert result.ranks[0].probe_failures == ({"probes": reason_of_end(ending)} if is_ok else {})
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


@pytest.mark.parametrize("ending", ["COMPLETED", "FAILED"])
def test_a_result_with_a_better_reason_stays(ending, tmp_path):
    result = end_of(tmp_path, runs((20.0, leaves_result("failed", "rank 1: no such layer")), (22.0, state(ending))))
    assert (result.status, result.reason, result.log) == ("failed", "rank 1: no such layer", "rank0.log")
    assert result.scheduler is not None and result.scheduler.state == ending


@pytest.mark.parametrize("own", ["ok", "timeout", "oom", "unsupported"])
def test_a_status_that_the_run_recorded_itself_stays(own, tmp_path):
    result = end_of(tmp_path, runs((20.0, leaves_result(own, "its own")), (20.0, state("CANCELLED"))))
    assert (result.status, result.reason) == (own, "its own")


NO_MODULE = "/usr/bin/python3: No module named scalebench"
LOG_OF_NO_MODULE = f"first\n{'x' * 9000}\n{NO_MODULE}\nsubmitit INFO (now) - begun\n\n"
NO_MEMORY = "StepId=101.batch exceeded memory limit (2 > 1), being killed"
LOG_OF_NO_MEMORY = f"slurmstepd-h1: error: {NO_MEMORY}\nslurmstepd-h1: error: *** JOB 101 ON h1 CANCELLED AT x ***\n"
LAUNCH_FAILURE = "SLURM job 101 failed (FAILED, JobLaunchFailure)"
LOST = (20.0, leaves_failed_rank(1, "lost connection"))
# script, status, reason, log
OUTCOMES = {
    "rank records give the reason where the scheduler has none": (
        runs(
            (20.0, leaves_failed_rank(0, "Connection reset", 5.0)),
            (20.0, leaves_failed_rank(1, "no memory", 4.0)),
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
    "it never ran": ([(2.0, state("FAILED", "JobLaunchFailure"))], "failed", LAUNCH_FAILURE, None),
    "the scheduler rejects it later": (
        [(2.0, state("FAILED", "BadConstraints"))],
        "unsupported", classify_end(JobState("101", "FAILED", "BadConstraints"))[1], None,
    ),
    "completed without a result": (
        runs((20.0, state("COMPLETED"))), "failed", f"{reason_of_end('COMPLETED')}: begun", JOB_LOG,
    ),
    "the wait for an explanation is limited": (
        runs((20.0, leaves_result("failed", "its own"))), "failed", "its own", "rank0.log",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_reason_of_a_failed_job(name, tmp_path):
    script, *expected = OUTCOMES[name]
    result = end_of(tmp_path, script, gpus=2)
    assert [result.status, result.reason, result.log] == expected


def test_a_folder_that_the_nodes_do_not_see_is_the_reason(tmp_path):
    nothing = [(1.0, state("RUNNING", nodes="h1")), (2.0, state("FAILED", "NonZeroExitCode"))]
    result = end_of(tmp_path, nothing)
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == (
        f"job 101 ran on h1 and left nothing in {tmp_path / '0'}: the nodes do not see this folder; set "
        "hydra.sweep.dir (or hydra.run.dir) to one that they share"
    )


@pytest.mark.parametrize("start", [0.0, 8.0])
def test_a_job_that_the_scheduler_does_not_list_any_more_failed(start, tmp_path):
    """Without accounting SLURM forgets jobs after some minutes, and at once when it is set up anew."""
    script = [(1.0, forgotten)] if not start else runs((20.0, forgotten))
    result = end_of(tmp_path, script)
    assert result.status == "failed" and result.scheduler is not None and result.scheduler.state is None
    assert result.reason == "SLURM does not list job 101 any more, and it left no result.json"


def test_an_incomplete_result_is_kept_beside_its_replacement(tmp_path):
    result = end_of(tmp_path, runs((20.0, leaves(RESULT_FILE, '{"schema')), (22.0, state("FAILED"))))
    assert result.status == "failed" and result.reason is not None and UNREADABLE_RESULT_FILE in result.reason
    assert (tmp_path / "0" / UNREADABLE_RESULT_FILE).read_text() == '{"schema'
    assert read_result(tmp_path / "0" / RESULT_FILE) == result
