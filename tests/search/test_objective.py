"""What is sought, and which way."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.columns import COLUMNS
from scalebench.search import objective
from scalebench.spec import DatasetSpec, InputError, MeasureSpec, TrainSpec
from tests.helpers import null_config


def test_each_objective_is_a_column() -> None:
    assert set(objective.OBJECTIVES) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("name", "metric", "more", "label"),
    [
        ("metric", "mse", False, "mse"),
        ("metric", "accuracy", True, "accuracy"),
        ("best_metric", "cross_entropy", False, "best cross entropy"),
        ("train_metric", "accuracy", True, "train accuracy"),
        ("time_to_target_s", "accuracy", False, "time_to_target_s"),
        ("throughput_samples_per_s", "mse", True, "throughput_samples_per_s"),
    ],
)
def test_which_way_is_better(name: str, metric: str, more: bool, label: str) -> None:
    assert objective.more_is_better(name, metric) is more
    assert objective.label(name, metric) == label


def test_each_objective_wants_what_it_is_made_of() -> None:
    config = null_config()
    config.train.stop.steps = 5
    for name in ("metric", "best_metric", "train_metric", "throughput_samples_per_s", "epoch_s"):
        objective.check(name, config)
    for name, change, line in (
        ("time_to_target_s", {}, "is the way to a target: say train.stop.target"),
        ("best_metric", {"train": TrainSpec()}, "is of a training to a stop: say train.stop.seconds or another stop"),
        ("metric", {"measure": MeasureSpec(evaluate=False)}, "measure.evaluate=false"),
        ("metric", {"dataset": DatasetSpec(validation_share=0.0)}, "dataset.validation_share=0 leaves none"),
    ):
        with pytest.raises(InputError, match=f"hydra.sweeper.objective={name} .*{line}"):
            objective.check(name, dataclasses.replace(config, **change))
