"""What the terminal tells of one training."""

from __future__ import annotations

from pathlib import Path

from scalebench.report.terminal import panel
from scalebench.report.training_tables import rows
from tests.builders.runs import record
from tests.builders.sweeps import training


def test_length_level_target_and_evaluation() -> None:
    assert rows(training()) == [
        (
            "training",
            "3 epochs, 150 updates, 6.00 s and 700 ms for the first update, which compiles; stopped by target",
        ),
        ("validation", "mse 0.1, 0.05 worse than on samples trained on"),
        ("target", "mse 0.15 after 6.00 s of training, 3 epochs"),
        ("evaluation", "3 points, 750 ms, outside the training's seconds"),
    ]


def test_a_target_that_was_not_reached() -> None:
    told = dict(rows(training(values=[0.9, 0.2])))
    assert told["target"] == "mse 0.15 was not reached" and told["training"].endswith("stopped by epochs")


def test_the_target_may_be_an_accuracy() -> None:
    told = dict(rows(training(values=[0.2, 0.9, 0.8], target=0.9, metric="accuracy")))
    assert told["target"] == "accuracy 0.9 after 4.00 s of training, 2 epochs"
    assert told["validation"] == "accuracy 0.8, 0.4 better than on samples trained on"


def test_nothing_that_was_not_evaluated() -> None:
    made = training(target=None, values=[0.5])
    made.quality.curve[0].train_metrics = {}
    assert dict(rows(made))["validation"] == "mse 0.5" and "target" not in dict(rows(made))
    made.quality.curve[0].metrics = {}
    made.quality.metric_name = None
    assert [name for name, _ in rows(made)] == ["training", "evaluation"]


def test_a_run_of_its_throughput_has_none_of_it() -> None:
    assert rows(record("ddp")) == []


def test_the_details_have_it() -> None:
    (facts, *_) = [part for part in panel(training(), Path("x")) if not isinstance(part, str)]
    assert {"throughput", "training", "target"} <= set(map(str, facts.columns[0].cells))
