"""The columns of a training, of runs with known curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scalebench.analysis import training_columns
from scalebench.analysis.rows import summarize_run
from scalebench.core.result import Quality
from tests.builders.runs import rank, record
from tests.builders.sweeps import EPOCH_SAMPLES, curve, training


def test_a_training_tells_where_it_ended() -> None:
    found = training_columns.training_cells(
        training(values=(0.4, 0.1, 0.2), target=0.15, settings={"weight_decay": 0.5})
    )
    told = {
        key: found[key] for key in ("stopped_by", "target", "trained_steps", "trained_epochs", "trained_s", "points")
    }
    assert told == {
        "stopped_by": "target", "target": 0.15, "trained_steps": 150, "trained_epochs": 3.0, "trained_s": 6.0,
        "points": 3,
    }  # fmt: skip
    assert (found["optimizer"], found["weight_decay"], found["accumulate"], found["base_batch"]) == (
        "adam",
        0.5,
        1,
        None,
    )
    assert (found["learning_rate"], found["first_step_s"], found["evaluate_s"]) == (1e-3, 0.7, 0.75)
    assert (found["train_metric"], found["generalisation_gap"]) == (0.1, pytest.approx(0.1))
    assert found["best_metric"] == 0.1


def test_an_accuracy_is_worse_where_it_is_less() -> None:
    found = training_columns.training_cells(training(values=(0.5, 0.8, 0.6), metric="accuracy", target=None))
    assert found["best_metric"] == 0.8 and found["train_metric"] == 0.3
    assert found["generalisation_gap"] == pytest.approx(-0.3), "half as good on samples that it was trained on"


def test_a_run_that_measured_its_throughput_has_none_of_it() -> None:
    found = training_columns.training_cells(record())
    null = ("stopped_by", "target", "trained_s", "trained_steps", "train_metric", "generalisation_gap", "best_metric")
    assert {found[name] for name in (*null, "points", "first_step_s", "max_batch_per_device")} == {None}
    assert found["learning_rate"] == 1e-3, "as asked"
    assert (
        training_columns.epoch_s_of_training(record()) is None
        and training_columns.count_measured_samples(record()) is None
    )


def test_a_record_of_before_there_were_trainings() -> None:
    old = record()
    old.spec = {"strategy": {"name": "ddp"}}
    assert {value for key, value in training_columns.training_cells(old).items() if key != "max_batch_per_device"} == {
        None
    }


def test_points_without_a_metric() -> None:
    made = training(values=(0.4, 0.2))
    for point in made.quality.curve:
        point.metrics, point.train_metrics = {}, {}
    found = training_columns.training_cells(made)
    assert (found["train_metric"], found["generalisation_gap"], found["best_metric"]) == (None, None, None)


@pytest.mark.parametrize(
    ("mine", "theirs", "speedup"), [(2.0, 6.0, 3.0), (None, 6.0, None), (2.0, None, None), (0.0, 6.0, None)]
)
def test_how_many_times_sooner_at_the_target(
    mine: float | None, theirs: float | None, speedup: float | None, tmp_path: Path
) -> None:
    runs = []
    for time_s in (mine, theirs):
        made = training()
        made.quality.time_to_target_s = time_s
        runs.append(summarize_run(made, tmp_path))
    assert training_columns.target_speedup(*runs) == speedup
    assert training_columns.target_speedup(runs[0], None) is None


def test_the_epoch_of_a_training_that_was_over_within_warm_up(tmp_path: Path) -> None:
    """Two epochs of 1000 samples in 4 s, of which the first update, of 20, does not count."""
    early = training(values=(0.4, 0.2))
    early.ranks = [rank(train_samples=EPOCH_SAMPLES, steps_per_epoch=50)]
    expected = 4.0 / (1980 / 1000)
    assert summarize_run(early, tmp_path).cells["epoch_s"] == pytest.approx(expected)
    assert summarize_run(training(values=(0.4, 0.2)), tmp_path).cells["epoch_s"] != pytest.approx(expected)
    assert training_columns.epoch_s_of_training(training(values=(0.4,))) is None, "less than an epoch is timed"
    early.status = "failed"
    assert training_columns.epoch_s_of_training(early) is None


def test_energy_is_for_all_samples_of_the_measured_phase(tmp_path: Path) -> None:
    """Three epochs less 16 updates of warm-up, whatever of that is in whole blocks."""
    made = training(values=(0.4, 0.2, 0.1))
    assert made.ranks[0].warmup_block_steps == 1 and len(made.ranks[0].warmup_block_s) == 16
    assert training_columns.count_measured_samples(made) == 3000 - 16 * 20
    cells = summarize_run(made, tmp_path).cells
    assert made.monitor.energy_j is not None
    assert cells["energy_j_per_sample"] == pytest.approx(made.monitor.energy_j / (3000 - 16 * 20))
    made.quality = Quality(curve=curve((0.4,))[:1])
    made.quality.curve[0].samples = 10
    assert training_columns.count_measured_samples(made) is None
    assert math.isfinite(summarize_run(made, tmp_path).cells["energy_j_per_sample"])
