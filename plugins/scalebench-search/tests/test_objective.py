"""The settings of a search, and its objective."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf
from scalebench_search import objective
from scalebench_search.objective import SearchSettings, read_settings

from scalebench.analysis.columns import FRAME_COLUMNS
from scalebench.core import config_files
from scalebench.core.errors import InputError
from scalebench.core.spec import Config, DatasetSpec, MeasureSpec, TrainSpec


def test_the_yaml_has_the_settings_and_their_defaults() -> None:
    tree = config_files.read_yaml(config_files.list_options("hydra/sweeper")["search"])
    assert tree.pop("_target_") == "hydra_plugins.scalebench_search.SearchSweeper"
    assert tree == dataclasses.asdict(SearchSettings())
    assert read_settings(tree) == SearchSettings(params={})
    assert read_settings({"params": OmegaConf.create({"gpus": "1,2"})}).params == {"gpus": "1,2"}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"objective": "metrik"}, "no objective of a search 'metrik'; did you mean 'metric'?"),
        ({"sampler": "tpa"}, "no sampler of a search 'tpa'; did you mean 'tpe'?"),
        ({"n_trials": 0}, "hydra.sweeper.n_trials=0 should be at least 1"),
        ({"startup_trials": 0}, "hydra.sweeper.startup_trials=0 should be at least 1"),
        ({"seed": -1}, "hydra.sweeper.seed=-1 should be at least 0"),
        ({"n_trials": "many"}, "hydra.sweeper.n_trials=many: Value 'many' of type 'str' could not be converted to Int"),
    ],
)
def test_wrong_settings(values: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(values)
    assert str(caught.value).startswith(line)


def test_each_objective_is_a_column() -> None:
    assert set(objective.OBJECTIVES) <= set(FRAME_COLUMNS)


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
    assert objective.objective_label(name, metric) == label


def test_requirements_of_each_objective() -> None:
    config = Config()
    config.train.stop.steps = 5
    for name in ("metric", "best_metric", "train_metric", "throughput_samples_per_s", "epoch_s"):
        objective.check_objective(name, config)
    for name, change, line in (
        ("time_to_target_s", {}, "needs a target: set train.stop.target"),
        ("best_metric", {"train": TrainSpec()}, "needs a training to a stop: set train.stop.seconds or another stop"),
        ("metric", {"measure": MeasureSpec(evaluate=False)}, "measure.evaluate=false"),
        ("metric", {"dataset": DatasetSpec(validation_share=0.0)}, "dataset.validation_share=0 leaves none"),
    ):
        with pytest.raises(InputError, match=f"hydra.sweeper.objective={name} .*{line}"):
            objective.check_objective(name, dataclasses.replace(config, **change))
