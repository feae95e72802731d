"""Estimates of how long runs will take, and the step times of earlier runs on this machine, from which they come."""

import dataclasses
import math

import pytest

from scalebench.core.result import MaxBatch, Phases, Quality
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.measure.progress import RankProgress
from scalebench.sweeps import pace, time_estimate
from scalebench.sweeps.pace import PaceEntry, StepEstimate, estimate_step, read_pace, record_pace
from scalebench.sweeps.time_estimate import (
    PROBE_PHASES,
    SETUP_S,
    TimeEstimate,
    estimate_left_s,
    estimate_phases,
    estimate_s,
    format_about,
    format_range,
)
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


def test_similar_runs_count_first_then_how_far_estimates_were_off():
    # Before any run it is the middle of the estimate.
    assert TimeEstimate().expected_s(spec()) == pytest.approx(15.3)
    cannot = spec()
    cannot.unsupported = "not here"
    assert TimeEstimate().expected_s(cannot) == 0.0
    # Similar runs count first then how far estimates were off.
    estimate = TimeEstimate()
    estimate.record_duration(spec(1), 10.0)
    estimate.record_duration(spec(2), 20.0)
    estimate.record_duration(spec(2), 30.0)
    assert estimate.expected_s(spec(2)) == 25.0, "the same strategy on as many devices"
    assert estimate.expected_s(spec(4)) == 20.0, "the same strategy"
    assert estimate.expected_s(spec(2, "other")) == pytest.approx(60 / 3 / 15.3 * 15.3), "what the others took"
    # The rest is its runs and their pauses.
    paused = spec()
    paused.config.measure.cool_down_s = 5.0
    cannot = spec()
    cannot.unsupported, cannot.config.measure.cool_down_s = "not here", 5.0
    assert TimeEstimate().total_s([spec(), paused, cannot]) == pytest.approx(15.3 + 20.3)


def test_a_repeat_has_its_share_of_the_time_and_the_first_one_the_probes():
    measure = {"min_s": 3.0, "max_s": 6.0, "warmup_max_s": 0.0, "probes": True, "probe_s": 2.0, "repeats": 3}
    first, second = (simulated_spec(measure=measure, repeat=repeat) for repeat in (0, 1))
    probes_s = PROBE_PHASES * 2.0
    assert estimate_s(first) == pytest.approx((1.3 + probes_s, 2.3 + probes_s))
    assert estimate_s(second) == pytest.approx((1.3, 2.3))
    estimate = TimeEstimate()
    estimate.record_duration(first, 2 * (1.8 + probes_s))
    assert estimate.expected_s(second) == pytest.approx(2 * 1.8), "not what the first one took, which had probes"


def test_durations_are_rounded():
    words = {0.0: "about 1 s", 89.0: "about 89 s", 90.0: "about 2 min", 5399.0: "about 90 min", 5400.0: "about 1.5 h"}
    assert {seconds: format_about(seconds) for seconds in words} == words
    assert format_range(1.0, 5.0) == "1 to 5 s" and format_range(95.0, 590.0) == "95 to 590 s"
    assert format_range(95.0, 900.0) == "95 s to 15 min" and format_range(600.0, 900.0) == "10 to 15 min"
    assert format_range(900.0, 9000.0) == "15 min to 2.5 h"


def step(low_s, high_s=None):
    return StepEstimate(low_s, low_s, low_s if high_s is None else high_s)


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


def test_an_estimate_covers_the_length_of_its_steps():
    """The probes of steps longer than measure.probe_s are fewer, so that the longest steps need not take longest."""
    measure = {**MEASURED, "evaluate": False, "probes": True, "probe_s": 1.0}
    one = simulated_spec(measure=measure)
    totals = [estimate_s(one, step(step_s)) for step_s in (0.9, 1.0, 1.001, 1.2)]
    least_s, most_s = estimate_s(one, step(0.9, 1.2))
    assert totals[2][0] < totals[0][0] and totals[1][1] > totals[3][1]
    assert (least_s, most_s) == pytest.approx((totals[2][0], totals[1][1]))
    started = dataclasses.replace(step(0.1), first_step_s=9.0, start_s=20.0)
    assert estimate_s(one, started)[0] == pytest.approx(estimate_s(one, step(0.1))[0] + 29.0 - SETUP_S["none"])


