"""Estimates of how long runs will take, and the step times of earlier runs on this machine, from which they come."""

import math

import pytest

from scalebench.core.result import MaxBatch, Phases, Quality
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.measure.progress import RankProgress
from scalebench.sweeps import pace
from scalebench.sweeps.estimate import (
    PROBE_PHASES,
    SETUP_S,
    TimeEstimate,
    estimate_left_s,
    estimate_phases,
    estimate_s,
    format_about,
    format_range,
)
from scalebench.sweeps.pace import Pace, PaceEntry, find_pace, read_pace, record_pace
from tests.builders.configs import make_spec
from tests.builders.runs import rank, record, simulated_spec

MEASURE = {"min_s": 10.0, "max_s": 20.0, "warmup_max_s": 0.0}  # with a start of 0.3 s: 15.3 s in the middle


def spec(gpus=1, strategy="simulated", **changes):
    made = simulated_spec(gpus=gpus, measure=MEASURE, **changes)
    made.config.strategy.name = strategy
    return made


@pytest.mark.parametrize("framework", ["none", "torch", "a new one"])
def test_an_estimate_is_start_up_and_measuring(framework):
    one = simulated_spec(measure={"min_s": 1.0, "max_s": 5.0})
    one.config.strategy.framework = framework
    start_s = SETUP_S.get(framework, 4.0)
    assert estimate_s(one) == (1.0 + start_s, pytest.approx(5.0 + 0.1 + start_s)), "0.1 s of warm-up at the most"
    one.config.measure.probes, one.config.measure.probe_s = True, 2.0
    assert estimate_s(one)[0] == 1.0 + start_s + PROBE_PHASES * 2.0


def test_similar_runs_count_before_the_settings():
    cannot, paused = spec(), spec()
    cannot.unsupported = "not here"
    paused.config.measure.cool_down_s = cannot.config.measure.cool_down_s = 5.0
    for each, expected_s in ((spec(), 15.3), (paused, 20.3), (cannot, 0.0)):  # the middle of the range, and the pause
        assert TimeEstimate().expected_s(each) == pytest.approx(expected_s)
    estimate = TimeEstimate()
    estimate.record_duration(spec(1), 10.0)
    estimate.record_duration(spec(2), 20.0)
    estimate.record_duration(spec(2), 30.0)
    assert estimate.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert estimate.expected_s(spec(4)) == 20.0, "the same strategy"
    assert estimate.expected_s(spec(2, "other")) == pytest.approx(15.3)


def test_a_repeat_has_its_share_of_the_time_and_the_first_one_the_probes():
    measure = {"min_s": 3.0, "max_s": 6.0, "warmup_max_s": 0.0, "probes": True, "probe_s": 2.0, "repeats": 3}
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    probes_s = PROBE_PHASES * 2.0
    assert estimate_s(first) == pytest.approx((1.3 + probes_s, 2.3 + probes_s))
    assert estimate_s(second) == pytest.approx((1.3, 2.3))
    estimate = TimeEstimate()
    estimate.record_duration(first, 2 * (1.8 + probes_s))
    assert estimate.expected_s(second) == pytest.approx(1.8), "not what the first one took, which had probes"


def test_durations_have_one_unit():
    words = {0.0: "about 1 s", 89.0: "about 89 s", 90.0: "about 1.5 min", 5399.0: "about 90 min", 5400.0: "about 1.5 h"}
    assert {seconds: format_about(seconds) for seconds in words} == words
    assert format_range(1.0, 5.0) == "1 to 5 s" and format_range(2.2, 2.4) == "2 s"
    assert format_range(30.0, 900.0) == "0.5 to 15 min" and format_range(900.0, 9000.0) == "0.2 to 2.5 h"


MEASURED = {"warmup_steps": 20, "warmup_max_steps": 400, "warmup_max_s": 4.0, "min_s": 1.0, "max_s": 8.0}


