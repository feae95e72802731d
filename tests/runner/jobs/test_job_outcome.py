"""The result of a job that failed: its status, the reason of the scheduler, and the log with details."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from scalebench.core.json_files import write_json
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_LOG, RESULT_FILE, UNREADABLE_RESULT_FILE, rank_record_path
from scalebench.runner.jobs import outcome
from scalebench.slurm.job_states import JobState, classify_end
from tests.builders.runs import rank
from tests.runner.jobs.fake_scheduler import (
    BEGUN_S,
    Event,
    Scheduler,
    Script,
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


def leaves_failed_rank(number: int, reason: str, at_s: float = 1.0) -> Event:
    """Return an event in which a rank leaves the record of a failure."""

    def happens(scheduler: Scheduler, job_id: str, folder: Path) -> None:
        failed = rank(number, status="failed", reason=reason, failed_at_s=at_s)
        write_json(rank_record_path(folder, number), failed)
        leaves(f"rank{number}.log")(scheduler, job_id, folder)

    return happens


def reason_of_end(ending: str) -> str | None:
    return classify_end(JobState("101", ending, node_list="h1"))[1]


@pytest.mark.parametrize(("ending", "status"), ENDINGS)
def test_an_external_end_is_the_reason(ending: str, status: str, tmp_path: Path) -> None:
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
def test_a_result_of_an_ended_job_names_the_external_reason(own: str, ending: str, status: str, tmp_path: Path) -> None:
    script = runs((20.0, leaves_result(own, "cancelled while it ran", gpus=2)), (22.0, state(ending)))
    result = end_of(tmp_path, script)
    assert (result.status, result.reason, result.run_id) == (status, reason_of_end(ending), "of job 101")
    assert result.scheduler is not None and result.scheduler.state == ending
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


@pytest.mark.parametrize("ending", ["COMPLETED", "FAILED"])
def test_a_result_with_a_better_reason_stays(ending: str, tmp_path: Path) -> None:
    result = end_of(tmp_path, runs((20.0, leaves_result("failed", "rank 1: no such layer")), (22.0, state(ending))))
    assert (result.status, result.reason, result.log) == ("failed", "rank 1: no such layer", "rank0.log")
    assert result.scheduler is not None and result.scheduler.state == ending


@pytest.mark.parametrize("own", ["ok", "timeout", "oom", "unsupported"])
def test_a_status_that_the_run_recorded_itself_stays(own: str, tmp_path: Path) -> None:
    result = end_of(tmp_path, runs((20.0, leaves_result(own, "its own")), (20.0, state("CANCELLED"))))
    assert (result.status, result.reason) == (own, "its own")


def test_the_wait_for_an_explanation_of_a_failed_result_is_limited(tmp_path: Path) -> None:
    result = end_of(tmp_path, runs((20.0, leaves_result("failed", "its own"))))
    assert (result.status, result.reason) == ("failed", "its own")


def test_rank_records_give_the_reason_where_the_scheduler_has_none(tmp_path: Path) -> None:
    script = runs(
        (20.0, leaves_failed_rank(0, "Connection reset", 5.0)),
        (20.0, leaves_failed_rank(1, "no memory", 4.0)),
        (22.0, state("FAILED")),
    )
    result = end_of(tmp_path, script, gpus=2)
    assert (result.status, result.reason, result.log) == ("failed", "rank 1: no memory", "rank1.log")


def test_records_of_ranks_whose_parent_was_killed_come_second(tmp_path: Path) -> None:
    script = runs((20.0, leaves_failed_rank(1, "lost connection")), (22.0, state("FAILED", "JobLaunchFailure")))
    result = end_of(tmp_path, script, gpus=2)
    assert result.status == "failed"
    assert result.reason == "SLURM job 101 failed (FAILED, JobLaunchFailure); rank 1: lost connection"


def test_the_log_reports_a_lack_of_memory(tmp_path: Path) -> None:
    """Where SLURM watches memory by itself, it calls such a job FAILED."""
    line = "StepId=101.batch exceeded memory limit (2 > 1), being killed"
    log = leaves(JOB_LOG, f"slurmstepd-h1: error: {line}\nslurmstepd-h1: error: *** JOB 101 ON h1 CANCELLED AT x ***\n")
    script = runs(
        (20.0, leaves_failed_rank(1, "lost connection")), (21.0, log), (22.0, state("FAILED", "JobLaunchFailure"))
    )
    result = end_of(tmp_path, script, gpus=2)
    assert (result.status, result.reason) == ("oom", f"SLURM: {line}")


def test_the_last_line_of_the_log_is_the_reason_of_a_program_that_did_not_start(tmp_path: Path) -> None:
    line = "/usr/bin/python3: No module named scalebench"
    log = leaves(JOB_LOG, f"first\n{'x' * 9000}\n{line}\nsubmitit INFO (now) - begun\n\n")
    result = end_of(tmp_path, runs((9.0, log), (10.0, state("FAILED"))))
    assert (result.status, result.log) == ("failed", JOB_LOG)
    assert result.reason == f"{reason_of_end('FAILED')}: {line}"


def test_a_folder_that_the_nodes_do_not_see_is_the_reason(tmp_path: Path) -> None:
    nothing: Script = [(1.0, state("RUNNING", nodes="h1")), (2.0, state("FAILED", "NonZeroExitCode"))]
    result = end_of(tmp_path, nothing)
    assert (result.status, result.log) == ("failed", None)
    assert result.reason == (
        f"job 101 ran on h1 and left nothing in {tmp_path / '0'}: the nodes do not see this folder; set "
        "hydra.sweep.dir (or hydra.run.dir) to one that they share"
    )


def test_a_job_that_never_ran_has_the_reason_of_the_scheduler(tmp_path: Path) -> None:
    script: Script = [(2.0, state("FAILED", "JobLaunchFailure"))]
    assert end_of(tmp_path, script).reason == "SLURM job 101 failed (FAILED, JobLaunchFailure)"


def test_a_job_that_the_scheduler_rejects_later_is_unsupported(tmp_path: Path) -> None:
    result = end_of(tmp_path, [(2.0, state("FAILED", "BadConstraints"))])
    assert (result.status, result.reason) == classify_end(JobState("101", "FAILED", "BadConstraints"))
    assert result.status == "unsupported"


def test_a_completed_job_without_a_result_failed(tmp_path: Path) -> None:
    result = end_of(tmp_path, runs((20.0, state("COMPLETED"))))
    assert result.status == "failed" and result.reason is not None and result.reason.endswith(": begun")


@pytest.mark.parametrize("start", [0.0, 8.0])
def test_a_job_that_the_scheduler_does_not_list_any_more_failed(start: float, tmp_path: Path) -> None:
    """Without accounting SLURM forgets jobs after some minutes, and at once when it is set up anew."""
    script: Script = [(1.0, forgotten)] if not start else runs((20.0, forgotten))
    result = end_of(tmp_path, script)
    assert result.status == "failed" and result.scheduler is not None and result.scheduler.state is None
    assert result.reason == "SLURM does not list job 101 any more, and it left no result.json"


def test_an_incomplete_result_is_kept_beside_its_replacement(tmp_path: Path) -> None:
    result = end_of(tmp_path, runs((20.0, leaves(RESULT_FILE, '{"schema')), (22.0, state("FAILED"))))
    assert result.status == "failed" and result.reason is not None and UNREADABLE_RESULT_FILE in result.reason
    assert (tmp_path / "0" / UNREADABLE_RESULT_FILE).read_text() == '{"schema'
    assert read_result(tmp_path / "0" / RESULT_FILE) == result


def test_a_result_that_only_a_listing_shows_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over NFS, which remembers for a minute that there was none."""
    leaves_result()(Scheduler(), "1", tmp_path)
    monkeypatch.setattr(outcome.os.path, "exists", lambda path: False)
    assert outcome.read_job_result(tmp_path, fresh=False) is None
    assert outcome.read_job_result(tmp_path, fresh=True) is not None
    assert outcome.read_job_result(tmp_path / "gone", fresh=True) is None
