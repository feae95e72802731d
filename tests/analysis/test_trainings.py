"""The columns of trainings with known curves, their key, and what their seeds make together."""

import dataclasses
import math
from pathlib import Path

import pytest

from scalebench.analysis import rows
from scalebench.analysis.identity import training_key
from scalebench.analysis.rows import summarize_run, training_cells
from scalebench.analysis.time_to_target import summarize_trainings
from scalebench.core.result import Quality
from scalebench.core.spec import DatasetSpec, HardwareSpec, StrategySpec
from tests.builders.frames import frame_of_results
from tests.builders.runs import MACHINE, rank, record
from tests.builders.sweeps import EPOCH_SAMPLES, failed_run, make_curve, training_run

METRICS = ("train_metric", "generalisation_gap", "best_metric")


def test_a_lower_accuracy_is_worse():
    columns = training_cells(training_run(values=(0.5, 0.8, 0.6), metric="accuracy", target=None))
    assert [columns[name] for name in METRICS] == [0.3, pytest.approx(-0.3), 0.8], "half as good on training samples"
    without = training_run(values=(0.4, 0.2))
    for point in without.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    assert {training_cells(without)[name] for name in METRICS} == {None}


def test_the_epoch_of_a_training_that_ended_within_warmup(tmp_path):
    """Two epochs of 1000 samples in 4 s, of which the first step, of 20, does not count."""
    early = training_run(values=(0.4, 0.2))
    early.ranks = [rank(train_samples=EPOCH_SAMPLES, steps_per_epoch=50)]
    expected = pytest.approx(4.0 / (1980 / 1000))
    assert summarize_run(early, tmp_path).cells["epoch_s"] == expected
    assert summarize_run(training_run(values=(0.4, 0.2)), tmp_path).cells["epoch_s"] != expected
    assert rows.epoch_s_of_training(training_run(values=(0.4,))) is None, "less than an epoch is timed"
    early.status = "failed"
    assert rows.epoch_s_of_training(early) is None


def test_energy_counts_all_samples_of_the_measured_phase(tmp_path):
    """Three epochs less 16 steps of warm-up, however many of these are in complete blocks."""
    made = training_run(values=(0.4, 0.2, 0.1))
    assert made.ranks[0].warmup_block_steps == 1 and len(made.ranks[0].warmup_block_s) == 16
    assert rows.count_measured_samples(made) == 3000 - 16 * 20
    cells = summarize_run(made, tmp_path).cells
    assert cells["energy_j_per_sample"] == pytest.approx(made.monitor.energy_j / (3000 - 16 * 20))
    made.quality = Quality(curve=make_curve((0.4,))[:1])
    made.quality.curve[0].samples = 10
    assert rows.count_measured_samples(made) is None
    assert math.isfinite(summarize_run(made, tmp_path).cells["energy_j_per_sample"])


def test_seeds_repeats_and_what_is_measured_do_not_change_the_training_key():
    keys = {training_key(training_run(seed=seed, repeat=repeat)) for seed in (0, 1) for repeat in (0, 1)}
    other = training_run()
    other.spec["measure"]["block_s"] = 9.0
    other.spec["dataset"]["cache"] = "elsewhere"
    other.spec["hardware"]["max_jobs"] = 7
    assert keys == {training_key(other)} and len(keys.pop()) == 16


@pytest.mark.parametrize("changes", [
    *({"settings": settings} for settings in ({"schedule": "cosine"}, {"warmup_epochs": 1.0}, {"learning_rate": 0.5},
                                              {"batch_per_device": 11}, {"dropout": False})),
    {"target": 0.3}, {"gpus": 4}, {"strategy": "horovod_gloo"}, {"dataset": DatasetSpec("materials", size=65)},
    {"hardware": HardwareSpec("cpu", devices="cpu", gpus_per_node=2, bind="none")},
    {"machine": dataclasses.replace(MACHINE, cpu_model="a faster one")}, {"options": {"x": 1}},
], ids=lambda changes: next(iter(changes)))  # fmt: skip
def test_any_other_difference_changes_the_training_key(changes):
    options = changes.pop("options", None)
    other = training_run(**changes)
    if options:
        other.spec["strategy"] = dataclasses.asdict(StrategySpec("ddp_gloo", framework="torch", options=options))
    assert training_key(other) != training_key(training_run())


