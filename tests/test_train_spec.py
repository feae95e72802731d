"""The keys under `train`: the rules of the learning rate, and what of them a run is told apart by."""

from __future__ import annotations

import dataclasses

import pytest

from scalebench.spec import RULES, StopSpec, TrainSpec, goes_to_stop, normalize_train_options, peak_rate

LATER = [field.name for field in dataclasses.fields(TrainSpec)][8:]


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 8.0), ("sqrt", 8**0.5)])
def test_rules_scale_by_the_batch(rule: str, factor: float) -> None:
    train = TrainSpec(learning_rate=0.1, learning_rate_rule=rule, base_batch=75)
    assert peak_rate(train, 600) == pytest.approx(0.1 * factor)
    assert peak_rate(train, 75) == pytest.approx(0.1)


@pytest.mark.parametrize("rule", RULES)
def test_without_a_base_batch_every_rule_leaves_it(rule: str) -> None:
    """training_plan refuses it; whatever looks at such settings nevertheless gets a number."""
    assert peak_rate(TrainSpec(learning_rate=0.1, learning_rate_rule=rule), 600) == 0.1


def test_any_of_the_four_is_a_stop() -> None:
    assert not goes_to_stop(StopSpec())
    for field in dataclasses.fields(StopSpec):
        assert goes_to_stop(StopSpec(**{field.name: 1}))


def test_what_nobody_asked_for_is_left_out() -> None:
    tree = dataclasses.asdict(TrainSpec(evaluate_epochs=0.5, evaluate_s=3.0))
    assert LATER[0] == "momentum" and set(normalize_train_options(tree)) == set(tree) - set(LATER)
    assert normalize_train_options(tree | {"accumulate": 2})["accumulate"] == 2
    assert tree == dataclasses.asdict(TrainSpec(evaluate_epochs=0.5, evaluate_s=3.0)), "a copy"


def test_points_are_of_trainings_to_a_stop() -> None:
    kept = normalize_train_options(dataclasses.asdict(TrainSpec(evaluate_epochs=0.5, stop=StopSpec(epochs=2))))
    assert kept["evaluate_epochs"] == 0.5 and kept["stop"]["epochs"] == 2 and "evaluate_s" not in kept
    assert "evaluate_epochs" not in normalize_train_options(dataclasses.asdict(TrainSpec(stop=StopSpec(epochs=2)))), (
        "as it comes"
    )


def test_records_of_before_are_as_they_were() -> None:
    old = {"optimizer": "sgd", "learning_rate": 0.1}
    assert normalize_train_options(old) == old
