"""The blocks that count, throughput, flags, and ratios within rounds, of simple records with known figures."""

import math
from pathlib import Path

import numpy as np
import pytest

import scalebench
from scalebench.analysis import throughput
from scalebench.analysis.attribution.lost_efficiency import ReferenceRuns, attribute_run
from scalebench.analysis.comparison.rows import make_compared_run
from scalebench.analysis.repeats import Configurations
from scalebench.analysis.rows import divide_throughputs, summarize_run
from scalebench.analysis.throughput import ROUND_COLUMNS, Measurement
from scalebench.core.result import write_result
from scalebench.core.spec import MeasureSpec
from scalebench.core.stats.estimate_arithmetic import combine
from scalebench.core.stats.estimates import Estimate, estimate_ratio_over_rounds, estimate_throughput
from tests.builders.runs import rank, record

SLOT_S, STEP_NOISE = 0.5, 0.02


def summarize(*results):
    return [summarize_run(result, Path("s") / result.run_id) for result in results]


@pytest.mark.parametrize(("is_independent", "rate"), [(False, 60 / 6.0), (True, 30 / 4.0 + 19 / 3.0)])
def test_a_group_is_as_slow_as_its_slowest_rank_and_replicas_add_up_without_their_last_blocks(is_independent, rate):
    ranks = [rank(0, [1.0, 2.0, 1.0, 9.0], [10, 10, 10, 10]), rank(1, [2.0, 1.0, 2.0], [9, 10, 11])]
    measured = Measurement(record(gpus=2, ranks=ranks, independent=is_independent))
    assert measured.throughput == Estimate(rate)
    assert measured.step_s == 6.0 / (3 * 2)
    single = record(gpus=2, ranks=[rank(0, [2.0], [10]), rank(1, [4.0], [10])], independent=True)
    assert Measurement(single).throughput == Estimate(10 / 2.0 + 10 / 4.0), "the only block of a replica counts"


def test_the_interval_is_of_batch_means_and_that_of_replicas_of_their_sum():
    result = record(gpus=2, block_s=0.1)
    seconds = result.ranks[0].block_s
    assert Measurement(result).throughput.value == pytest.approx(40 / 0.1)
    assert Measurement(result).throughput == estimate_throughput(seconds, [40] * len(seconds))
    one = estimate_throughput(seconds[:-1], [20] * 31)
    both = combine({"first": 1.0, "second": 1.0}, {"first": one, "second": one})
    assert Measurement(record(gpus=2, block_s=0.1, independent=True)).throughput == both


@pytest.mark.parametrize("changes", [
    *({"status": status} for status in ("failed", "oom", "timeout", "unsupported", "cancelled")),
    *({"ranks": ranks} for ranks in (
        [], [rank()], [rank(0, [0.0, 0.0])], [rank(0, [1.0, -0.5])], [rank(0, [1.0], [0])], [rank(0, [1.0], [])],
        [rank(0, [1.0]), rank(1)],
    )),
])  # fmt: skip
def test_a_run_that_is_not_ok_or_has_no_complete_blocks_has_no_figures(changes):
    result = record(**changes)
    assert Measurement(result).throughput is None
    assert "ranks" in changes or Measurement(result).step_s is None


NARROW, WIDE, ENDLESS = Estimate(100, 99.5, 100.5), Estimate(100, 90, 110), Estimate(100, 10, math.inf)


@pytest.mark.parametrize(("interval", "repeats", "expected"), [
    (NARROW, 1, []), (None, 1, ["no_interval"]), (ENDLESS, 1, ["no_interval"]), (WIDE, 1, ["target_missed"]),
    # The mean of several repeats is as narrow as requested when each is sqrt(repeats) times as wide.
    (Estimate(100.0, 98.5, 101.5), None, ["target_missed"]), (Estimate(100.0, 98.5, 101.5), 3, []),
])  # fmt: skip
def test_a_missing_or_wide_interval_is_a_flag(interval, repeats, expected):
    result = record()
    result.spec["measure"] = {"target": 0.01, "repeats": repeats}
    measured = Measurement(result)
    measured.throughput = interval
    assert measured.list_flags() == expected


