"""Submissions that do not go well: each costs one row, and the sweep goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from scalebench.core.errors import InputError
from scalebench.core.result import read_result
from scalebench.core.run_folder import JOB_FILE, JOB_LOG, RESULT_FILE
from scalebench.runner.jobs.submit import PAUSES_S
from scalebench.slurm.commands import Refused, SlurmError, Unreachable
from scalebench.slurm.submit import read_submission
from tests.runner.jobs.fake_scheduler import GOOD, Scheduler, Sweep

GONE = Unreachable("sbatch: Unable to contact slurm controller (connect failure)")


def test_a_job_leaves_its_number_in_the_folder(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([GOOD]))
    sweep.ends()
    found = read_submission(tmp_path / "0")
    assert found is not None and (found.job_id, found.partition) == ("101", "main")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Refused("invalid partition specified: gpux"), "unsupported", "invalid partition specified: gpux"),
        (SlurmError("sbatch made no sense"), "failed", "it could not be submitted: sbatch made no sense"),
        (InputError("no such image"), "failed", "it could not be submitted: no such image"),
    ],
)
def test_what_is_refused_is_a_row_at_once(error: Exception, status: str, reason: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([error, GOOD]))
    rows = sweep.cluster.follow(sweep.asked())
    each, result = next(rows)
    assert (each.number, result.status, result.reason, result.scheduler) == (0, status, reason, None)
    assert sweep.scheduler.now_s == 0.0 and read_result(tmp_path / "0" / RESULT_FILE) == result
    assert [(each.number, result.status) for each, result in rows] == [(1, "ok")]


def test_what_is_impossible_here_is_not_submitted(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([GOOD]))
    asked = sweep.asked(2)
    asked[0].spec.unsupported = "one process cannot span two nodes"
    rows = sweep.ends(asked)
    assert (rows[0][1].status, rows[0][1].reason) == ("unsupported", "one process cannot span two nodes")
    assert rows[1][1].status == "ok" and len(sweep.scheduler.submitted) == 1


def test_a_controller_that_starts_anew_is_waited_for(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([GONE, GONE, GONE, GOOD, GOOD]))
    rows = sweep.ends(sweep.asked(2))
    assert [result.status for _, result in rows] == ["ok", "ok"]
    assert sweep.scheduler.now_s >= sum(PAUSES_S[:3])


def test_one_that_does_not_come_back_costs_each_run_one_row(tmp_path: Path) -> None:
    """It has its time once; from then on each run has one try."""
    sweep = Sweep(tmp_path, Scheduler([GONE] * (len(PAUSES_S) + 3) + [GOOD] + [GONE, GOOD]))
    rows = sweep.ends(sweep.asked(5))
    assert [(number, result.status) for number, result in rows[:3]] == [(0, "failed"), (1, "failed"), (2, "failed")]
    assert rows[0][1].reason == f"it could not be submitted: {GONE}"
    assert [result.status for _, result in rows[3:]] == ["ok", "ok"], "it answered again, and so has its time again"


def test_rows_come_in_while_a_controller_is_waited_for(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Scheduler([GOOD, *[GONE] * 5]))
    (first, _), (second, result) = list(sweep.ends(sweep.asked(2)))
    assert {first, second} == {0, 1} and sweep.scheduler.now_s <= sum(PAUSES_S) + 1.0 and result is not None


def test_what_an_earlier_job_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    folder.mkdir()
    old = [JOB_FILE, JOB_LOG, "rank3.json", "progress0.json"]
    for name in [*old, "multirun.yaml"]:
        (folder / name).write_text("old")
    sweep = Sweep(tmp_path, Scheduler([Refused("no")]))
    sweep.ends()
    assert sorted(path.name for path in folder.iterdir()) == ["multirun.yaml", "result.json", "spec.json"]


def test_a_folder_that_cannot_be_made_is_a_row_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("in the way")
    sweep = Sweep(tmp_path, Scheduler([GOOD]))
    rows = sweep.ends(sweep.asked(2))
    assert [result.status for _, result in rows] == ["failed", "ok"]
    assert rows[0][1].reason is not None and f"{tmp_path / '0'} cannot be written: " in rows[0][1].reason


def test_ctrl_c_waits_until_the_number_is_known(tmp_path: Path) -> None:
    """A job whose number got lost would run on unseen."""
    sweep = Sweep(tmp_path, Scheduler([GOOD]))
    real = sweep.scheduler.submit

    def interrupted(spec: object, folder: Path) -> object:
        signal.raise_signal(signal.SIGINT)
        return real(spec, folder)

    sweep.cluster._submitter._submit = interrupted
    rows = sweep.cluster.follow(sweep.asked())
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert sweep.cluster.unfinished == 1 and read_submission(tmp_path / "0") is not None
    assert [result.status for _, result in rows] == ["ok"], "and it goes on when it is asked to"
