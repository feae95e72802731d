"""Jobs from their submission to their results: how the scheduler is queried, what is reported, and who ends them."""

import os
import signal

import pytest

from scalebench.cluster.commands import JobRefused, SlurmError, SlurmUnreachable, SubmitLimit
from scalebench.cluster.submit import read_submission
from scalebench.core import process
from scalebench.core.errors import InputError
from scalebench.core.json_files import read_record
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, JOB_RUNS_FILE, RESULT_FILE
from scalebench.core.spec import read_spec
from scalebench.runner.jobs import follow
from scalebench.runner.jobs.follow import LIMIT_PAUSE_S, RETRY_PAUSES_S
from scalebench.runner.jobs.job import JobRuns, PlannedJob
from scalebench.sweeps.console import describe_queue
from tests.runner.jobs.fake_scheduler import (
    SUCCESSFUL,
    Scheduler,
    Sweep,
    forgotten,
    leaves_result,
    runs,
    state,
)


def test_results_come_in_the_order_of_completion_and_are_those_of_the_jobs(tmp_path):
    slow = runs((60.0, leaves_result()), (60.5, state("COMPLETED")))
    sweep = Sweep(tmp_path, Scheduler([slow, SUCCESSFUL]))
    requests = sweep.requests()
    results = sweep.ends(requests)
    assert [number for number, _ in results] == [1, 0]
    assert [result.run_id for _, result in results] == ["of job 102", "of job 101"]
    for each, (number, result) in zip(reversed(requests), results, strict=True):
        assert (each.number, read_spec(each.folder)) == (number, each.spec)
        assert read_result(each.folder / RESULT_FILE) == result and result.status == "ok"
    assert sweep.follower.unfinished == 0 and sweep.ends([]) == []


def test_changes_are_reported_and_running_jobs_at_every_check(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, runs((40.0, leaves_result()))]), max_jobs=1)
    sweep.ends()
    told = [(s.waiting, s.pending, s.reason, [r.number for r in s.runs], s.over) for s in sweep.states_reported]
    calm = [s for s in told if not s[3]]
    assert calm[0] == (1, 1, "Priority", [], 0) and calm[-1] == (0, 0, None, [], 2)
    assert len(calm) == len({*map(str, calm)}), "nothing is told twice"
    assert told.count((1, 0, None, [0], 0)) == 40, "from the answer at 10 s to the row at 30 s"


def test_a_scheduler_that_is_silent_for_an_hour_ends_the_wait(tmp_path):
    scheduler = Scheduler([SUCCESSFUL, runs()], unreachable={"squeue"})
    sweep = Sweep(tmp_path, scheduler)
    results = dict(sweep.ends())
    assert results[0].status == "ok" and 3600 < scheduler.now_s < 3700
    silence = "squeue: Unable to contact slurm controller (connect failure)"
    assert results[1].reason == f"no news of job 102 for 60 min: {silence}"
    assert {s.error for s in sweep.states_reported} == {silence}


def test_a_job_that_the_scheduler_does_not_list_yet_is_not_over(tmp_path):
    """The queue may drop a short job before the first query, and accounting lists it a little later."""

    def hidden(scheduler, job_id, folder):
        kept[job_id] = scheduler.states.pop(job_id)

    kept = {}
    comes = (22.0, lambda scheduler, job_id, folder: scheduler.states.update(kept))
    scheduler = Scheduler([[(0.2, hidden), comes, (60.0, leaves_result())]])
    assert [result.status for _, result in Sweep(tmp_path, scheduler).ends()] == ["ok"]


def test_adopted_jobs_are_followed_and_not_submitted(tmp_path):
    first = Sweep(tmp_path, Scheduler([SUCCESSFUL, SUCCESSFUL]))
    requests = first.requests()
    results = first.follow(requests)
    first.scheduler.scripts[1:] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        next(results)
    scheduler = first.scheduler
    scheduler.scripts = [SUCCESSFUL]
    second = Sweep(tmp_path, scheduler, max_jobs=1)
    expected = [(0, "ok"), (1, "ok")]
    assert [(number, result.status) for number, result in second.ends(requests[1:], requests[:1])] == expected
    assert scheduler.submitted == [tmp_path / "0", tmp_path / "1"]