@pytest.mark.parametrize(("efficiency", "device", "expected"), [
    (None, "cuda", []), (Estimate(0.99, 0.97, 1.01), "cuda", []), (Estimate(3.0), "cpu", []),
    (Estimate(1.01, 0.99, 1.03), "cuda", ["superlinear_within_noise"]),
    (Estimate(1.1, 1.0, 1.2), "cuda", ["superlinear_within_noise"]),
    (Estimate(1.1, 1.05, 1.15), "cuda", ["superlinear"]),
    # More than so many CPU workers can do is an error of the measurement: 3.6 times as fast on two cores.
    (Estimate(1.8, 1.7, 1.9), "cpu", ["superlinear_on_cpu"]),
    (Estimate(1.1, 0.9, 1.2), "cpu", ["superlinear_within_noise"]),
])  # fmt: skip
def test_an_efficiency_above_1_is_a_flag(efficiency, device, expected):
    assert throughput.superlinear_flags(efficiency, device) == expected


def test_flags_of_the_run_come_first_and_failed_runs_have_no_others():
    flags = {"flags": ["oversubscribed"]}
    assert Measurement(record(ranks=[rank()], **flags)).list_flags() == ["oversubscribed", "no_interval"]
    assert Measurement(record(status="failed", **flags)).list_flags() == ["oversubscribed"]


def slots(strategy, seconds_by_round, gpus=1, **changes):
    rounds = [number for number, blocks in seconds_by_round.items() for _ in blocks]
    seconds = [block for blocks in seconds_by_round.values() for block in blocks]
    starts = [100.0 * number for number in rounds]
    ranks = [rank(k, seconds, block_rounds=rounds, block_started_at_s=starts) for k in range(gpus)]
    return record(strategy, gpus, ranks=ranks, cohort="c", **{"run_id": strategy, **changes})


def round_rates(result):
    return {number: rate for (_, number), rate in Measurement(result).round_rates.items()}


def test_a_round_has_the_throughput_of_its_blocks():
    assert round_rates(slots("ddp", {1: [0.1, 0.3], 2: [0.5]})) == pytest.approx({1: 40 / 0.4, 2: 20 / 0.5})
    assert round_rates(slots("ddp", {1: [0.1]}, gpus=2)) == pytest.approx({1: 400.0})
    assert round_rates(record("ddp")) == {}
    two = slots("ddp", {1: [0.1], 2: [0.2]}, gpus=2, independent=True)
    two.ranks[1].block_rounds, two.ranks[1].block_s, two.ranks[1].block_samples = [1], [0.4], [20]
    assert round_rates(two) == pytest.approx({1: 20 / 0.1 + 20 / 0.4}), "a round in which one replica has no block"
    damaged = slots("ddp", {1: [0.1], 2: [0.2]})
    damaged.ranks[0].block_rounds.append(3)
    assert round_rates(damaged) == {}, "whose blocks and rounds differ in number"


def test_the_changes_of_the_machine_cancel_within_the_rounds_of_a_cohort():
    level = {1: 1.0, 2: 1.5, 3: 0.7, 4: 1.3}
    bare = slots("bare_torch", {number: [0.1 * factor] for number, factor in level.items()})
    fast = slots("ddp", {number: [0.05 * factor] for number, factor in level.items()})
    row = Configurations(summarize(bare, fast)).rows[1]
    assert row["speedup_bare"] == pytest.approx(2.0)
    assert row["speedup_bare_low"] is None, "another start may have another ratio"
    bare, other, swapped = (slots(name, {1: [one], 2: [two]}) for name, one, two in (
        ("bare_torch", 0.1, 0.3), ("ddp", 0.05, 0.3), ("ddp", 0.3, 0.1)
    ))  # fmt: skip
    attribution = attribute_run(other, ReferenceRuns(bare, bare, None))
    assert attribution.lost.value == pytest.approx(1 - math.sqrt(2)), "as the efficiency of the frame"
    for swapped.cohort in ("other", None):
        assert divide_throughputs(*summarize(swapped, bare)).value == pytest.approx(1.0)
    once = slots("ddp", {2: [0.1]})
    assert divide_throughputs(*summarize(once, bare)).value == pytest.approx(2.0), "one shared round is not enough"


