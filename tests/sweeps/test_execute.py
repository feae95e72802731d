"""The execution of a sweep: order of runs, time limit, time left and sweep.json; and runs that are worth the time."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.sweep_file import read_sweep
from scalebench.sweeps.estimate import select_affordable
from scalebench.sweeps.execute import RunningSweep
from scalebench.sweeps.plan import SweepRun, number_runs
from tests.builders.runs import simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0, "order": "given"}  # 15.3 s in the middle of the estimate


def planned(*counts):
    return [SweepRun([], simulated_spec(gpus=gpus, measure=MEASURE, size=1000)) for gpus in counts]


def do(sweep, runs, first=0, take_turns=None, alone=lambda run: None):
    """Do these runs; return those that were done alone or in turns, in order."""
    unused, done = number_runs(runs, first), []

    def do_unit(unit):
        if len(unit) == 1:
            alone(unit[0])
        results = unit if len(unit) == 1 else take_turns(unit)
        done.extend(results)
        return results

    sweep.add(runs)
    sweep.do(runs, runs, unused, do_unit)
    return done


def test_runs_come_in_order_and_the_record_has_them_all(tmp_path):
    sweep, seen = RunningSweep(tmp_path / "s", ["sweep=demo"], None), []
    jobs = planned(1, 2)
    done = do(sweep, jobs, 3, alone=lambda run: seen.append(len(read_sweep(tmp_path / "s").runs)))
    assert done == jobs and seen == [2, 2], "before the first run"
    record = read_sweep(tmp_path / "s")
    assert not record.ended and record.arguments == ["sweep=demo"] and len(record.missing(tmp_path / "s")) == 2
    assert [(run.number, run.label) for run in record.runs] == [(3, "simulated gpus=1"), (4, "simulated gpus=2")]
    assert (record.runs[0].fingerprint, record.runs[0].repeat) == jobs[0].key
    sweep.mark(ended=True)
    assert read_sweep(tmp_path / "s").ended


def timed_sweep(folder, minutes=None, run_s=0.0):
    """Return a sweep with so many minutes, whose runs take so long, and what does one of them."""
    clock = SimpleNamespace(now_s=0.0)

    def alone(run):
        clock.now_s += run_s

    return RunningSweep(folder, [], minutes, clock=lambda: clock.now_s), alone, clock


def test_runs_without_time_wait_and_are_left_out(tmp_path):
    sweep, alone, _ = timed_sweep(tmp_path, 1.0, 25.0)  # instead of 15 s
    done = [(run.number, run.spec.gpus) for run in do(sweep, planned(1, 2, 4, 8), alone=alone)]
    assert done == [(0, 1), (3, 8)], "once it is known that two fit, those are the ends of the curve"
    assert [run.label for run in sweep.record.left_out] == ["simulated gpus=2", "simulated gpus=4"]


def in_turns(*counts, bare=None):
    specs = [simulated_spec(gpus=gpus, measure=MEASURE | {"order": "auto"}, size=1000) for gpus in counts]
    return [SweepRun([], spec, bare=bare or specs[0].fingerprint) for spec in specs]


def test_runs_that_take_turns_are_done_together_the_baseline_first(tmp_path):
    sweep, units = RunningSweep(tmp_path, [], None), []
    jobs = [*in_turns(2, 4, bare=in_turns(1)[0].bare), *in_turns(1), *planned(3)]
    done = do(sweep, jobs, take_turns=lambda unit: (units.append([run.number for run in unit]), unit)[1])
    assert [run.number for run in done] == [2, 0, 1, 3] and units == [[2, 0, 1]]


def test_a_second_cohort_has_the_baseline_again_and_what_fits_nowhere_is_done_by_itself(tmp_path):
    sweep, units = RunningSweep(tmp_path, [], None), []

    def take_turns(unit):
        units.append([run.number for run in unit])
        return [run for run in unit[:2] if run.spec.gpus != 3]

    done = do(sweep, in_turns(1, 2, 4, 3), take_turns=take_turns)
    assert [run.number for run in done] == [0, 1, 4, 2, 5, 3]
    assert units == [[0, 1, 2, 3], [4, 2, 3], [5, 3]]
    assert [(run.number, run.label, run.left_out) for run in read_sweep(tmp_path).runs[4:]] == [
        (4, "simulated gpus=1", False), (5, "simulated gpus=1", False)
    ]  # fmt: skip


def test_a_later_batch_has_the_time_that_the_first_one_left(tmp_path):
    sweep, alone, _ = timed_sweep(tmp_path, 0.5, 29.0)
    assert len(do(sweep, planned(1), alone=alone)) == 1 and do(sweep, planned(2), 1) == []
    assert [run.left_out for run in sweep.record.runs] == [False, True]


def test_a_run_with_an_earlier_result_needs_no_time(tmp_path):
    jobs = planned(1, 2)
    jobs[1].earlier = tmp_path / "earlier"
    assert do(RunningSweep(tmp_path, [], 1e-6), jobs) == [jobs[1]]


def test_the_time_left_follows_measured_durations(tmp_path):
    (sweep, _, clock), message = timed_sweep(tmp_path), []
    assert sweep.format_time_left() == ""

    def alone(run):
        for _ in range(2):
            message.append(sweep.format_time_left())
            clock.now_s += 5.0

    do(sweep, planned(1, 1, 1), alone=alone)
    assert message == [
        *[" (about 46 s of the sweep left)", " (about 41 s of the sweep left)"],  # three of 15.3 s
        *[" (about 20 s of the sweep left)", " (about 15 s of the sweep left)"],  # two of 10
        *["", ""],  # the last one has a line of its own
    ]


def test_trainings_of_unknown_length_are_at_least_a_guess(tmp_path):
    (sweep, alone, _), message = timed_sweep(tmp_path, run_s=5.0), []
    jobs = planned(1, 1, 1)
    for job in jobs:
        job.spec.config.train.stop.epochs = 2.0
    do(sweep, jobs, alone=lambda run: (message.append(sweep.format_time_left()), alone(run)))
    assert message[0].startswith(" (at least about ") and message[1] == " (about 10 s of the sweep left)"


# The runs of a sweep that are worth the time that is left.
COUNTS, REPEATS = (1, 2, 4, 8), 4


def make_runs(counts=COUNTS, repeats=1, **changes):
    specs = [simulated_spec(size=1000, gpus=gpus, repeat=n, **changes) for n in range(repeats) for gpus in counts]
    return [SweepRun([], spec) for spec in specs]


PLANNED = make_runs(repeats=REPEATS)


def names(runs):
    return [(run.spec.gpus, run.spec.config.repeat) for run in runs]


def select(seconds, rest=PLANNED, planned=None):
    """Return what is kept of runs that take a second each, if they can start."""
    kept = select_affordable(rest, planned or rest, lambda run: float(run.spec.can_start), seconds)
    return names(kept)


def test_the_least_informative_runs_are_dropped_first():
    first_three = [(gpus, repeat) for repeat in range(3) for gpus in COUNTS]
    assert set(names(PLANNED)) - set(select(15)) == {(4, 3)}, "a fourth repeat, between the ends of the curve"
    assert select(13) == [*first_three, (1, 3)] and select(12) == first_three
    assert select(11) == [run for run in first_three if run != (4, 2)]
    assert select(9) == [run for run in first_three if run[0] != 4]
    assert select(6) == [run for run in first_three if run[0] in (1, 8)]
    assert [select(seconds) for seconds in (2, 1, 0)] == [[(1, 0), (1, 1)], [(1, 0)], []]
    # Two devices are not the most because four have been measured before.
    planned = make_runs((1, 2, 4), 2)
    assert select(1, [planned[1], planned[3]], planned) == [(1, 1)], "not two devices, but the second repeat of one"


def test_strategies_have_curves_of_their_own_of_which_unsupported_runs_are_no_end():
    planned = [*make_runs(), *make_runs((1, 2), options={"step_s": 0.5})]
    assert select(4, planned) == [(1, 0), (8, 0), (1, 0), (2, 0)], "two are the other's most"
    assert select(3, planned) == [(1, 0), (8, 0), (1, 0)], "the last curve first"
    assert select(2, planned) == [(1, 0), (8, 0)]
    # An unsupported run is no end of a curve and costs nothing.
    planned = make_runs((1, 2, 4))
    planned[2].spec.unsupported = "too many"
    assert select(1, planned) == [(1, 0), (4, 0)] and select(0, planned) == [(4, 0)]
    assert select(0, planned[2:]) == [(4, 0)]


@given(st.lists(st.floats(0.0, 100.0), min_size=len(PLANNED), max_size=len(PLANNED)), st.floats(-10.0, 2000.0))
def test_selected_runs_fit_and_keep_their_order(costs_s, left_s):
    cost_s = dict(zip(PLANNED, costs_s, strict=True))
    kept = select_affordable(PLANNED, PLANNED, lambda run: cost_s[run], left_s)
    assert kept == [run for run in PLANNED if run in kept]
    assert sum(cost_s[run] for run in kept) <= max(left_s, 0.0) + 1e-9
    assert all(cost_s[run] > 0 for run in PLANNED if run not in kept)
    if sum(costs_s) <= left_s:
        assert len(kept) == len(PLANNED)