def test_the_phases_of_a_run_follow_from_its_steps():
    """As runs of 0.07 to 5 s a step have shown, whose probes took 59 and 67 steps, and slow ones 7 to 12."""
    for step_s, repeats, phases in (
        # 16 samples validate, of batches of 10, and the forward pass is a third of a step.
        (0.001, 1, {"warmup": (0.02, 0.4), "measure": (3.2, 8.0), "evaluate": 0.001 * 1.6 / 3, "probes": 3.504}),
        (0.1, 1, {"warmup": (2.0, 4.0), "measure": (6.4, 8.0), "evaluate": 0.1 * 1.6 / 3, "probes": 5.9}),
        # Of slow steps five warm up, and few are measured; as many of all repeats together as fit.
        (
            12.0,
            1,
            {"warmup": (60.0, 60.0), "measure": (12.0, 12.0), "evaluate": 12.0 * 1.6 / 3, "probes": (72.0, 144.0)},
        ),
        (1.5, 3, {"warmup": (7.5, 7.5), "measure": (9.0, 9.0), "evaluate": 1.5 * 1.6 / 3, "probes": (9.0, 18.0)}),
    ):
        measure = {**MEASURED, "block_s": 0.05, "evaluate": True, "probes": True, "probe_s": 1.0, "repeats": repeats}
        found = estimate_phases(simulated_spec(measure=measure), step_s)
        expected = {name: times if isinstance(times, tuple) else (times, times) for name, times in phases.items()}
        assert found == {name: pytest.approx(times) for name, times in expected.items()}


def test_a_planned_run_is_estimated_from_the_pace_of_this_machine(monkeypatch):
    one = simulated_spec(measure={**MEASURED, "evaluate": False, "probes": True, "probe_s": 1.0})
    slow = Pace(20.0, 2.0)
    phases = estimate_phases(one, 2.0).values()
    range_s = tuple(20.0 + sum(limits) for limits in zip(*phases, strict=True))
    assert estimate_s(one, slow) == pytest.approx(range_s)
    calls = []
    monkeypatch.setattr("scalebench.sweeps.estimate.find_pace", lambda spec, entries: calls.append(entries) or slow)
    estimate = TimeEstimate(["of the cache"])
    assert estimate.range_s(one) == range_s and estimate.expected_s(one) == pytest.approx(sum(range_s) / 2)
    assert calls == [["of the cache"]]


def test_steps_so_far_tell_how_long_a_run_still_takes():
    for phase, elapsed_s, since_s, left_s in (
        ("warmup", 20.0, 4.0, 26.0 + 20.0 + 40.0),  # five steps, then two, then four for the record's facts
        ("warmup", 90.0, 2.0, 8.0 + 20.0 + 40.0),  # one more step at least
        ("measure", 5.0, 100.0, 40.0),
        ("probes", 0.0, 0.0, 40.0),
        ("setup", 0.0, 0.0, None),
    ):
        one = simulated_spec(measure={**MEASURED, "max_s": 20.0, "warmup_max_s": 4.0, "evaluate": False})
        first = RankProgress(0, 1, phase, 100.0, 2, 1.0, elapsed_s, step_s=10.0)
        second = RankProgress(1, 1, "setup", 0.0)
        found = estimate_left_s(one, [second, first], 100.0 + since_s)
        assert found == (None if left_s is None else pytest.approx(left_s))


def test_a_training_is_over_at_its_stop():
    first = RankProgress(0, 1, "measure", 0.0, 2, 1.0, 20.0, step_s=0.5)
    # 48 training samples in batches of 10, twice; four steps more for the facts of its record.
    assert estimate_left_s(training(epochs=20.0), [first], 0.0) == pytest.approx(20 * 4.8 * 0.5 - 20.0 + 2.0)
    assert estimate_left_s(training(seconds=60.0), [first], 0.0) == pytest.approx(42.0)
    assert estimate_left_s(training(seconds=60.0, target=0.1), [first], 0.0) is None
    assert estimate_s(training(epochs=20.0), Pace(0.3, 0.5)) == pytest.approx((50.3, 50.3))
    assert estimate_left_s(training(epochs=20.0), [], 0.0) is None


def training(strategy="simulated", gpus=1, size=64, **stop):
    return spec(gpus, strategy, train=TrainSpec(10, stop=StopSpec(**stop)), size=size)


def test_a_training_lasts_as_long_as_its_stop_says():
    for stop, estimate in (
        ({"seconds": 60.0}, (60.3, 60.3)),
        ({"seconds": 60.0, "target": 0.1}, (0.3, 60.3)),
        ({"seconds": 60.0, "epochs": 2.0}, (0.3, 60.3)),
        ({"epochs": 2.0}, (0.3, math.inf)),
    ):
        assert estimate_s(training(**stop)) == pytest.approx(estimate)
        assert format_range(*estimate_s(training(epochs=2.0))) == "0 s or more, unknown until a run shows the pace"