def test_a_planned_run_is_estimated_from_the_pace_of_this_machine(monkeypatch):
    calls = []
    monkeypatch.setattr(time_estimate, "estimate_step", lambda spec, pace: calls.append(pace) or step(2.0, 8.0))
    estimate, one = TimeEstimate(["of the cache"]), spec()
    assert estimate.range_s(one) == pytest.approx(estimate_s(one, step(2.0, 8.0)))
    likely_s = sum(estimate_s(one, step(2.0))) / 2
    assert estimate.expected_s(one) == pytest.approx(likely_s) and calls == [["of the cache"]]


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
    assert estimate_s(training(epochs=20.0), step(0.5)) == pytest.approx((50.3, 50.3))
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
        assert format_range(*estimate_s(training(epochs=2.0))) == "0 s and a training of unknown length"


def test_trainings_are_estimated_from_trainings():
    estimate, short, long = TimeEstimate(), training(epochs=2.0), training(epochs=4.0)
    assert not estimate.has_basis(short) and estimate.expected_s(short) == pytest.approx(0.3 + 20.0), "a guess"
    assert estimate.has_basis(spec()) and estimate.has_basis(training(seconds=5.0))
    estimate.record_duration(spec(), 50.0)
    assert not estimate.has_basis(short), "how long its throughput took to measure says nothing of it"
    estimate.record_duration(short, 10.3)
    assert estimate.has_basis(long) and estimate.expected_s(long) == pytest.approx(20.3)
    assert estimate.expected_s(training(epochs=2.0, size=128)) == pytest.approx(20.3)
    assert estimate.expected_s(training(steps=5)) == pytest.approx(0.3 + 10.0 * 50 / 96)
    assert estimate.expected_s(spec()) == 50.0
    assert not estimate.has_basis(training("other", epochs=2.0))


# The step times of earlier runs on this machine, and what they say of planned ones.
@pytest.fixture(autouse=True)
def pace_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALEBENCH_PACE", str(tmp_path / "cache" / "host.jsonl"))


def planned(**changes):
    """Return a run of the materials CNN under ddp on two CPU workers, with 10 samples on each."""
    spec = make_spec(gpus=2, **changes)
    spec.config.strategy.name, spec.config.strategy.framework = "ddp", "torch"
    return spec


