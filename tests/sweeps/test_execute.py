"""The execution of a sweep: order of runs, time limit, time left and sweep.json; and runs that are worth the time."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps.execute import RunningSweep
from scalebench.sweeps.plan import SweepRun, number_runs
from scalebench.sweeps.time_budget import select_affordable
from tests.builders.runs import simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0, "order": "given"}  # 15.3 s in the middle of the estimate


def planned(*counts):
    return [SweepRun([], simulated_spec(gpus=gpus, measure=MEASURE, size=1000)) for gpus in counts]


def iterate(sweep, runs, first=0, **how):
    return sweep.iterate(runs, number_runs(runs, first), **how)


def test_runs_come_in_order_and_the_record_has_them_all(tmp_path):
    sweep = RunningSweep(tmp_path / "s", ["sweep=demo"], None)
    jobs = planned(1, 2)
    done = iterate(sweep, jobs, 3)
    assert next(done) == jobs[0] and len(read_sweep(tmp_path / "s").runs) == 2, "before the first run"
    assert list(done) == jobs[1:]
    record = read_sweep(tmp_path / "s")
    assert not record.ended and record.arguments == ["sweep=demo"] and len(record.missing(tmp_path / "s")) == 2
    assert [(run.number, run.label) for run in record.runs] == [(3, "simulated gpus=1"), (4, "simulated gpus=2")]
    assert (record.runs[0].fingerprint, record.runs[0].repeat) == jobs[0].key
    sweep.mark_ended()
    assert read_sweep(tmp_path / "s").ended


def timed_sweep(folder, minutes=None):
    """Return a sweep with so many minutes, and its clock, which the test advances."""
    clock = SimpleNamespace(now_s=0.0)
    return RunningSweep(folder, [], minutes, clock=lambda: clock.now_s), clock


def test_runs_without_time_wait_and_are_left_out(tmp_path):
    (sweep, clock), done = timed_sweep(tmp_path, 1.0), []
    for job in iterate(sweep, planned(1, 2, 4, 8)):  # each takes 25 s instead of 15
        done.append((job.number, job.spec.gpus))
        clock.now_s += 25.0
    assert done == [(0, 1), (3, 8)], "once it is known that two fit, those are the ends of the curve"
    assert [run.label for run in sweep.record.left_out] == ["simulated gpus=2", "simulated gpus=4"]


def test_fast_runs_leave_time_for_waiting_runs(tmp_path):
    (sweep, clock), done = timed_sweep(tmp_path, 0.6), []  # 36 s: for two
    for job in iterate(sweep, planned(1, 2, 4)):
        done.append(job.spec.gpus)
        clock.now_s += 1.0
    assert done == [1, 2, 4] and not sweep.record.left_out


def in_turns(*counts, bare=None):
    specs = [simulated_spec(gpus=gpus, measure=MEASURE | {"order": "auto"}, size=1000) for gpus in counts]
    return [SweepRun([], spec, bare=bare or specs[0].fingerprint) for spec in specs]


def test_runs_that_take_turns_are_done_together_the_baseline_first(tmp_path):
    sweep, units = RunningSweep(tmp_path, [], None), []

    def take_turns(positions):
        units.append(list(positions))
        yield from positions

    jobs = [*in_turns(2, 4, bare=in_turns(1)[0].bare), *in_turns(1), *planned(3)]
    assert [run.number for run in iterate(sweep, jobs, take_turns=take_turns)] == [2, 0, 1, 3]
    assert units == [[2, 0, 1]]


def test_a_second_cohort_has_the_baseline_again_and_what_fits_nowhere_is_done_by_itself(tmp_path):
    sweep, units = RunningSweep(tmp_path, [], None), []

    def take_turns(positions):
        units.append(list(positions))
        yield from (position for position in positions[:2] if jobs[position].spec.gpus != 3)

    jobs = in_turns(1, 2, 4, 3)
    assert [run.number for run in iterate(sweep, jobs, take_turns=take_turns)] == [0, 1, 4, 2, 5, 3]
    assert units == [[0, 1, 2, 3], [4, 2, 3], [5, 3]]
    assert [(run.number, run.label, run.left_out) for run in read_sweep(tmp_path).runs[4:]] == [
        (4, "simulated gpus=1", False), (5, "simulated gpus=1", False)
    ]  # fmt: skip


def test_a_later_batch_has_the_time_that_the_first_one_left(tmp_path):
    sweep, clock = timed_sweep(tmp_path, 0.5)
    for _ in iterate(sweep, planned(1)):
        clock.now_s += 29.0
    assert list(iterate(sweep, planned(2), 1)) == []
    assert [run.left_out for run in sweep.record.runs] == [False, True]


def test_a_run_with_an_earlier_result_needs_no_time(tmp_path):
    jobs = planned(1, 2)
    jobs[1].earlier = tmp_path / "earlier"
    assert list(iterate(RunningSweep(tmp_path, [], 1e-6), jobs)) == [jobs[1]]


def test_the_time_left_follows_measured_durations(tmp_path):
    (sweep, clock), message = timed_sweep(tmp_path), []
    assert sweep.format_time_left() == ""
    for _ in iterate(sweep, planned(1, 1, 1)):
        message.append(sweep.format_time_left())
        clock.now_s += 5.0
        message.append(sweep.format_time_left())
        clock.now_s += 5.0
    assert message == [
        *["about 46 s of the sweep left", "about 41 s of the sweep left"],  # three of 15.3 s
        *["about 20 s of the sweep left", "about 15 s of the sweep left"],  # two of 10
        *["", ""],  # the last one has a line of its own
    ]


def test_the_time_left_follows_the_steps_of_the_current_run(tmp_path):
    (sweep, clock), message = timed_sweep(tmp_path), []
    sweep.update_time_left(50.0)  # before a run
    for _ in iterate(sweep, planned(1, 1)):
        clock.now_s += 5.0
        sweep.update_time_left(None)
        message.append(sweep.format_time_left())
        sweep.update_time_left(45.0)
        message.append(sweep.format_time_left())
    assert message[:2] == ["about 26 s of the sweep left", "about 60 s of the sweep left"]  # the other takes 15.3 s


def test_trainings_of_unknown_length_are_at_least_a_guess(tmp_path):
    (sweep, clock), message = timed_sweep(tmp_path), []
    jobs = planned(1, 1, 1)
    for job in jobs:
        job.spec.config.train.stop.epochs = 2.0
    for _ in iterate(sweep, jobs):
        message.append(sweep.format_time_left())
        clock.now_s += 5.0
    assert message[0].startswith("at least about ") and message[1] == "about 10 s of the sweep left"


def test_the_time_left_holds_no_run_that_an_error_has_ended(tmp_path):
    def interrupt(positions):
        raise KeyboardInterrupt

    sweep = RunningSweep(tmp_path, [], None, clock=lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        list(iterate(sweep, [*in_turns(1, 2), *planned(4)], take_turns=interrupt))
    alone = RunningSweep(tmp_path, [], None, clock=lambda: 0.0)
    message = alone.format_time_left()
    for run in iterate(alone, planned(1, 4)):
        if run.spec.gpus == 1:
            alone.update_time_left(0.0)
            message = alone.format_time_left()
    assert sweep.format_time_left() == message != ""


# The runs of a sweep that are worth the time that is left.
COUNTS, REPEATS = (1, 2, 4, 8), 4
PLANNED = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in range(REPEATS) for gpus in COUNTS]


def names(specs):
    return [(spec.gpus, spec.config.repeat) for spec in specs]


def keep(seconds):
    """Return what is kept of runs that take a second each."""
    kept = select_affordable(PLANNED, PLANNED, [1.0] * len(PLANNED), seconds)
    return names([PLANNED[place] for place in kept])


def test_a_configuration_is_dropped_with_all_its_repeats_and_the_least_informative_first():
    first_three = [(gpus, repeat) for repeat in range(3) for gpus in COUNTS]
    assert set(names(PLANNED)) - set(keep(15)) == {(4, 3)}, "a fourth repeat, between the ends of the curve"
    assert keep(13) == [*first_three, (1, 3)] and keep(12) == first_three
    assert keep(11) == keep(9) == [run for run in first_three if run[0] != 4]
    assert keep(8) == keep(6) == [run for run in first_three if run[0] in (1, 8)]
    assert keep(5) == keep(3) == [(1, 0), (1, 1), (1, 2)]
    # Of the last configuration as many repeats are kept as fit.
    assert [keep(seconds) for seconds in (2, 1, 0)] == [[(1, 0), (1, 1)], [(1, 0)], []]
    # Two devices are not the most because four have been measured before.
    planned = [simulated_spec(size=1000, gpus=gpus, repeat=repeat) for repeat in (0, 1) for gpus in (1, 2, 4)]
    rest = [planned[1], planned[3]]  # two devices; the second repeat of one
    assert select_affordable(rest, planned, [1.0, 1.0], 1.0) == [1]


def test_strategies_have_curves_of_their_own_of_which_unsupported_runs_are_no_end():
    other = [simulated_spec(options={"step_s": 0.5}, size=1000, gpus=gpus) for gpus in (1, 2)]
    planned = [*(simulated_spec(size=1000, gpus=gpus) for gpus in COUNTS), *other]
    kept = select_affordable(planned, planned, [1.0] * 6, 4)
    assert names([planned[place] for place in kept]) == [(1, 0), (8, 0), (1, 0), (2, 0)], "two are the other's most"
    assert select_affordable(planned, planned, [1.0] * 6, 3) == [0, 3, 4], "the last curve first"
    assert select_affordable(planned, planned, [1.0] * 6, 2) == [0, 3]
    # An unsupported run is no end of a curve and costs nothing.
    planned = [simulated_spec(size=1000, gpus=gpus) for gpus in (1, 2, 4)]
    planned[2].unsupported = "too many"
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 1.0) == [0, 2]
    assert select_affordable(planned, planned, [1.0, 1.0, 0.0], 0.0) == [2]
    only = planned[2:]
    assert select_affordable(only, only, [0.0], 0.0) == [0]


@given(st.lists(st.floats(0.0, 100.0), min_size=len(PLANNED), max_size=len(PLANNED)), st.floats(-10.0, 2000.0))
def test_selected_runs_fit_and_keep_their_order(costs_s, left_s):
    kept = select_affordable(PLANNED, PLANNED, costs_s, left_s)
    assert kept == sorted(set(kept))
    spent_s = sum(costs_s[place] for place in kept)
    assert spent_s <= max(left_s, 0.0) + 1e-9
    assert all(costs_s[place] > 0 for place in set(range(len(PLANNED))) - set(kept))
    if sum(costs_s) <= left_s:
        assert len(kept) == len(PLANNED)
