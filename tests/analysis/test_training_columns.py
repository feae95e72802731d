"""The columns of trainings with known curves, and their training key."""

import dataclasses
import math

import pytest

from scalebench.analysis import training_columns
from scalebench.analysis.identity import training_key
from scalebench.analysis.rows import summarize_run
from scalebench.analysis.training_columns import train_options_text, training_id_cells
from scalebench.core.result import Quality
from scalebench.core.spec import DatasetSpec, HardwareSpec, StrategySpec
from tests.builders.runs import MACHINE, rank, record
from tests.builders.sweeps import EPOCH_SAMPLES, make_curve, training_run


def test_a_lower_accuracy_is_worse():
    columns = training_columns.training_cells(training_run(values=(0.5, 0.8, 0.6), metric="accuracy", target=None))
    assert columns["best_metric"] == 0.8 and columns["train_metric"] == 0.3
    assert columns["generalisation_gap"] == pytest.approx(-0.3), "half as good on samples that it was trained on"


def test_a_throughput_run_has_no_training_columns():
    columns = training_columns.training_cells(record())
    null = ("stopped_by", "target", "trained_s", "trained_steps", "train_metric", "generalisation_gap", "best_metric")
    assert {columns[name] for name in (*null, "points", "first_step_s", "max_batch_per_device")} == {None}
    assert columns["learning_rate"] == 1e-3, "of its optimizer"
    assert (
        training_columns.epoch_s_of_training(record()) is None
        and training_columns.count_measured_samples(record()) is None
    )


def test_an_older_record_without_train_keys():
    old = record()
    old.spec, old.quality.learning_rate = {"strategy": {"name": "ddp"}}, None
    assert {value for key, value in training_columns.training_cells(old).items() if key != "max_batch_per_device"} == {
        None
    }


def test_points_without_a_metric():
    made = training_run(values=(0.4, 0.2))
    for point in made.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    columns = training_columns.training_cells(made)
    assert (columns["train_metric"], columns["generalisation_gap"], columns["best_metric"]) == (None, None, None)


@pytest.mark.parametrize(
    ("mine", "theirs", "speedup"), [(2.0, 6.0, 3.0), (None, 6.0, None), (2.0, None, None), (0.0, 6.0, None)]
)
def test_the_speedup_to_the_target(mine, theirs, speedup, tmp_path):
    runs = []
    for time_s in (mine, theirs):
        made = training_run()
        made.quality.time_to_target_s = time_s
        runs.append(summarize_run(made, tmp_path))
    assert training_columns.target_speedup(*runs) == speedup
    assert training_columns.target_speedup(runs[0], None) is None


def test_the_epoch_of_a_training_that_ended_within_warmup(tmp_path):
    """Two epochs of 1000 samples in 4 s, of which the first step, of 20, does not count."""
    early = training_run(values=(0.4, 0.2))
    early.ranks = [rank(train_samples=EPOCH_SAMPLES, steps_per_epoch=50)]
    expected = 4.0 / (1980 / 1000)
    assert summarize_run(early, tmp_path).cells["epoch_s"] == pytest.approx(expected)
    assert summarize_run(training_run(values=(0.4, 0.2)), tmp_path).cells["epoch_s"] != pytest.approx(expected)
    assert training_columns.epoch_s_of_training(training_run(values=(0.4,))) is None, "less than an epoch is timed"
    early.status = "failed"
    assert training_columns.epoch_s_of_training(early) is None


def test_energy_counts_all_samples_of_the_measured_phase(tmp_path):
    """Three epochs less 16 steps of warm-up, however many of these are in complete blocks."""
    made = training_run(values=(0.4, 0.2, 0.1))
    assert made.ranks[0].warmup_block_steps == 1 and len(made.ranks[0].warmup_block_s) == 16
    assert training_columns.count_measured_samples(made) == 3000 - 16 * 20
    cells = summarize_run(made, tmp_path).cells
    assert cells["energy_j_per_sample"] == pytest.approx(made.monitor.energy_j / (3000 - 16 * 20))
    made.quality = Quality(curve=make_curve((0.4,))[:1])
    made.quality.curve[0].samples = 10
    assert training_columns.count_measured_samples(made) is None
    assert math.isfinite(summarize_run(made, tmp_path).cells["energy_j_per_sample"])


def test_seeds_and_repeats_have_one_training_key():
    ids = {training_key(training_run(seed=seed, repeat=repeat)) for seed in (0, 1) for repeat in (0, 1)}
    assert len(ids) == 1 and len(next(iter(ids))) == 16


def faster():
    return dataclasses.replace(MACHINE, cpu_model="a faster one")


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"schedule": "cosine"}},
        {"settings": {"warmup_epochs": 1.0}},
        {"settings": {"learning_rate": 0.5}},
        {"settings": {"batch_per_device": 11}},
        {"settings": {"dropout": False}},
        {"target": 0.3},
        {"gpus": 4},
        {"strategy": "horovod_gloo"},
        {"dataset": DatasetSpec("materials", size=65)},
        {"hardware": HardwareSpec("cpu", devices="cpu", gpus_per_node=2, bind="none")},
        {"machine": faster()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_other_difference_changes_the_training_key(changes):
    assert training_key(training_run(**changes)) != training_key(training_run())


def test_strategy_options_change_the_training_key():
    one, other = training_run(), training_run()
    other.spec["strategy"] = dataclasses.asdict(StrategySpec("ddp_gloo", framework="torch", options={"x": 1}))
    assert training_key(one) != training_key(other)


def test_measuring_does_not_change_the_training_key():
    one, other = training_run(), training_run()
    other.spec["measure"]["block_s"] = 9.0
    other.spec["dataset"]["cache"] = "elsewhere"
    other.spec["hardware"]["max_jobs"] = 7
    assert training_key(one) == training_key(other)


def test_a_throughput_run_has_no_training_id():
    assert training_id_cells(record("ddp")) == {"training_id": None, "train_options": None}
    old = record("ddp")
    del old.spec["train"]["stop"]
    assert training_id_cells(old)["training_id"] is None


def test_train_options_are_the_settings_without_a_column():
    def told(**train):
        return train_options_text(training_run(settings=train).spec["train"])

    assert told() is None and train_options_text({}) is None
    assert told(schedule="cosine", warmup_epochs=5.0, dropout=False) == (
        "dropout=false schedule=cosine warmup_epochs=5.0"
    )
    assert told(decay_epochs=[1.0, 2.0], momentum=0.5) is None  # idle without their schedule and optimizer
    assert told(schedule="step", decay_epochs=[1.0, 2.0]) == "schedule=step decay_epochs=[1.0,2.0]"
    assert told(optimizer="momentum", momentum=0.5) == "momentum=0.5"