def test_leftover_warmup_counts_neither_in_throughput_nor_in_ratios(tmp_path):
    """Of two runs that are equally fast one began to be measured in its warm-up: 12 of 60 rounds."""
    config = {"measure": MeasureSpec(target=0.01)}
    bare = slots("bare_torch", {number: [0.1] for number in range(60)}, **config)
    ddp = slots("ddp", {number: [0.3 if number < 12 else 0.1] for number in range(60)}, **config)
    runs = summarize(bare, ddp)
    assert "warmup_left" in runs[1].cells["flags"]
    assert runs[0].rate == pytest.approx(runs[1].rate)
    assert Configurations(runs).rows[1]["speedup_bare"] == pytest.approx(1.0)
    assert attribute_run(ddp, ReferenceRuns(bare, bare, None)).lost.value == pytest.approx(0.0)
    write_result(ddp, tmp_path)
    assert scalebench.load_rounds(tmp_path).counts.tolist() == [number >= 12 for number in range(60)]


def test_rounds_in_which_other_programs_took_the_cores_do_not_count(tmp_path):
    bare = slots("bare_torch", {number: [0.1] for number in range(12)})
    seconds = {number: [0.2 if number < 3 else 0.05] for number in range(12)}
    ddp = slots("ddp", seconds, disturbed_rounds=[0, 1, 2], flags=["busy_machine", "swapping"])
    runs = summarize(ddp, bare)
    assert divide_throughputs(*runs).value == pytest.approx(2.0) and runs[0].rate == pytest.approx(20 / 0.05)
    assert "busy_machine" not in runs[0].cells["flags"] and "swapping" in runs[0].cells["flags"]
    assert make_compared_run(ddp, Path("ddp")).record.flags == ["swapping"]
    ddp.disturbed_rounds = list(range(5))
    (run,) = summarize(ddp)
    assert "busy_machine" in run.cells["flags"]
    assert run.rate == pytest.approx(12 * 20 / (3 * 0.2 + 9 * 0.05)), "too few would be left"
    write_result(ddp, tmp_path)
    assert scalebench.load_rounds(tmp_path).disturbed.tolist() == [number < 5 for number in range(12)]


def test_rounds_are_a_tidy_frame(tmp_path):
    for name, result in {"a": slots("ddp", {1: [0.1, 0.1], 3: [0.2]}), "b": record("alone")}.items():
        (tmp_path / name).mkdir()
        write_result(result, tmp_path / name)
    frame = scalebench.load_rounds(tmp_path)
    assert tuple(frame.columns) == ROUND_COLUMNS
    assert frame[["round", "started_at_s", "step_s", "throughput_samples_per_s"]].values.tolist() == [
        [1, 100.0, pytest.approx(0.05), pytest.approx(200.0)], [3, 300.0, pytest.approx(0.1), pytest.approx(100.0)]
    ]  # fmt: skip


@pytest.mark.parametrize("rounds", [8, 60])
def test_limits_hold_the_true_ratio_while_the_machine_slows_down_at_times(rounds):
    """By 30 % for seconds at a time. In 930 of 1,000 trials at least, as everywhere in this project."""
    generator = np.random.default_rng(rounds)
    held, trials, rates = 0, 1000, np.array([100.0, 140.0, 90.0])
    for _ in range(trials // 2):
        change_s = np.cumsum(generator.exponential(4.0, size=12 * rounds))
        slot = generator.permuted(np.tile(np.arange(3), (rounds, 1)), axis=1).T + 3 * np.arange(rounds)
        slow = np.searchsorted(change_s, SLOT_S * slot[..., None] + np.linspace(0.0, SLOT_S, 20)) % 2
        noise = np.exp(STEP_NOISE * generator.standard_normal(slot.shape))
        reference, *others = rates[:, None] * (1 - 0.3 * slow).mean(axis=2) * noise
        for measured, true_rate in zip(others, rates[1:], strict=True):
            estimate = estimate_ratio_over_rounds(measured, reference)
            held += estimate.low <= true_rate / rates[0] <= estimate.high
    assert held >= 0.93 * trials
