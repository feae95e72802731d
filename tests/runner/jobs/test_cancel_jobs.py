"""Jobs that are ended from here: those that can never start, and all of them when somebody cancels the sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core import process
from scalebench.core.result import read_result
from scalebench.core.run_folder import RESULT_FILE
from scalebench.runner.jobs import follow
from scalebench.slurm.job_states import JobState, never
from tests.runner.jobs.fake_scheduler import GOOD, Play, Scheduler, Sweep, end_of, forgotten, row, runs, state

NEVER: Play = [(1.0, state("PENDING", "PartitionConfig"))]


def test_a_job_that_can_never_start_is_unsupported_and_leaves_the_queue(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([NEVER, GOOD]))
    rows = sweep.ends()
    assert [(number, result.status) for number, result in rows] == [(0, "unsupported"), (1, "ok")]
    assert rows[0][1].reason == never(JobState("101", "PENDING", "PartitionConfig"))
    assert sweep.scheduler.commands == [("scancel", "101")]
    assert read_result(tmp_path / "0" / RESULT_FILE) == rows[0][1]


def test_it_stays_until_the_scheduler_lets_it_go(tmp_path: Path) -> None:
    scheduler = Scheduler([[*NEVER, (22.0, lambda scheduler, job_id, folder: scheduler.deaf.clear())]], {"scancel"})
    ((_, result),) = Sweep(tmp_path, scheduler).ends()
    assert result.status == "unsupported" and 22.0 <= scheduler.now_s <= 28.0
    assert len(scheduler.commands) <= 6, "asked no more often than the scheduler is"


def cancelled_at(sweep: Sweep, after_s: float) -> list[tuple[int, str, str | None]]:
    """The rows after somebody pressed Ctrl-C then, and said yes."""
    rows, real, found = sweep.cluster.follow(sweep.asked()), sweep.cluster._pause, []

    def pause(seconds: float) -> None:
        real(seconds)
        if sweep.scheduler.now_s >= after_s and not pressed:
            pressed.append(True)
            process.cancelled.set()
            raise KeyboardInterrupt

    pressed: list[bool] = []
    sweep.cluster._pause = pause
    while True:
        try:
            for each, result in rows:
                found.append((each.number, result.status, result.reason))  # kept when it is interrupted
            return found
        except KeyboardInterrupt:
            sweep.cluster.cancel()
            assert not process.cancelled.is_set(), "another Ctrl-C is heard again"


def test_cancelling_leaves_a_row_of_every_run(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([GOOD, runs(), [], GOOD]), max_jobs=2)
    found = cancelled_at(sweep, 31.2)
    assert [(number, status) for number, status, _ in found] == [
        (0, "ok"), (3, "cancelled"), (2, "cancelled"), (1, "cancelled")
    ]  # fmt: skip
    assert found[1][2] == "cancelled before it was submitted" and len(sweep.scheduler.submitted) == 3
    assert sweep.scheduler.commands == [("scancel", "102", "103")]
    assert read_result(tmp_path / "3" / RESULT_FILE).status == "cancelled"
    assert sweep.cluster.unfinished == 0


def test_what_the_job_still_writes_is_kept(tmp_path: Path) -> None:
    scheduler = Scheduler([runs()])
    sweep = Sweep(tmp_path, scheduler)
    end = scheduler.end

    def end_with_row(job_id: str, word: str) -> None:
        row("cancelled", "cancelled while it ran", gpus=2)(scheduler, job_id, tmp_path / "0")
        end(job_id, word)

    scheduler.end = end_with_row  # type: ignore[method-assign]
    ((_, status, _),) = cancelled_at(sweep, 20.0)
    result = read_result(tmp_path / "0" / RESULT_FILE)
    assert status == "cancelled" and len(result.ranks) == 2 and result.scheduler is not None
    assert result.scheduler.state == "CANCELLED"


def test_a_scheduler_that_does_not_take_it_is_asked_again(tmp_path: Path) -> None:
    hears = (30.0, lambda scheduler, job_id, folder: scheduler.deaf.clear())
    sweep = Sweep(tmp_path, Scheduler([runs(hears)], deaf={"scancel"}))
    ((_, status, reason),) = cancelled_at(sweep, 20.0)
    assert status == "cancelled" and reason is not None and "101" in reason
    assert sweep.scheduler.states["101"].state == "CANCELLED" and sweep.scheduler.now_s < 60.0


def test_one_that_never_answers_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([runs()], deaf={"scancel", "squeue"}))
    found = cancelled_at(sweep, 20.0)
    assert found == [(0, "cancelled", "cancelled; after 60 s SLURM had not said that job 101 is over: scancel 101")]
    assert sweep.scheduler.now_s <= 20.0 + follow.CANCEL_LIMIT_S + 2 * follow.POLL_INTERVAL_S


def test_a_cancelled_job_that_is_forgotten_is_cancelled(tmp_path: Path) -> None:
    scheduler = Scheduler([runs((40.0, forgotten))])
    scheduler.end = lambda job_id, word: None  # type: ignore[method-assign]  # it goes on for a while
    assert cancelled_at(Sweep(tmp_path, scheduler), 20.0) == [(0, "cancelled", "cancelled with its job 101")]


def test_one_that_somebody_else_cancels_in_the_queue_is_not_waited_for(tmp_path: Path) -> None:
    """It has never run, and has nothing to leave."""
    scheduler = Scheduler([[(3.0, state("CANCELLED"))]])
    ((_, result),) = Sweep(tmp_path, scheduler).ends()
    assert result.status == "cancelled" and scheduler.now_s < 3.0 + 5.0 + follow.RESULT_LIMIT_S / 2


@pytest.mark.parametrize("word", ["CANCELLED", "PREEMPTED"])
def test_one_that_is_ended_while_it_waits_for_its_row_has_a_row(word: str, tmp_path: Path) -> None:
    assert end_of(tmp_path, runs((12.0, state(word)))).status == "cancelled"
