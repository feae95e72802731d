"""What each kind of parallelism exchanges and takes, against the laws that the formulas must keep; the link's two
figures come back from exchanges that were made of them."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.pipeline_stages import expected_bubble_share
from scalebench.analysis.prediction.cost_model import (
    MachineRates,
    MeasuredSync,
    ModelStage,
    StepCost,
    StepWork,
    crossover_batch,
    fit_link_rate,
    predict_data_parallel,
    predict_model_parallel,
    ring_bytes,
)

WORK = StepWork(flops_per_sample=6e6, gradient_bytes=4e6, messages=1, optimizer_s=0.01)
RATES = MachineRates(flops_per_s=1e9, bytes_per_s=1e8, latency_s=1e-4)
HALVES = [ModelStage(0.5, 3e6, 1000.0), ModelStage(0.5, 1e6, 0.0)]

sizes = st.floats(1.0, 1e12)
seconds = st.floats(0.0, 10.0)
counts = st.integers(1, 64)
works = st.builds(StepWork, sizes, sizes, counts, seconds, seconds)
rates = st.builds(MachineRates, sizes, sizes, seconds)
parts = st.lists(st.tuples(st.floats(0.01, 1.0), sizes, sizes), min_size=1, max_size=8)
updates = st.builds(StepCost, counts, seconds, seconds, st.just(0.0), st.just(0.0))


def chain(made: list[tuple[float, float, float]]) -> list[ModelStage]:
    complete = math.fsum(share for share, *_ in made)
    return [ModelStage(share / complete, held, sent) for share, held, sent in made]


def test_two_devices_by_hand() -> None:
    """6e6 operations at 1e9/s are 6 ms a sample; 4 MB at 100 MB/s are 40 ms, in two rounds of 0.1 ms."""
    data = predict_data_parallel(WORK, 2, RATES)
    assert data.step_s(8) == pytest.approx(8 * 0.006 / 2 + 0.01 + 0.04 + 2e-4)
    assert data.sent_bytes(8) == 4e6  # each sends half of the gradients twice
    assert data.flops_per_byte(WORK, 8) == pytest.approx(8 * 6e6 / 8e6)
    split = predict_model_parallel(WORK, HALVES, RATES)
    # 8 samples' 1000 bytes go forward and come back; the optimizer of the first stage has three quarters to do.
    assert split.step_s(8) == pytest.approx(8 * 0.006 + 0.0075 + 2 * (1e-4 + 8000 / 1e8))
    assert split.sent_bytes(8) == 8000
    assert split.flops_per_byte(WORK, 8) == pytest.approx(8 * 6e6 / 16000)


def test_a_pipeline_by_hand() -> None:
    """Four micro-batches of two equal stages take five of their eight half steps; each sends in turn."""
    actual = predict_model_parallel(WORK, HALVES, RATES, 4)
    assert actual.step_s(8) == pytest.approx(8 * 0.006 * 5 / 8 + 0.0075 + 2 * 4 * (1e-4 + 2000 / 1e8))
    assert actual.sent_bytes(8) == 8000


def test_a_pass_costs_as_much_however_few_its_samples() -> None:
    """Half of it each stage: four micro-batches wait for five halves."""
    slow = dataclasses.replace(WORK, pass_s=0.02)
    for one, other, passes in [
        (predict_data_parallel(slow, 2, RATES), predict_data_parallel(WORK, 2, RATES), 1),
        (predict_model_parallel(slow, HALVES, RATES), predict_model_parallel(WORK, HALVES, RATES), 1),
        (predict_model_parallel(slow, HALVES, RATES, 4), predict_model_parallel(WORK, HALVES, RATES, 4), 2.5),
    ]:
        assert one.step_s(8) - other.step_s(8) == pytest.approx(0.02 * passes)
        assert one.per_sample_s == other.per_sample_s


@given(works, rates, counts, counts)
def test_equal_stages_stand_idle_for_the_bubble(
    work: StepWork, given_rates: MachineRates, stages: int, micro_batches: int
) -> None:
    quiet = MachineRates(given_rates.flops_per_s, math.inf)
    held = [ModelStage(1 / stages, 1.0, 1.0) for _ in range(stages)]
    actual = predict_model_parallel(work, held, quiet, micro_batches)
    ideal_s = work.flops_per_sample / given_rates.flops_per_s / stages
    assert actual.per_sample_s == pytest.approx(ideal_s / (1 - expected_bubble_share(stages, micro_batches)))


@given(works, rates, parts)
def test_one_micro_batch_takes_as_long_as_all_work(work: StepWork, given_rates: MachineRates, made: list) -> None:  # type: ignore[type-arg]
    stages = chain(made)
    actual = predict_model_parallel(work, stages, given_rates)
    sent_s = 2 * math.fsum(stage.sent_bytes for stage in stages[:-1]) / given_rates.bytes_per_s
    assert actual.per_sample_s == pytest.approx(work.flops_per_sample / given_rates.flops_per_s + sent_s)
    assert actual.bytes_per_sample * len(stages) == pytest.approx(2 * math.fsum(s.sent_bytes for s in stages[:-1]))


@given(works, rates, parts, counts)
def test_work_of_more_micro_batches_is_never_slower(
    work: StepWork, given_rates: MachineRates, made: list, more: int
) -> None:  # type: ignore[type-arg]
    """Nor ever faster than its dearest stage; latency is what they cost."""
    quiet = MachineRates(given_rates.flops_per_s, math.inf, given_rates.latency_s)
    stages = chain(made)
    few, many = (predict_model_parallel(work, stages, quiet, count) for count in (more, more + 1))
    assert many.per_sample_s <= few.per_sample_s * (1 + 1e-9) and many.fixed_s >= few.fixed_s
    dearest_s = work.flops_per_sample / given_rates.flops_per_s * max(stage.share for stage in stages)
    assert many.per_sample_s >= dearest_s * (1 - 1e-9)


@given(works, rates)
def test_one_device_exchanges_nothing(work: StepWork, given_rates: MachineRates) -> None:
    alone, split = (
        predict_data_parallel(work, 1, given_rates),
        predict_model_parallel(work, [ModelStage(1.0, 1.0, 5.0)], given_rates),
    )
    for one in (alone, split):
        assert one.fixed_s == pytest.approx(work.optimizer_s + work.pass_s) and one.sent_bytes(7) == 0
        assert one.per_sample_s == pytest.approx(work.flops_per_sample / given_rates.flops_per_s)
        assert one.flops_per_byte(work, 7) == math.inf


@given(sizes, st.integers(1, 10_000))
def test_a_ring_sends_less_than_twice_the_gradients(size: float, devices: int) -> None:
    assert 0 <= ring_bytes(size, devices) < 2 * size
    assert ring_bytes(size, devices) <= ring_bytes(size, devices + 1)


@given(works, rates, counts, st.integers(1, 10_000))
def test_computation_per_parameter_grows_with_the_batch_and_per_activation_does_not(
    work: StepWork, given_rates: MachineRates, stages: int, batch: int
) -> None:
    data = predict_data_parallel(work, stages + 1, given_rates)
    split = predict_model_parallel(work, [ModelStage(1 / (stages + 1), 1.0, 8.0)] * (stages + 1), given_rates)
    assert data.flops_per_byte(work, 2 * batch) == pytest.approx(2 * data.flops_per_byte(work, batch))
    assert split.flops_per_byte(work, 2 * batch) == pytest.approx(split.flops_per_byte(work, batch))


@given(updates, updates, st.floats(0.0, 1e6))
def test_from_its_batch_on_one_is_the_faster_and_before_it_is_not(one: StepCost, other: StepCost, batch: float) -> None:
    first = crossover_batch(one, other)
    difference_s = one.step_s(batch) - other.step_s(batch)
    slack_s = 1e-9 * (one.step_s(batch) + other.step_s(batch)) + 1e-300
    if first is None:
        # None also where `one` is ahead at small batches only: then it is not ahead of any large one.
        assert one.per_sample_s >= other.per_sample_s
        assert one.per_sample_s > other.per_sample_s or difference_s >= -slack_s
    elif batch > first:
        assert difference_s <= slack_s
    elif batch < first:
        assert difference_s >= -slack_s


def test_where_nothing_is_exchanged_twice_as_fast_data_parallelism_wins_at_once() -> None:
    free = StepWork(6e6, 0.0, 0, 0.0)
    assert crossover_batch(predict_data_parallel(free, 2, RATES), predict_model_parallel(free, HALVES, RATES)) == 0
    assert crossover_batch(predict_model_parallel(free, HALVES, RATES), predict_data_parallel(free, 2, RATES)) is None
    # 3 ms of work and 20 us of transfer a sample against 50.2 ms, less the 7.5 ms and 0.2 ms of the split model.
    crossing = crossover_batch(predict_data_parallel(WORK, 2, RATES), predict_model_parallel(WORK, HALVES, RATES))
    assert crossing == pytest.approx((0.0502 - 0.0077) / (0.003 + 2e-5))


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ([], [ModelStage(0.5, 1.0, 1.0)], [ModelStage(0.9, 1.0, 1.0), ModelStage(0.9, 1.0, 0.0)]):
        with pytest.raises(ValueError):
            predict_model_parallel(WORK, wrong, RATES)
    with pytest.raises(ValueError, match="0 micro-batches"):
        predict_model_parallel(WORK, HALVES, RATES, 0)
    with pytest.raises(ValueError, match="0 devices"):
        predict_data_parallel(WORK, 0, RATES)


latencies = st.floats(1e-6, 1e-2)
bandwidths = st.floats(1e6, 1e12)


def taken(devices: int, messages: int, size_bytes: float, latency_s: float, bytes_per_s: float) -> MeasuredSync:
    """A ring: each message in 2 (n - 1) rounds, all bytes but the own part sent twice."""
    seconds = messages * 2 * (devices - 1) * latency_s + 2 * (devices - 1) / devices * size_bytes / bytes_per_s
    return MeasuredSync(devices, messages, size_bytes, seconds)


@given(latencies, bandwidths, st.integers(2, 16))
def test_latency_and_rate_come_back(latency_s: float, bytes_per_s: float, devices: int) -> None:
    """Of sizes around the one where half of the time is latency."""
    half = latency_s * bytes_per_s
    actual = fit_link_rate([taken(devices, 1, size * half, latency_s, bytes_per_s) for size in (0.1, 1, 10)])
    assert actual.latency_s is not None
    assert actual.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert actual.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)


@given(bandwidths, st.floats(1.0, 1e9))
def test_one_size_gives_the_rate_alone(bytes_per_s: float, size: float) -> None:
    actual = fit_link_rate([taken(2, 1, size, 0.0, bytes_per_s)] * 2)
    assert actual.latency_s is None
    assert actual.bytes_per_s == pytest.approx(bytes_per_s)


def test_a_latency_below_zero_is_none() -> None:
    actual = fit_link_rate(
        [MeasuredSync(2, 1, 1e3, 0.5e-6), MeasuredSync(2, 1, 1e6, 1e-3)]
    )  # the small one is twice as fast a byte
    assert actual.latency_s == 0.0
    assert 1e9 < actual.bytes_per_s < 2e9


def test_nothing_exchanged_is_no_link() -> None:
    assert fit_link_rate([]) is None
    assert (
        fit_link_rate([MeasuredSync(1, 1, 1e6, 1e-3), MeasuredSync(2, 1, 0.0, 1e-3), MeasuredSync(2, 1, 1e6, 0.0)])
        is None
    )
    assert (
        fit_link_rate([MeasuredSync(2, 1, 1e6, 1e-3), MeasuredSync(2, 1, 1e3, 2e-3)]) is None
    )  # more bytes, less time
