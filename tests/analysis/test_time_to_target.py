"""What comes of trainings over their seeds, against figures worked out here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

import scalebench
from scalebench.analysis.load import frame_of_results
from scalebench.analysis.time_to_target import (
    TRAINING_TABLE_COLUMNS,
    TrainingOutcome,
    make_training_table,
    mean_of_levels,
    summarize_trainings,
)
from scalebench.core.result import Result
from scalebench.core.stats.estimates import T_QUANTILES
from tests.builders.runs import record
from tests.builders.sweeps import failed, falling, training, write

T2 = T_QUANTILES[1]  # two degrees of freedom, 95 %


def of(*results: Result) -> list[TrainingOutcome]:
    return summarize_trainings(rows(*results))


def rows(*results: Result) -> pd.DataFrame:
    return frame_of_results(results, [Path(str(number)) for number in range(len(results))])


def geometric(values: Sequence[float]) -> tuple[float, float, float]:
    logs = [math.log(value) for value in values]
    reach = T2 * statistics.stdev(logs) / math.sqrt(3)
    mean = statistics.fmean(logs)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def test_seeds_are_the_observations() -> None:
    epochs, lasts = [2, 3, 4], [0.14, 0.13, 0.11]
    made = [
        training(seed=seed, values=[0.9] * (count - 1) + [last], epoch_s=2.0 + seed)
        for seed, (count, last) in enumerate(zip(epochs, lasts, strict=True))
    ]
    (one,) = of(*made)
    assert (one.seeds, one.reached, one.failed, len(one.runs)) == (3, 3, 0, 3)
    value, interval = one.figures["time_to_target_s"]
    expected = geometric([2 * 2.0, 3 * 3.0, 4 * 4.0])
    assert interval is not None and (value, interval.low, interval.high) == pytest.approx(expected)
    value, interval = one.figures["epochs_to_target"]
    assert interval is not None and (value, interval.low, interval.high) == pytest.approx(geometric(epochs))
    value, interval = one.figures["metric"]
    reach = T2 * statistics.stdev(lasts) / math.sqrt(3)
    mean = statistics.fmean(lasts)
    assert interval is not None and (value, interval.low, interval.high) == pytest.approx(
        (mean, mean - reach, mean + reach)
    )
    assert one.figures["generalisation_gap"][0] == pytest.approx(mean / 2)
    assert one.figures["trained_epochs"][0] == pytest.approx(geometric(epochs)[0]) and one.stopped_by == ["target"]


def test_launches_of_a_seed_are_one_observation() -> None:
    made = [training(seed=0, repeat=repeat, epoch_s=2.0) for repeat in range(8)]
    made += [training(seed=1, epoch_s=4.0), training(seed=2, epoch_s=4.0)]
    (one,) = of(*made)
    assert one.seeds == 3 and len(one.runs) == 10 and len(one.by_seed) == 3
    assert one.figures["time_to_target_s"][0] == pytest.approx((6 * 12 * 12) ** (1 / 3))
    (alone,) = of(*made[:8])
    assert alone.seeds == 1 and alone.figures["time_to_target_s"] == (pytest.approx(6.0), None)


def test_seeds_that_never_reach_it_leave_no_interval() -> None:
    never = training(seed=3, values=[0.9, 0.8])
    (one,) = of(*(training(seed=seed, epoch_s=2 + seed) for seed in range(3)), never, training(seed=4, status="failed"))
    assert (one.seeds, one.reached, one.failed) == (5, 3, 1)
    value, interval = one.figures["time_to_target_s"]
    assert value == pytest.approx((6 * 9 * 12) ** (1 / 3)) and interval is None
    assert one.figures["metric"][1] is None  # nor of the metric: one seed has none
    assert sorted(one.stopped_by) == ["epochs", "target"]


def test_a_seed_of_which_one_launch_misses_has_not_reached_it() -> None:
    (one,) = of(training(repeat=0), training(repeat=1, values=[0.9]))
    assert (one.seeds, one.reached) == (1, 0)


def test_speedups_are_of_pairs_of_seeds() -> None:
    """A seed that takes twice the epochs does so on one device too: that cancels in its ratio."""
    made = []
    for seed, count in enumerate([2, 4, 8]):
        values = [0.9] * (count - 1) + [0.1]
        made.append(training("bare_torch", 1, seed, values, epoch_s=4.0))
        made.append(training("ddp_gloo", 1, seed, values, epoch_s=4.5))
        made.append(training("ddp_gloo", 2, seed, values, epoch_s=2.0 * (1 + 0.01 * seed)))
    found = {(one.first_run["strategy"], one.first_run["gpus"]): one for one in of(*made)}
    value, interval = found["ddp_gloo", 2].figures["speedup_target_bare"]
    expected = geometric([2.0, 2.0 / 1.01, 2.0 / 1.02])
    assert interval is not None and (value, interval.low, interval.high) == pytest.approx(expected)
    own = found["ddp_gloo", 2].figures["speedup_target_self"][0]
    assert own is not None and value is not None and own == pytest.approx(value * 4.5 / 4.0)
    throughput = found["ddp_gloo", 2].figures["speedup_bare"]
    assert throughput[0] is not None and throughput[1] is not None and throughput[0] != pytest.approx(value, rel=1e-3)
    assert found["bare_torch", 1].figures["speedup_target_bare"] == (1.0, None)  # itself: nothing to estimate
    assert found["ddp_gloo", 1].figures["speedup_target_self"] == (1.0, None)


def test_a_baseline_that_never_reached_it_gives_no_speedup() -> None:
    (_, one) = of(training("bare_torch", 1, values=[0.9]), training("ddp_gloo", 2))
    assert one.figures["speedup_target_bare"] == (None, None) and one.figures["speedup_bare"][0] is not None


def test_what_was_not_tried_counts_for_nothing() -> None:
    (one,) = of(training(), training(seed=1, status="cancelled"), training(seed=2, status="oom"))
    assert (one.seeds, one.failed) == (1, 0)
    assert of(record("ddp", 2)) == [] and of(failed()) == []


def test_a_copy_of_a_run_counts_once() -> None:
    (one,) = of(training(), training())
    assert len(one.runs) == 1


def test_a_target_at_the_first_update_takes_no_time() -> None:
    (one,) = of(*(training(seed=seed, values=[0.1], epoch_s=0.0) for seed in range(3)))
    assert one.reached == 3 and one.figures["time_to_target_s"][0] == 0.0


def test_without_a_target_there_are_metrics_alone() -> None:
    (one,) = of(training(target=None, values=falling(3)))
    assert one.target is None and one.reached == 0 and one.figures["time_to_target_s"] == (None, None)
    assert one.figures["metric"] == (pytest.approx(math.exp(-2.1)), None)


def test_the_table_has_a_row_a_training(tmp_path: Path) -> None:
    made = [
        training(strategy, seed=seed, epoch_s=2 + seed) for strategy in ("ddp_gloo", "mirrored") for seed in range(3)
    ]
    write(tmp_path, made)
    found = make_training_table(scalebench.load(tmp_path))
    assert list(found.columns) == TRAINING_TABLE_COLUMNS and list(found["strategy"]) == ["ddp_gloo", "mirrored"]
    assert list(found["reached"]) == [3, 3] and (found["time_to_target_s_low"] < found["time_to_target_s"]).all()
    assert (
        list(make_training_table(rows(record("ddp"))).columns) == TRAINING_TABLE_COLUMNS
        and make_training_table(rows(record("ddp"))).empty
    )


@pytest.mark.parametrize("count", [1, 2])
def test_no_interval_of_fewer_than_three(count: int) -> None:
    assert mean_of_levels([0.5] * count) == (0.5, None)


def test_levels_may_be_negative() -> None:
    value, interval = mean_of_levels([-1.0, 0.0, 1.0])
    assert value == 0 and interval is not None and interval.high == pytest.approx(T2 / math.sqrt(3)) == -interval.low
