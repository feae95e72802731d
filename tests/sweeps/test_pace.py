"""The step times of earlier runs on this machine, and what they say of planned ones."""

import pytest

from scalebench.core.result import MaxBatch, Phases, Quality
from scalebench.sweeps import pace
from scalebench.sweeps.pace import PaceEntry, estimate_step, read_pace, record_pace
from tests.builders.configs import make_spec
from tests.builders.runs import rank, record


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


def test_an_estimate_spans_runs_that_differ_and_has_their_start():
    step = estimate_step(planned(), [entry(0.1), entry(0.4, start_s=15.0)])
    assert (step.start_s, step.first_step_s) == pytest.approx((10.0, 0.5))
    assert (step.low_s, step.high_s) == pytest.approx((0.08, 0.5))


def test_without_an_earlier_run_the_work_of_a_step_decides():
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
    same, simulated = entry(0.1, flops_per_sample=None), planned()
    counted = entry(0.1, flops_per_sample=5e6)  # by the workers of an earlier run
    simulated.config.strategy.framework = "none"  # whose steps take no time for their FLOPs
    assert estimate_step(simulated, [entry(0.1)]) is None
    monkeypatch.setattr(pace, "count_training_flops", lambda spec: None)
    assert estimate_step(planned(), []) is None
    for earlier in (same, counted):
        assert estimate_step(planned(), [earlier]) is not None


def test_functions_of_one_name_are_models_apart(monkeypatch):
    """Two users' files may both have a function `build`."""
    spec = planned()
    spec.config.model.code_digest = "1234"
    other, same = (
        entry(0.1, flops_per_sample=None, model=name)
        for name in (spec.config.model.name, f"{spec.config.model.name} 1234")
    )
    monkeypatch.setattr(pace, "count_training_flops", lambda spec: None)
    assert estimate_step(spec, [other]) is None
    assert estimate_step(spec, [same]) is not None
