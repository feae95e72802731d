"""The settings of a search and its objective, Hydra's syntax for what is searched, and the overrides that the values
become."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scalebench_search import objective
from scalebench_search.objective import SearchSettings, read_settings
from searches import make_space

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


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("interval(1e-5,1e-2)", FloatDistribution(1e-5, 1e-2)),
        ("tag(log,interval(1e-5,1e-2))", FloatDistribution(1e-5, 1e-2, log=True)),
        ("interval(1,10)", FloatDistribution(1, 10)),
        ("int(interval(1,10))", IntDistribution(1, 10)),
        ("int(tag(log,interval(8,512)))", IntDistribution(8, 512, log=True)),
        ("adam,sgd", CategoricalDistribution(["adam", "sgd"])),
        ("choice(adam,sgd,adam)", CategoricalDistribution(["adam", "sgd"])),
        ("[1,2],[3]", CategoricalDistribution(["[1,2]", "[3]"])),
        ("null,1", CategoricalDistribution(["null", "1"])),
    ],
)
def test_each_of_hydras_forms(text: str, distribution: object) -> None:
    results = make_space(f"a={text}")
    assert (results.searched, results.texts, results.fixed) == ({"a": distribution}, {"a": text}, [])


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("range(1,8,2)", [1, 3, 5, 7]), ("range(4)", [0, 1, 2, 3]), ("range(3,0,-1)", [1, 2, 3]),
        ("range(0.1,0.4,0.1)", [0.1, 0.2, 0.3]),
    ],
)  # fmt: skip
def test_a_range_has_its_steps_without_its_end(text: str, steps: list[float]) -> None:
    results = make_space(f"a={text}")
    assert results.searched == {"a": IntDistribution(0, len(steps) - 1)}
    assert [results.overrides({"a": number}) for number in range(len(steps))] == [[f"a={step!r}"] for step in steps]


def test_overrides_of_a_trial_survive_hydra_s_parser() -> None:
    results = make_space("a=interval(1e-9,1)", "b=adam,sgd", "+c.d=range(0.1,0.5,0.1)", "e=int(interval(1,9))")
    values = {"a": 1.25e-7, "b": "sgd", "+c.d": 2, "e": 3}
    assert results.overrides(values) == ["a=1.25e-07", "b=sgd", "+c.d=0.3", "e=3"]


def test_the_last_word_for_a_key_counts() -> None:
    """What a file searches, the command line can fix, and the other way round."""
    results = make_space("a=interval(0,1)", "b=1", "c=x,y", "a=0.5", "b=int(interval(1,2))", "~d")
    assert list(results.searched) == ["b", "c"]
    assert results.fixed == ["a=0.5", "~d"]


def test_corners_have_every_choice_and_both_ends() -> None:
    results = list(make_space("a=interval(0,1)", "b=x,y,z").corners())
    assert results == [{"a": 0, "b": "x"}, {"a": 1, "b": "x"}, {"a": 0, "b": "y"}, {"a": 0, "b": "z"}]


@pytest.mark.parametrize("word", ["repeat=0,1", "sweep.max_minutes=1,2", "baseline=none,auto", "resume=true,false"])
def test_settings_that_cannot_be_searched(word: str) -> None:
    with pytest.raises(InputError, match="cannot be searched"):
        make_space(word)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("a=interval(1e-2,1e-5)", "a=interval(0.01, 1e-05) should begin below its end"),
        ("a=tag(log,interval(0,1))", "a=tag(log, interval(0, 1)) should begin above 0, which has no logarithm"),
        ("a=tag(lgo,interval(0,1))", "a: a search knows the tag log, and not 'lgo'"),
        ("a=tag(log,range(1,3))", "a: tag(log, ...) is for an interval, as in 'train.learning_rate="),
        ("a=range(3,1)", "a=range(3, 1, 1) holds no value"),
        ("a=range(1.5,1,0.1)", "a=range(1.5, 1, 0.1) holds no value"),
        ("a=range(1,3,0)", "a step that is not 0"),
        ("a=1", "there is nothing to search"),
        ("seed=0,1", "seed cannot be searched: the luckiest of its values would win; give one value"),
    ],
)
def test_invalid_ranges_are_refused(word: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        make_space(word)
    assert line in str(caught.value)