def test_trainings_are_estimated_from_trainings_with_the_same_end():
    estimate, short = TimeEstimate(), training(epochs=2.0)
    assert not estimate.has_basis(short) and estimate.expected_s(short) == pytest.approx(0.3 + 20.0), "a guess"
    assert estimate.has_basis(spec()) and estimate.has_basis(training(seconds=5.0))
    estimate.record_duration(spec(), 50.0)
    assert not estimate.has_basis(short), "how long its throughput took to measure says nothing of it"
    estimate.record_duration(short, 10.3)
    assert estimate.has_basis(short) and estimate.expected_s(training(gpus=2, epochs=2.0)) == 10.3
    assert estimate.expected_s(spec()) == 50.0
    for other in (training(epochs=4.0), training(epochs=2.0, size=128), training("other", epochs=2.0)):
        assert not estimate.has_basis(other)


# The step times of earlier runs on this machine, and what they say of planned ones.
@pytest.fixture(autouse=True)
def pace_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALEBENCH_PACE", str(tmp_path / "cache" / "host.jsonl"))


def planned(**changes):
    """Return a run of the materials CNN under ddp on two CPU workers, with 10 samples on each."""
    spec = make_spec(gpus=2, **changes)
    spec.config.strategy.name, spec.config.strategy.framework = "ddp", "torch"
    return spec


def entry(step_s=0.1, of=None, **changes):
    """Return the entry of an equal run, or of the run `of`, but for the changes."""
    made = PaceEntry(pace.describe_work(of or planned()), "ddp", 2, 20, step_s, 5.0)
    return PaceEntry(**{name: changes.get(name, getattr(made, name)) for name in made.__struct_fields__})


def test_a_run_is_recorded_and_read_again(monkeypatch, tmp_path):
    ranks = [rank(0, [0.2, 0.4], warmup_block_s=[1.0, 0.2], warmup_block_steps=1)]
    result = record("ddp", 2, ranks=ranks, phases=Phases(launch_s=1.0, setup_s=2.0, measure_s=60.0, wall_s=70.0))
    record_pace(planned(), result)
    (read,) = read_pace()
    assert (read.strategy, read.gpus) == ("ddp", 2)
    assert read.step_s == pytest.approx(0.6 / (2 * (ranks[0].block_steps or 1)))
    assert read.start_s == pytest.approx(3.0 + 1.0 - read.step_s), "with what the first step took longer"
    assert find_pace(planned(), [read]) == Pace(read.start_s, read.step_s)
    for left_out in (
        record("ddp", 2, status="failed", block_s=None),
        record("ddp", 2, ranks=ranks, quality=Quality(max_batch=MaxBatch(8, None, "memory", []))),
    ):
        record_pace(planned(), left_out)
    assert len(read_pace()) == 1
    (file,) = (tmp_path / "cache").glob("*.jsonl")
    file.write_text("{no json\n")
    assert read_pace() == []
    record_pace(planned(), result)
    assert read_pace() == [read]
    (tmp_path / "plain").touch()
    for elsewhere in (str(tmp_path / "plain" / "host.jsonl"), "off"):
        monkeypatch.setenv("SCALEBENCH_PACE", elsewhere)
        record_pace(planned(), result)
        assert read_pace() == []


def test_the_nearest_run_of_the_same_work_counts():
    changed = [planned() for _ in range(5)]
    changed[0].config.strategy.framework = "tensorflow"
    changed[1].config.train.precision = "bfloat16"
    changed[2].config.hardware.name = "x"
    changed[3].config.model.options = {"width": 2}
    changed[4].config.model.code_digest = "1234"  # of a user's network: two files may both have a function `build`
    others = [entry(9.0, of=each) for each in changed]
    for entries, step_s in (
        ([entry(9.0), entry(0.1)], 0.1),  # the newest
        ([entry(0.1), entry(9.0, strategy="zero1"), entry(9.0, gpus=1)], 0.1),
        ([entry(0.1, gpus=1, global_batch=40)], 0.025),  # a quarter of the work on each device
        ([entry(0.1, gpus=1, global_batch=40), entry(9.0, strategy="zero1")], 0.025),
        ([entry(0.1, strategy="zero1")], 0.1),
    ):
        assert find_pace(planned(), [*others, *entries, *others]) == Pace(5.0, pytest.approx(step_s))
    assert find_pace(planned(), others) is None
