"""Trainings over their seeds: figures that follow from simple records."""

import math
import statistics
from pathlib import Path

import pytest

from scalebench.analysis.load import frame_of_results
from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.stats.estimates import T_QUANTILES, Estimate
from tests.builders.runs import record
from tests.builders.sweeps import failed_run, falling_metrics, training_run

T2 = T_QUANTILES[1]  # two degrees of freedom, 95 %


def of(*results):
    return summarize_trainings(rows(*results))


def rows(*results):
    return frame_of_results(results, [Path(str(number)) for number in range(len(results))])


def geometric(values):
    logs = [math.log(value) for value in values]
    reach = T2 * statistics.stdev(logs) / math.sqrt(3)
    mean = statistics.fmean(logs)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def test_seeds_are_the_observations():
    epochs, lasts = [2, 3, 4], [0.14, 0.13, 0.11]
    made = [
        training_run(seed=seed, values=[0.9] * (count - 1) + [last], epoch_s=2.0 + seed)
        for seed, (count, last) in enumerate(zip(epochs, lasts, strict=True))
    ]
    (outcome,) = of(*made)
    assert (outcome.seeds, outcome.reached, outcome.failed, len(outcome.runs)) == (3, 3, 0, 3)
    interval = outcome.figures["time_to_target_s"]
    value = interval.value
    expected = geometric([2 * 2.0, 3 * 3.0, 4 * 4.0])
    assert (value, interval.low, interval.high) == pytest.approx(expected)
    interval = outcome.figures["epochs_to_target"]
    value = interval.value
    assert (value, interval.low, interval.high) == pytest.approx(geometric(epochs))
    interval = outcome.figures["metric"]
    value = interval.value
    reach = T2 * statistics.stdev(lasts) / math.sqrt(3)
    mean = statistics.fmean(lasts)
    assert (value, interval.low, interval.high) == pytest.approx((mean, mean - reach, mean + reach))
    assert outcome.figures["generalisation_gap"].value == pytest.approx(mean / 2)
    assert outcome.figures["trained_epochs"].value == pytest.approx(geometric(epochs)[0]) and outcome.stopped_by == [
        "target"
    ]


def test_runs_of_a_seed_are_one_observation():
    made = [training_run(seed=0, repeat=repeat, epoch_s=2.0) for repeat in range(8)]
    made += [training_run(seed=1, epoch_s=4.0), training_run(seed=2, epoch_s=4.0)]
    (outcome,) = of(*made)
    assert outcome.seeds == 3 and len(outcome.runs) == 10 and len(outcome.by_seed) == 3
    assert outcome.figures["time_to_target_s"].value == pytest.approx((6 * 12 * 12) ** (1 / 3))
    (alone,) = of(*made[:8])
    assert alone.seeds == 1 and alone.figures["time_to_target_s"].value == pytest.approx(6.0)
    assert not alone.figures["time_to_target_s"].has_limits


def test_seeds_that_miss_the_target_leave_no_interval():
    never = training_run(seed=3, values=[0.9, 0.8])
    (outcome,) = of(
        *(training_run(seed=seed, epoch_s=2 + seed) for seed in range(3)), never, training_run(seed=4, status="failed")
    )
    assert (outcome.seeds, outcome.reached, outcome.failed) == (5, 3, 1)
    interval = outcome.figures["time_to_target_s"]
    value = interval.value
    assert value == pytest.approx((6 * 9 * 12) ** (1 / 3)) and not interval.has_limits
    assert not outcome.figures["metric"].has_limits  # nor of the metric: one seed has none
    assert sorted(outcome.stopped_by) == ["epochs", "target"]


def test_a_seed_with_a_run_that_misses_the_target_has_not_reached_it():
    (outcome,) = of(training_run(repeat=0), training_run(repeat=1, values=[0.9]))
    assert (outcome.seeds, outcome.reached, outcome.figures["time_to_target_s"]) == (1, 0, None)
    others = [training_run(seed=seed, epoch_s=2 + seed) for seed in (0, 1, 2)]
    (outcome,) = of(*others, training_run(seed=0, repeat=1, values=[0.9]))
    assert (outcome.seeds, outcome.reached) == (3, 2)
    seconds = outcome.figures["time_to_target_s"]
    assert seconds.value == pytest.approx((9 * 12) ** 0.5) and not seconds.has_limits


def test_speedups_to_the_target_are_of_pairs_of_seeds():
    """A seed that takes twice the epochs does so on one device too: that cancels in its ratio."""
    made = []
    for seed, count in enumerate([2, 4, 8]):
        values = [0.9] * (count - 1) + [0.1]
        made.append(training_run("bare_torch", 1, seed, values, epoch_s=4.0))
        made.append(training_run("ddp_gloo", 1, seed, values, epoch_s=4.5))
        made.append(training_run("ddp_gloo", 2, seed, values, epoch_s=2.0 * (1 + 0.01 * seed)))
    outcomes = {(outcome.first_run["strategy"], outcome.first_run["gpus"]): outcome for outcome in of(*made)}
    interval = outcomes["ddp_gloo", 2].figures["speedup_target_bare"]
    value = interval.value
    expected = geometric([2.0, 2.0 / 1.01, 2.0 / 1.02])
    assert (value, interval.low, interval.high) == pytest.approx(expected)
    own = outcomes["ddp_gloo", 2].figures["speedup_target_self"].value
    assert own is not None and value is not None and own == pytest.approx(value * 4.5 / 4.0)
    throughput = outcomes["ddp_gloo", 2].figures["speedup_bare"]
    assert throughput.has_limits and throughput.value != pytest.approx(value, rel=1e-3)
    assert outcomes["bare_torch", 1].figures["speedup_target_bare"] == Estimate(1.0)  # itself: nothing to estimate
    assert outcomes["ddp_gloo", 1].figures["speedup_target_self"] == Estimate(1.0)


def test_a_baseline_that_missed_the_target_gives_no_speedup():
    (_, outcome) = of(training_run("bare_torch", 1, values=[0.9]), training_run("ddp_gloo", 2))
    assert outcome.figures["speedup_target_bare"] is None and outcome.figures["speedup_bare"] is not None


def test_runs_that_were_not_tried_do_not_count():
    (outcome,) = of(training_run(), training_run(seed=1, status="cancelled"), training_run(seed=2, status="oom"))
    assert (outcome.seeds, outcome.failed) == (1, 0)
    assert of(record("ddp", 2)) == [] and of(failed_run()) == []


def test_a_copy_of_a_run_counts_once():
    (outcome,) = of(training_run(), training_run())
    assert len(outcome.runs) == 1


def test_a_target_reached_with_the_first_step_takes_no_time():
    (outcome,) = of(*(training_run(seed=seed, values=[0.1], epoch_s=0.0) for seed in range(3)))
    assert outcome.reached == 3 and outcome.figures["time_to_target_s"].value == 0.0


def test_without_a_target_there_are_only_metrics():
    (outcome,) = of(training_run(target=None, values=falling_metrics(3)))
    assert outcome.target is None and outcome.reached == 0 and outcome.figures["time_to_target_s"] is None
    assert outcome.figures["metric"].value == pytest.approx(math.exp(-2.1))
