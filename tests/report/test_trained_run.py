"""What the terminal tells of one training."""

from __future__ import annotations

from pathlib import Path

from scalebench.report.terminal import list_training_facts, make_details
from tests.helpers import record
from tests.trainings import training


def test_length_level_target_and_evaluation() -> None:
    assert list_training_facts(training()) == [
        (
            "training",
            "3 epochs, 150 steps, 6.00 s and 700 ms for the first step, which compiles; stopped by target",
        ),
        ("validation", "mse 0.1, 0.05 worse than on training samples"),
        ("target", "mse 0.15 after 6.00 s of training, 3 epochs"),
        ("evaluation", "3 points, 750 ms, outside the training's seconds"),
    ]


def test_a_target_that_was_not_reached() -> None:
    told = dict(list_training_facts(training(values=[0.9, 0.2])))
    assert told["target"] == "mse 0.15 was not reached" and told["training"].endswith("stopped by epochs")


def test_the_target_may_be_an_accuracy() -> None:
    told = dict(list_training_facts(training(values=[0.2, 0.9, 0.8], target=0.9, metric="accuracy")))
    assert told["target"] == "accuracy 0.9 after 4.00 s of training, 2 epochs"
    assert told["validation"] == "accuracy 0.8, 0.4 better than on training samples"


def test_nothing_that_was_not_evaluated() -> None:
    made = training(target=None, values=[0.5])
    made.quality.curve[0].train_metrics = {}
    assert dict(list_training_facts(made))["validation"] == "mse 0.5" and "target" not in dict(
        list_training_facts(made)
    )
    made.quality.curve[0].metrics = {}
    made.quality.metric_name = None
    assert [name for name, _ in list_training_facts(made)] == ["training", "evaluation"]


def test_a_run_of_its_throughput_has_none_of_it() -> None:
    assert list_training_facts(record("ddp")) == []


def test_the_details_have_it() -> None:
    (facts, *_) = [part for part in make_details(training(), Path("x")) if not isinstance(part, str)]
    assert {"throughput", "training", "target"} <= set(map(str, facts.columns[0].cells))
