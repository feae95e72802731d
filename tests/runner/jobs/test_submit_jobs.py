"""Submissions that fail: each is one failed result, and the sweep goes on."""

import signal

import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, RESULT_FILE
from scalebench.runner.jobs.submit import LIMIT_PAUSE_S, RETRY_PAUSES_S
from scalebench.slurm.commands import JobRefused, SlurmError, SlurmUnreachable, SubmitLimit
from scalebench.slurm.submit import read_submission
from scalebench.sweeps.console import describe_queue_counts
from tests.runner.jobs.fake_scheduler import SUCCESSFUL, Scheduler, Sweep

GONE = SlurmUnreachable("sbatch: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (JobRefused("invalid partition specified: gpux"), "unsupported", "invalid partition specified: gpux"),
        (SlurmError("sbatch made no sense"), "failed", "it could not be submitted: sbatch made no sense"),
        (InputError("no such image"), "failed", "it could not be submitted: no such image"),
    ],
)
def test_a_refused_submission_is_a_result_at_once(error, status, reason, tmp_path):
    sweep = Sweep(tmp_path, Scheduler([error, SUCCESSFUL]))
    results = sweep.follower.follow(sweep.requests())
    each, result = next(results)
    assert (each.number, result.status, result.reason, result.scheduler) == (0, status, reason, None)
    assert sweep.scheduler.now_s == 0.0 and read_result(tmp_path / "0" / RESULT_FILE) == result
    assert [(each.number, result.status) for each, result in results] == [(1, "ok")]


def test_an_unsupported_run_is_not_submitted(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL]))
    requests = sweep.requests(2)
    requests[0].spec.unsupported = "one process cannot span two nodes"
    results = sweep.ends(requests)
    assert (results[0][1].status, results[0][1].reason) == ("unsupported", "one process cannot span two nodes")
    assert results[1][1].status == "ok" and len(sweep.scheduler.submitted) == 1


def test_a_submission_is_repeated_while_the_controller_restarts(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([GONE, GONE, GONE, SUCCESSFUL, SUCCESSFUL]))
    results = sweep.ends(sweep.requests(2))
    assert [result.status for _, result in results] == ["ok", "ok"]
    assert sweep.scheduler.now_s >= sum(RETRY_PAUSES_S[:3])


def test_without_a_controller_each_run_fails_after_one_try(tmp_path):
    """All pauses are taken once; then each run has one try."""
    sweep = Sweep(tmp_path, Scheduler([GONE] * (len(RETRY_PAUSES_S) + 3) + [SUCCESSFUL] + [GONE, SUCCESSFUL]))
    results = sweep.ends(sweep.requests(5))
    assert [(number, result.status) for number, result in results[:3]] == [(0, "failed"), (1, "failed"), (2, "failed")]
    assert results[0][1].reason == f"it could not be submitted: {GONE}"
    assert [result.status for _, result in results[3:]] == ["ok", "ok"], "after an answer all pauses are taken again"


def test_a_limit_on_submitted_jobs_is_waited_for(tmp_path):
    limit = SubmitLimit("AssocMaxSubmitJobLimit")
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, *[limit] * 60, SUCCESSFUL]))
    assert [result.status for _, result in sweep.ends(sweep.requests(2))] == ["ok", "ok"]
    assert sweep.scheduler.now_s >= 60 * LIMIT_PAUSE_S, "longer than for a controller that restarts"
    lines = [describe_queue_counts(queue) for queue in sweep.states_reported]
    assert any("1 not submitted yet (AssocMaxSubmitJobLimit)" in line for line in lines)
    assert "Limit" not in lines[-1]


def test_results_come_in_while_a_submission_is_repeated(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, *[GONE] * 5]))
    (first, _), (second, result) = list(sweep.ends(sweep.requests(2)))
    assert {first, second} == {0, 1} and sweep.scheduler.now_s <= sum(RETRY_PAUSES_S) + 1.0 and result is not None


def test_files_of_an_earlier_job_are_removed(tmp_path):
    folder = tmp_path / "0"
    folder.mkdir()
    old = [JOB_FILE, JOB_LOG, "rank3.json", "progress0.json"]
    for name in [*old, "multirun.yaml"]:
        (folder / name).write_text("old")
    sweep = Sweep(tmp_path, Scheduler([JobRefused("no")]))
    sweep.ends()
    assert sorted(path.name for path in folder.iterdir()) == ["multirun.yaml", "result.json", "spec.json"]


def test_a_folder_that_cannot_be_created_is_a_failed_result(tmp_path):
    (tmp_path / "0").write_text("in the way")
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL]))
    results = sweep.ends(sweep.requests(2))
    assert [result.status for _, result in results] == ["failed", "ok"]
    assert results[0][1].reason is not None and f"{tmp_path / '0'} cannot be written: " in results[0][1].reason


def test_ctrl_c_waits_until_the_job_id_is_recorded(tmp_path):
    """A job whose id was lost would go on unnoticed."""
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL]))
    real = sweep.scheduler.submit

    def interrupted(spec, folder):
        signal.raise_signal(signal.SIGINT)
        return real(spec, folder)

    sweep.follower._submitter._submit = interrupted
    results = sweep.follower.follow(sweep.requests())
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert sweep.follower.unfinished == 1 and read_submission(tmp_path / "0") is not None
    assert [result.status for _, result in results] == ["ok"], "and the iterator continues"