@pytest.mark.parametrize(("left", "word"), [(None, "holds no job.json"), ('{"job', "job.json cannot be read")])
def test_an_adopted_run_without_a_job_id_is_a_failed_result(left, word, tmp_path):
    sweep = Sweep(tmp_path, Scheduler())
    (each,) = sweep.requests(1)
    if left is not None:
        each.folder.mkdir()
        (each.folder / "job.json").write_text(left)
    ((_, result),) = sweep.ends([], [each])
    assert result.status == "failed" and result.reason is not None and word in result.reason


# The follower ends all jobs when the sweep is cancelled.
def cancel_at(sweep, after_s):
    """The results after somebody pressed Ctrl-C then, and line yes."""
    results, real, found = sweep.follow(sweep.requests()), sweep.follower._pause, []

    def pause(seconds):
        real(seconds)
        if sweep.scheduler.now_s >= after_s and not pressed:
            pressed.append(True)
            process.cancelled.set()
            raise KeyboardInterrupt

    pressed = []
    sweep.follower._pause = pause
    while True:
        try:
            for each, result in results:
                found.append((each.number, result.status, result.reason))  # kept when it is interrupted
            return found
        except KeyboardInterrupt:
            sweep.follower.cancel()
            assert not process.cancelled.is_set(), "another Ctrl-C is handled again"


def test_cancelling_leaves_a_result_of_every_run(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, runs(), [], SUCCESSFUL]), max_jobs=2)
    found = cancel_at(sweep, 31.2)
    assert [(number, status) for number, status, _ in found] == [
        (0, "ok"), (3, "cancelled"), (2, "cancelled"), (1, "cancelled")
    ]  # fmt: skip
    assert found[1][2] == "cancelled before it was submitted" and len(sweep.scheduler.submitted) == 3
    assert sweep.scheduler.commands == [("scancel", "102", "103")]
    assert read_result(tmp_path / "3" / RESULT_FILE).status == "cancelled"
    assert sweep.follower.unfinished == 0


def test_a_cancellation_that_the_scheduler_does_not_accept_is_repeated(tmp_path):
    answers = (30.0, lambda scheduler, job_id, folder: scheduler.unreachable.clear())
    sweep = Sweep(tmp_path, Scheduler([runs(answers)], unreachable={"scancel"}))
    ((_, status, reason),) = cancel_at(sweep, 20.0)
    assert status == "cancelled" and reason is not None and "101" in reason
    assert sweep.scheduler.states["101"].state == "CANCELLED" and sweep.scheduler.now_s < 60.0


def test_the_wait_for_a_scheduler_that_never_answers_is_limited(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([runs()], unreachable={"scancel", "squeue"}))
    found = cancel_at(sweep, 20.0)
    assert found == [(0, "cancelled", "cancelled; after 60 s SLURM still did not report job 101 as over: scancel 101")]
    assert sweep.scheduler.now_s <= 20.0 + follow.CANCEL_LIMIT_S + 2 * follow.POLL_INTERVAL_S


def test_a_cancelled_job_that_the_scheduler_forgets_is_cancelled(tmp_path):
    scheduler = Scheduler([runs((25.0, forgotten))])
    scheduler.end = lambda job_id, word: None  # it goes on for a while
    assert cancel_at(Sweep(tmp_path, scheduler), 20.0) == [(0, "cancelled", "cancelled with its job 101")]


