"""Throughput, speedup, baselines and flags of simple records with known throughput."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis import throughput
from scalebench.analysis.baselines import Baselines
from scalebench.analysis.blocks import merge_rank_blocks
from scalebench.core.spec import DatasetSpec, HardwareSpec, TrainSpec
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, estimate_throughput
from tests.builders.runs import MACHINE, rank, record


def two_ranks(independent=False):
    fast = rank(0, [1.0, 2.0, 1.0, 9.0], [10, 10, 10, 10])
    slow = rank(1, [2.0, 1.0, 2.0], [9, 10, 11])
    return record(gpus=2, ranks=[fast, slow], independent=independent)


def test_a_group_is_as_slow_as_its_slowest_rank_in_each_block():
    seconds, samples = merge_rank_blocks(two_ranks().ranks)
    assert (seconds.tolist(), samples.tolist()) == ([2.0, 2.0, 2.0], [19, 20, 21])
    assert throughput.throughput(two_ranks()) == (60 / 6.0, None)


def test_throughput_of_replicas_adds_up_without_their_last_blocks():
    value, interval = throughput.throughput(two_ranks(independent=True))
    assert value == pytest.approx(30 / 4.0 + 19 / 3.0)
    assert interval is None


def test_the_only_block_of_a_replica_counts():
    ranks = [rank(0, [2.0], [10]), rank(1, [4.0], [10])]
    assert throughput.throughput(record(gpus=2, ranks=ranks, independent=True)) == (10 / 2.0 + 10 / 4.0, None)


def test_the_interval_is_of_batch_means():
    result = record(gpus=2, block_s=0.1)
    seconds = result.ranks[0].block_s
    value, interval = throughput.throughput(result)
    assert value == pytest.approx(40 / 0.1)
    assert interval == estimate_throughput(seconds, [40] * len(seconds))
    assert 0 < interval.relative_half_width() < 0.02


def test_the_interval_of_replicas_is_of_the_sum():
    result = record(gpus=2, independent=True)
    one = estimate_throughput(result.ranks[0].block_s[:-1], [20] * 31)
    assert throughput.throughput(result)[1] == combine({"first": 1.0, "second": 1.0}, {"first": one, "second": one})


@pytest.mark.parametrize("status", ["failed", "oom", "timeout", "unsupported", "cancelled"])
def test_a_run_that_is_not_ok_has_no_figures(status):
    result = record(status=status)
    assert result.ranks[0].block_s
    assert throughput.throughput(result) == (None, None)
    assert throughput.step_s(result) is None
    assert throughput.divide_throughputs(result, record("bare_torch")) is None


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [rank()],
        [rank(0, [0.0, 0.0])],
        [rank(0, [1.0, -0.5])],
        [rank(0, [1.0], [0])],
        [rank(0, [1.0], [])],
        [rank(0, [1.0]), rank(1)],
    ],
)
def test_no_throughput_without_complete_blocks(ranks):
    assert throughput.throughput(record(ranks=ranks)) == (None, None)


def test_seconds_of_one_step():
    assert throughput.step_s(two_ranks()) == 6.0 / (3 * 2)
    assert throughput.step_s(record(block_s=None)) is None


def pair(**changes):
    return record(gpus=2, block_s=0.125), record(**{"gpus": 1, "block_s": 0.1, **changes})


def test_a_ratio_of_throughputs_needs_both():
    two, one = pair()
    assert throughput.divide_throughputs(two, one) == pytest.approx(1.6)
    assert throughput.divide_throughputs(two, two) == 1.0
    unmeasured = record(block_s=None)
    assert throughput.divide_throughputs(two, unmeasured) is None
    assert throughput.divide_throughputs(unmeasured, unmeasured) is None
    assert throughput.divide_throughputs(two, None) is None


def test_self_and_bare_are_found():
    two, own = pair()
    bare, other = record("bare_torch"), record("lightning_ddp")
    available = Baselines.among([two, own, bare, other])
    assert available.find_self(two) is own and available.find_self(own) is own
    assert available.find_bare(two) is bare and available.find_bare(own) is bare and available.find_bare(bare) is bare
    assert Baselines.among([own]).find_bare(record(gpus=2, baseline=None)) is None


@pytest.mark.parametrize("bad", [record(status="failed"), record(gpus=2, run_id="x"), record(status="cancelled")])
def test_failed_runs_and_several_devices_are_no_baselines(bad):
    assert Baselines.among([bad]).find_self(record(gpus=2)) is None


OTHER_GPU = HardwareSpec("gpu2", devices="cpu", gpus_per_node=2)
DIFFERENT = {
    "batch": {"train": TrainSpec(batch_per_device=20)},
    "dataset": {"dataset": DatasetSpec("materials", size=128)},
    "feed": {"dataset": DatasetSpec("materials", size=64, feed="fixed")},
    "hardware": {"hardware": OTHER_GPU},
    "processor": {"machine": MACHINE.__class__(**{**vars(MACHINE), "cpu_model": "another processor"})},
    "scaling": {"scaling": "strong"},
    "learning rate": {"train": TrainSpec(batch_per_device=10, learning_rate=0.5)},
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_runs_that_differ_besides_their_devices_are_not_compared(change):
    available = Baselines.among([record(**change), record("bare_torch", **change)])
    assert available.find_self(record(gpus=2)) is None and available.find_bare(record(gpus=2)) is None
    run = record(gpus=2, **change)
    assert available.find_self(run) is not None and available.find_bare(run) is not None


def with_options(gpus, name, **options):
    made = record(name, gpus=gpus, baseline="simulated")
    made.spec["strategy"]["options"] = options
    return made


def test_records_without_an_option_are_compared_with_its_default():
    """Other options have another self, and the same bare baseline."""
    older, bare = with_options(1, "ddp", bucket_cap_mb=25.0), with_options(1, "simulated")
    available = Baselines.among([older, bare])
    assert available.find_self(with_options(2, "ddp", bucket_cap_mb=25.0, overlap=True)) is older
    for other in ({"bucket_cap_mb": 25.0, "overlap": False}, {"bucket_cap_mb": 1.0}):
        run = with_options(2, "ddp", **other)
        assert available.find_self(run) is None and available.find_bare(run) is bare


def test_a_strategy_that_is_its_own_bare_baseline_must_have_the_same_options():
    one, other = with_options(1, "simulated", step_s=0.1), with_options(1, "simulated", step_s=0.2)
    available = Baselines.among([one, other])
    assert available.find_bare(with_options(2, "simulated", step_s=0.1)) is one
    assert available.find_bare(with_options(2, "simulated", step_s=0.2)) is other
    assert available.find_bare(with_options(2, "simulated", step_s=0.3)) is None


def of_tensorflow(loop, name="bare_tensorflow", gpus=1):
    made = record(name, gpus=gpus, baseline="bare_tensorflow")
    made.scale.framework = "tensorflow"
    made.spec["strategy"]["options"] = {"loop": loop}
    return made


def test_the_bare_baseline_is_the_one_with_its_default_options():
    plain, fit = of_tensorflow("custom"), of_tensorflow("fit")
    available = Baselines.among([fit, plain])
    assert (
        available.find_bare(fit) is plain and available.find_self(fit) is fit
    )  # so that the cost of Keras' loop is a figure
    assert available.find_bare(of_tensorflow("fit", "mirrored", 2)) is plain
    alone = Baselines.among([fit])
    assert alone.find_bare(fit) is fit and alone.find_bare(of_tensorflow("custom", "mirrored", 2)) is None


NARROW, WIDE, ENDLESS = Estimate(100, 99.5, 100.5), Estimate(100, 90, 110), Estimate(100, 10, math.inf)


@pytest.mark.parametrize(
    ("interval", "efficiency", "expected"),
    [
        (NARROW, None, []),
        (None, None, ["no_interval"]),
        (ENDLESS, None, ["no_interval"]),
        (WIDE, None, ["target_missed"]),
        (NARROW, Estimate(0.99, 0.97, 1.01), []),
        (NARROW, Estimate(1.01, 0.99, 1.03), ["superlinear_within_noise"]),
        (NARROW, Estimate(1.1, 1.05, 1.15), ["superlinear"]),
        (WIDE, Estimate(1.1, 1.0, 1.2), ["target_missed", "superlinear_within_noise"]),
    ],
)
def test_flags_of_a_run(interval, efficiency, expected):
    assert (
        throughput.list_flags(record(), interval, 0.01) + throughput.superlinear_flags(efficiency, "cuda") == expected
    )


def test_flags_of_the_run_come_first_and_failed_runs_have_no_others():
    assert throughput.list_flags(record(flags=["oversubscribed"]), None, 0.01) == ["oversubscribed", "no_interval"]
    failed = record(status="failed", flags=["oversubscribed"])
    assert throughput.list_flags(failed, None, 0.01) == ["oversubscribed"]
    assert failed.flags == ["oversubscribed"]


@given(seconds=st.lists(st.floats(1e-6, 1e3), min_size=16, max_size=80), devices=st.integers(1, 4))
def test_throughput_is_samples_over_time_whatever_the_blocks(seconds, devices):
    ranks = [rank(k, seconds, list(range(1, len(seconds) + 1))) for k in range(devices)]
    value, interval = throughput.throughput(record(gpus=devices, ranks=ranks))
    samples = devices * len(seconds) * (len(seconds) + 1) / 2
    assert value == pytest.approx(samples / sum(seconds))
    assert interval.low <= value * (1 + 1e-12) and interval.high >= value * (1 - 1e-12)


def test_more_than_so_many_cpu_workers_can_do_is_an_error_of_the_measurement():
    """3.65 times as fast on two cores."""
    assert throughput.superlinear_flags(Estimate(1.8, 1.7, 1.9), "cpu") == ["superlinear_on_cpu"]
    assert throughput.superlinear_flags(Estimate(1.1, 0.9, 1.2), "cpu") == ["superlinear_within_noise"]
    assert throughput.superlinear_flags(Estimate(3.0), "cpu") == throughput.superlinear_flags(None, "cpu") == []


@pytest.mark.parametrize(("rates", "flags"), [([100, 109, 105], []), ([100, 112, 105], ["repeats_differ"]), ([5], [])])
def test_repeats_that_differ_by_more_than_a_tenth_are_flagged(rates, flags):
    assert throughput.repeats_differ_flags(rates) == flags


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_the_spread_of_step_times_is_over_the_means_of_blocks(count):
    block_s = [0.2 + 0.01 * (7 * n % 11) for n in range(count)]
    columns = throughput.evaluate_blocks(record(ranks=[rank(0, block_s)])).step_spread
    steps_s = np.array(block_s) / 2  # two steps a block
    assert columns["step_s_median"] == pytest.approx(np.median(steps_s))
    assert columns["step_s_p95"] == pytest.approx(np.quantile(steps_s, 0.95))
    assert columns["step_cv"] == (None if count == 1 else pytest.approx(steps_s.std(ddof=1) / steps_s.mean()))


def test_what_was_not_measured_has_no_spread():
    columns = throughput.evaluate_blocks(record(status="failed", block_s=None)).step_spread
    assert columns == {"step_s_median": None, "step_s_p95": None, "step_cv": None}


def test_one_of_several_repeats_may_have_a_wider_interval():
    """Their mean is as narrow as requested when each is sqrt(repeats) times as wide."""
    interval = Estimate(100.0, 98.5, 101.5)
    result = record()
    result.spec["measure"] = {"repeats": None}
    assert "target_missed" in throughput.list_flags(result, interval, 0.01)
    result.spec["measure"] = {"repeats": 3}
    assert "target_missed" not in throughput.list_flags(result, interval, 0.01)