def entry(step_s=0.1, **changes):
    """Return the entry of an equal run, but for the changes."""
    spec = planned()
    made = PaceEntry(
        spec.config.hardware.name, spec.device, "torch", "ddp", spec.config.model.name, flops(spec),
        "float32 default", 2, spec.global_batch, step_s, 3 * step_s, 5.0, "2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return type(made)(**{name: changes.get(name, getattr(made, name)) for name in made.__struct_fields__})


def flops(spec):
    counted = pace.count_training_flops(spec)
    assert counted
    return counted


def test_a_run_is_recorded_and_read_again():
    ranks = [rank(0, [0.2, 0.4], warmup_block_s=[1.0, 0.2], warmup_block_steps=1)]
    result = record("ddp", 2, ranks=ranks, phases=Phases(launch_s=1.0, setup_s=2.0, measure_s=60.0, wall_s=70.0))
    record_pace(result)
    (read,) = read_pace()
    assert (read.strategy, read.gpus, read.start_s, read.first_step_s) == ("ddp", 2, 3.0, 1.0)
    assert read.step_s == pytest.approx(0.6 / (2 * (ranks[0].block_steps or 1)))
    for left_out in (
        record("ddp", 2, status="failed", block_s=None),
        record("ddp", 2, ranks=ranks, quality=Quality(max_batch=MaxBatch(8, None, "memory", []))),
    ):
        record_pace(left_out)
    assert len(read_pace()) == 1


def test_a_file_that_cannot_be_read_or_written_is_left_out(monkeypatch, tmp_path):
    record_pace(record("ddp", 2, ranks=[rank(0, [0.2])]))
    (file,) = (tmp_path / "cache").glob("*.jsonl")
    file.write_text("{no json\n")
    record_pace(record("ddp", 2, ranks=[rank(0, [0.2])]))
    assert read_pace() == [] and file.read_text() == "{no json\n"
    (tmp_path / "plain").touch()
    monkeypatch.setenv("SCALEBENCH_PACE", str(tmp_path / "plain" / "host.jsonl"))
    record_pace(record("ddp", 2, ranks=[rank(0, [0.2])]))
    monkeypatch.setenv("SCALEBENCH_PACE", "off")
    record_pace(record("ddp", 2, ranks=[rank(0, [0.2])]))
    assert read_pace() == []


@pytest.mark.parametrize(
    ("entries", "likely_s", "factor"),
    [
        ([entry(0.1)], 0.1, pace.SAME_RUN_FACTOR),
        ([entry(9.0), *[entry(0.1)] * pace.MAX_MATCHES], 0.1, pace.SAME_RUN_FACTOR),  # the newest
        ([entry(0.1), entry(9.0, strategy="zero1"), entry(9.0, gpus=1)], 0.1, pace.SAME_RUN_FACTOR),
        ([entry(0.1, gpus=1, global_batch=40)], 0.025, pace.SAME_MODEL_FACTOR),  # a quarter of the work on each device
        ([entry(0.1, strategy="zero1")], 0.1, pace.SAME_MODEL_FACTOR),
        ([entry(0.1, model="half", flops_per_sample=flops(planned()) / 16)], 1.6, pace.OTHER_MODEL_FACTOR * 2),
        # The nearest by its work, and none of another device, framework or precision.
        (
            [
                entry(0.1, model="like", flops_per_sample=flops(planned()) * 1.01),
                entry(9.0, model="tiny", flops_per_sample=100.0),
            ],
            0.1,
            pace.OTHER_MODEL_FACTOR,
        ),
    ],
)
def test_the_nearest_runs_count(entries, likely_s, factor):
    others = [entry(9.0, device="cuda"), entry(9.0, framework="tensorflow"), entry(9.0, settings="bfloat16 default")]
    step = estimate_step(planned(), [*others, *entries, *others])
    assert step.likely_s == pytest.approx(likely_s, rel=0.02)
    assert (step.low_s, step.high_s) == pytest.approx((likely_s / factor, likely_s * factor), rel=0.03)


def test_the_work_of_a_step_and_the_runs_that_differ_span_an_estimate():
    # An estimate spans runs that differ and has their start.
    step = estimate_step(planned(), [entry(0.1), entry(0.4, start_s=15.0)])
    assert (step.start_s, step.first_step_s) == pytest.approx((10.0, 0.5))
    assert (step.low_s, step.high_s) == pytest.approx((0.08, 0.5))
    # Without an earlier run the work of a step decides.
    small, large = (estimate_step(planned(train__batch_per_device=batch), []) for batch in (10, 100))
    assert small is not None and large is not None and not small.is_slow and small.start_s is None
    assert (large.low_s, large.high_s) == pytest.approx((10 * small.low_s, 10 * small.high_s))
    cores = planned().config.hardware.cpus_per_device or 1
    slow, fast = (flops(planned()) * 10 / (cores * pace_per_s) for pace_per_s in pace.CORE_FLOPS_PER_S)
    assert (small.low_s, small.high_s) == pytest.approx((fast, slow))


@pytest.mark.parametrize(("step_s", "is_clipped"), [(1e-4, True), (0.04, True), (1.0, False)])
def test_a_small_model_says_little_of_a_large_one(step_s, is_clipped):
    """The limits are those of the FLOPs where both overlap, which a pace far below any core's does not; a short
    step may be overhead alone."""
    guess = estimate_step(planned(), [])
    step = estimate_step(planned(), [entry(step_s, model="tiny", flops_per_sample=flops(planned()) / 1000)])
    assert guess is not None and step is not None and step.low_s < step.likely_s < step.high_s
    assert (step.high_s == guess.high_s, step.start_s) == (is_clipped, 5.0)


def test_nothing_is_known_of_a_users_model_before_its_first_run(monkeypatch):
    # Two users' files may both have a function `build`.
    spec = planned()
    spec.config.model.code_digest = "1234"
    other, named = (
        entry(0.1, flops_per_sample=None, model=name)
        for name in (spec.config.model.name, f"{spec.config.model.name} 1234")
    )
    same, simulated = entry(0.1, flops_per_sample=None), planned()
    counted = entry(0.1, flops_per_sample=5e6)  # by the workers of an earlier run
    simulated.config.strategy.framework = "none"  # whose steps take no time for their FLOPs
    assert estimate_step(simulated, [entry(0.1)]) is None
    monkeypatch.setattr(pace, "count_training_flops", lambda spec: None)
    assert estimate_step(planned(), []) is None
    for earlier in (same, counted):
        assert estimate_step(planned(), [earlier]) is not None
    assert estimate_step(spec, [other]) is None
    assert estimate_step(spec, [named]) is not None