# Submissions that fail: each is one failed result, and the sweep goes on.
GONE = SlurmUnreachable("sbatch: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize(("error", "status", "reason"), [
    (JobRefused("invalid partition specified: gpux"), "unsupported", "invalid partition specified: gpux"),
    (SlurmError("sbatch made no sense"), "failed", "it could not be submitted: sbatch made no sense"),
    (InputError("no such image"), "failed", "it could not be submitted: no such image"),
])  # fmt: skip
def test_a_refused_submission_is_a_result_at_once(error, status, reason, tmp_path):
    sweep = Sweep(tmp_path, Scheduler([error, SUCCESSFUL]))
    results = sweep.follow(sweep.requests())
    each, result = next(results)
    assert (each.number, result.status, result.reason, result.scheduler) == (0, status, reason, None)
    assert sweep.scheduler.now_s == 0.0 and read_result(tmp_path / "0" / RESULT_FILE) == result
    assert [(each.number, result.status) for each, result in results] == [(1, "ok")]


def test_runs_of_one_job_are_submitted_once_and_followed_each(tmp_path):
    """What the job leaves is theirs; where it is refused, so are all."""
    refused, done = JobRefused("no such partition"), runs((20.0, state("COMPLETED")))
    sweep = Sweep(tmp_path, Scheduler([done, refused]), max_jobs=1)
    first, second, third, fourth = sweep.requests(4)
    units = [[first, second]], [[third], [fourth]]
    jobs = [PlannedJob(tmp_path / name, list(unit)) for name, unit in zip(("job0", "job2"), units, strict=True)]
    results = sweep.follower.follow(jobs)
    first.folder.mkdir()
    comes = leaves_result()
    sweep.scheduler._to_come.append(
        (9.0, lambda scheduler, job_id, folder: comes(scheduler, "", first.folder), "", tmp_path)
    )
    assert next(results)[0] is first and sweep.follower.unfinished == 1, "the other run of its job"
    ends = {request.number: (result.status, result.reason) for request, result in results}
    assert ends[1][0] == "failed" and ends[1][1].endswith(f"(COMPLETED): {tmp_path}/job0/job.log has its output")
    assert ends[2] == ends[3] == ("unsupported", "no such partition")
    assert sweep.scheduler.submitted == [tmp_path / "job0"]
    assert read_submission(second.folder).job_folder == "../job0"
    assert read_record(tmp_path / "job0" / JOB_RUNS_FILE, JobRuns).units == [{"../0": None, "../1": None}]


def test_without_a_controller_each_run_fails_after_one_try(tmp_path):
    """All pauses are taken once; then each run has one try."""
    sweep = Sweep(tmp_path, Scheduler([GONE] * (len(RETRY_PAUSES_S) + 3) + [SUCCESSFUL] + [GONE, SUCCESSFUL]))
    results = sweep.ends(sweep.requests(5))
    assert [(number, result.status) for number, result in results[:3]] == [(0, "failed"), (1, "failed"), (2, "failed")]
    assert results[0][1].reason == f"it could not be submitted: {GONE}"
    assert [result.status for _, result in results[3:]] == ["ok", "ok"], "after an answer all pauses are taken again"
    assert sweep.scheduler.now_s >= sum(RETRY_PAUSES_S)


def test_a_limit_on_submitted_jobs_is_waited_for(tmp_path):
    limit = SubmitLimit("AssocMaxSubmitJobLimit")
    sweep = Sweep(tmp_path, Scheduler([SUCCESSFUL, *[limit] * 60, SUCCESSFUL]))
    assert [result.status for _, result in sweep.ends(sweep.requests(2))] == ["ok", "ok"]
    assert sweep.scheduler.now_s >= 60 * LIMIT_PAUSE_S, "longer than for a controller that restarts"
    lines = [describe_queue(queue) for queue in sweep.states_reported]
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
    assert sorted(os.listdir(folder)) == ["job_runs.json", "multirun.yaml", "result.json", "spec.json"]


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

    sweep.follower._submit = interrupted
    results = sweep.follow(sweep.requests())
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert sweep.follower.unfinished == 1 and read_submission(tmp_path / "0") is not None
    assert [result.status for _, result in results] == ["ok"], "and the iterator continues"
