"""A sweep while it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps.execute import Sweep
from scalebench.sweeps.plan import Job
from tests.builders.runs import simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0}  # 15.3 s in the middle of the estimate


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def planned(*counts: int) -> list[Job]:
    return [Job([], simulated_spec(gpus=gpus, measure=MEASURE, size=1000)) for gpus in counts]


def test_runs_come_in_order_and_the_record_has_them_all(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "s", ["sweep=demo"], None)
    jobs = planned(1, 2)
    assert list(sweep.runs(jobs, 3)) == [(3, jobs[0]), (4, jobs[1])]
    record = read_sweep(tmp_path / "s")
    assert record is not None and not record.ended and record.words == ["sweep=demo"]
    assert [(run.number, run.label) for run in record.runs] == [(3, "simulated gpus=1"), (4, "simulated gpus=2")]
    assert (record.runs[0].fingerprint, record.runs[0].repeat) == jobs[0].key
    sweep.end()
    assert read_sweep(tmp_path / "s").ended  # type: ignore[union-attr]


def test_the_record_is_there_before_the_first_run(tmp_path: Path) -> None:
    for _ in Sweep(tmp_path, [], None).runs(planned(1), 0):
        assert len(read_sweep(tmp_path).runs) == 1  # type: ignore[union-attr]


def test_what_there_is_no_time_for_waits_and_is_left_out(tmp_path: Path) -> None:
    clock = Clock()
    sweep, done = Sweep(tmp_path, [], 1.0, clock=clock), []
    for number, job in sweep.runs(planned(1, 2, 4, 8), 0):  # each takes 25 s instead of 15
        done.append((number, job.spec.gpus))
        clock.now_s += 25.0
    assert done == [(0, 1), (3, 8)], "once it is known that two fit, those are the ends of the curve"
    assert [run.label for run in sweep.record.left_out] == ["simulated gpus=2", "simulated gpus=4"]


def test_quick_runs_leave_time_for_those_that_wait(tmp_path: Path) -> None:
    clock = Clock()
    sweep, done = Sweep(tmp_path, [], 0.6, clock=clock), []  # 36 s: for two
    for _, job in sweep.runs(planned(1, 2, 4), 0):
        done.append(job.spec.gpus)
        clock.now_s += 1.0
    assert done == [1, 2, 4] and not sweep.record.left_out


def test_a_later_batch_has_the_time_that_the_first_one_left(tmp_path: Path) -> None:
    clock = Clock()
    sweep = Sweep(tmp_path, [], 0.5, clock=clock)
    for _ in sweep.runs(planned(1), 0):
        clock.now_s += 29.0
    assert list(sweep.runs(planned(2), 1)) == []
    assert [run.left_out for run in sweep.record.runs] == [False, True]


def test_what_is_there_already_needs_no_time(tmp_path: Path) -> None:
    jobs = planned(1, 2)
    jobs[1].earlier = tmp_path / "earlier"
    assert [job for _, job in Sweep(tmp_path, [], 1e-6).runs(jobs, 0)] == [jobs[1]]


def test_how_long_it_will_take(tmp_path: Path) -> None:
    clock = Clock()
    sweep, told = Sweep(tmp_path, [], None, clock=clock), []
    assert sweep.left() == ""
    for _ in sweep.runs(planned(1, 1, 1), 0):
        told.append(sweep.left())
        clock.now_s += 5.0
        told.append(sweep.left())
        clock.now_s += 5.0
    assert told == [
        *["about 46 s of the sweep left", "about 41 s of the sweep left"],  # three of 15.3 s
        *["about 20 s of the sweep left", "about 15 s of the sweep left"],  # two of 10
        *["", ""],  # the last one has a line of its own
    ]


def test_trainings_of_unknown_length_are_at_least_a_guess(tmp_path: Path) -> None:
    jobs = planned(1, 1, 1)
    for job in jobs:
        job.spec.config.train.stop.epochs = 2.0
    clock = Clock()
    sweep, told = Sweep(tmp_path, [], None, clock=clock), []
    for _ in sweep.runs(jobs, 0):
        told.append(sweep.left())
        clock.now_s += 5.0
    assert told[0].startswith("at least about ") and told[1] == "about 10 s of the sweep left"


def test_a_run_that_ends_the_sweep_leaves_the_others_to_come(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in Sweep(tmp_path, [], None).runs(planned(1, 2), 0):
            raise KeyboardInterrupt
    record = read_sweep(tmp_path)
    assert record is not None and not record.ended and len(record.missing(tmp_path)) == 2