@pytest.mark.parametrize(("train", "text"), [
    ({}, None), ({"decay_epochs": [1.0, 2.0], "momentum": 0.5}, None),  # idle without their schedule and optimizer
    ({"schedule": "cosine", "warmup_epochs": 5.0, "dropout": False}, "dropout=false schedule=cosine warmup_epochs=5.0"),
    ({"schedule": "step", "decay_epochs": [1.0, 2.0]}, "schedule=step decay_epochs=[1.0,2.0]"),
    ({"optimizer": "momentum", "momentum": 0.5}, "momentum=0.5"),
])  # fmt: skip
def test_train_options_are_the_settings_without_a_column(train, text):
    assert rows.format_train_options(training_run(settings=train).spec["train"]) == text
    assert rows.format_train_options({}) is None


def of(*results):
    return summarize_trainings(frame_of_results(results, [Path(str(number)) for number in range(len(results))]))


def test_runs_of_a_seed_are_one_observation():
    made = [training_run(seed=0, repeat=repeat, epoch_s=2.0) for repeat in range(8)]
    made += [training_run(seed=1, epoch_s=4.0), training_run(seed=2, epoch_s=4.0)]
    (outcome,) = of(*made, made[-1])  # a copy counts once
    assert outcome.seeds == 3 and len(outcome.runs) == 10 and len(outcome.by_seed) == 3
    assert outcome.figures["time_to_target_s"].value == pytest.approx((6 * 12 * 12) ** (1 / 3))
    (alone,) = of(*made[:8])
    assert alone.seeds == 1 and alone.figures["time_to_target_s"].value == pytest.approx(6.0)
    assert not alone.figures["time_to_target_s"].has_limits
    (at_once,) = of(*(training_run(seed=seed, values=[0.1], epoch_s=0.0) for seed in range(3)))
    assert at_once.reached == 3 and at_once.figures["time_to_target_s"].value == 0.0, "with the first step"


def test_seeds_that_miss_the_target_leave_no_interval():
    reached = [training_run(seed=seed, epoch_s=2 + seed) for seed in range(3)]
    never = training_run(seed=3, values=[0.9, 0.8])
    (outcome,) = of(*reached, never, training_run(seed=4, status="failed"))
    assert (outcome.seeds, outcome.reached, outcome.failed) == (5, 3, 1)
    seconds = outcome.figures["time_to_target_s"]
    assert seconds.value == pytest.approx((6 * 9 * 12) ** (1 / 3)) and not seconds.has_limits
    assert not outcome.figures["metric"].has_limits  # nor of the metric: one seed has none
    assert sorted(outcome.stopped_by) == ["epochs", "target"]
    (outcome,) = of(training_run(), training_run(seed=1, status="cancelled"), training_run(seed=2, status="oom"))
    assert (outcome.seeds, outcome.failed) == (1, 0), "runs that were not tried do not count"
    assert of(record("ddp", 2)) == [] and of(failed_run()) == []


def test_a_seed_with_a_run_that_misses_the_target_has_not_reached_it():
    (outcome,) = of(training_run(repeat=0), training_run(repeat=1, values=[0.9]))
    assert (outcome.seeds, outcome.reached, outcome.figures["time_to_target_s"]) == (1, 0, None)
    others = [training_run(seed=seed, epoch_s=2 + seed) for seed in (0, 1, 2)]
    (outcome,) = of(*others, training_run(seed=0, repeat=1, values=[0.9]))
    assert (outcome.seeds, outcome.reached) == (3, 2)
    seconds = outcome.figures["time_to_target_s"]
    assert seconds.value == pytest.approx((9 * 12) ** 0.5) and not seconds.has_limits
