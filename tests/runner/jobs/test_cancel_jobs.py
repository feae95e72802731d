"""Jobs that the follower ends: those that can never start, and all of them when the sweep is cancelled."""

import math

import pytest

from scalebench.core import process
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.runner.jobs import follow
from scalebench.slurm.job_states import JobState, why_never_starts
from tests.runner.jobs.fake_scheduler import (
    SUCCESSFUL,
    Scheduler,
    Sweep,
    forgotten,
    leaves_result,
    runs,
    state,
)

NEVER = [(1.0, state("PENDING", "PartitionConfig"))]


def test_a_job_that_can_never_start_is_unsupported_and_leaves_the_queue(tmp_path):
    sweep = Sweep(tmp_path, Scheduler([NEVER, SUCCESSFUL]))
    results = sweep.ends()
    assert [(number, result.status) for number, result in results] == [(0, "unsupported"), (1, "ok")]
    assert results[0][1].reason == why_never_starts(JobState("101", "PENDING", "PartitionConfig"))
    assert sweep.scheduler.commands == [("scancel", "101")]
    assert read_result(tmp_path / "0" / RESULT_FILE) == results[0][1]


def test_a_job_stays_until_the_scheduler_accepts_its_cancellation(tmp_path):
    scheduler = Scheduler(
        [[*NEVER, (22.0, lambda scheduler, job_id, folder: scheduler.unreachable.clear())]], {"scancel"}
    )
    ((_, result),) = Sweep(tmp_path, scheduler).ends()
    assert result.status == "unsupported" and 22.0 <= scheduler.now_s <= 28.0
    assert len(scheduler.commands) <= 6, "repeated no more often than the scheduler is queried"


def cancel_at(sweep, after_s):
    """The results after somebody pressed Ctrl-C then, and line yes."""
    results, real, found = sweep.follower.follow(sweep.requests()), sweep.follower._pause, []

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


def test_a_result_that_a_cancelled_job_still_writes_is_kept(tmp_path):
    scheduler = Scheduler([runs()])
    sweep = Sweep(tmp_path, scheduler)
    end = scheduler.end

    def end_with_row(job_id, word):
        leaves_result("cancelled", "cancelled while it ran", gpus=2)(scheduler, job_id, tmp_path / "0")
        end(job_id, word)

    scheduler.end = end_with_row
    ((_, status, _),) = cancel_at(sweep, 20.0)
    result = read_result(tmp_path / "0" / RESULT_FILE)
    assert status == "cancelled" and len(result.ranks) == 2 and result.scheduler is not None
    assert result.scheduler.state == "CANCELLED"


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
    scheduler = Scheduler([runs((40.0, forgotten))])
    scheduler.end = lambda job_id, word: None  # type: ignore[method-assign]  # it goes on for a while
    assert cancel_at(Sweep(tmp_path, scheduler), 20.0) == [(0, "cancelled", "cancelled with its job 101")]


@pytest.mark.parametrize(
    ("script", "limit_s"),
    [
        ([(3.0, state("CANCELLED"))], 3.0 + 5.0 + follow.RESULT_LIMIT_S / 2),  # it never ran, and leaves no files
        (runs((12.0, state("CANCELLED"))), math.inf),
        (runs((12.0, state("PREEMPTED"))), math.inf),
    ],
)
def test_a_job_that_is_ended_from_outside_is_cancelled(script, limit_s, tmp_path):
    scheduler = Scheduler([script])
    ((_, result),) = Sweep(tmp_path, scheduler).ends()
    assert result.status == "cancelled" and scheduler.now_s < limit_s
