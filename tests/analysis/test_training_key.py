"""Which runs count as seeds of one training: never two that were trained in another way, or elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scalebench.analysis.training_columns import recipe, training_id, training_id_cells
from scalebench.core.machine.machine import Machine
from scalebench.core.spec import DatasetSpec, HardwareSpec, StrategySpec
from tests.builders.runs import MACHINE, record
from tests.builders.sweeps import training


def test_seeds_and_repeats_are_one_training() -> None:
    ids = {training_id(training(seed=seed, repeat=repeat)) for seed in (0, 1) for repeat in (0, 1)}
    assert len(ids) == 1 and len(next(iter(ids))) == 16


def faster() -> Machine:
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
def test_nothing_else_is(changes: dict[str, Any]) -> None:
    assert training_id(training(**changes)) != training_id(training())


def test_options_of_the_strategy_make_another() -> None:
    one, other = training(), training()
    other.spec["strategy"] = dataclasses.asdict(StrategySpec("ddp_gloo", framework="torch", options={"x": 1}))
    assert training_id(one) != training_id(other)


def test_how_it_was_measured_does_not() -> None:
    one, other = training(), training()
    other.spec["measure"]["block_s"] = 9.0
    other.spec["dataset"]["cache"] = "elsewhere"
    other.spec["hardware"]["max_jobs"] = 7
    assert training_id(one) == training_id(other)


def test_a_run_of_its_throughput_has_none() -> None:
    assert training_id_cells(record("ddp")) == {"training_id": None, "train_options": None}
    old = record("ddp")
    del old.spec["train"]["stop"]
    assert training_id_cells(old)["training_id"] is None


def test_the_recipe_tells_what_no_column_has() -> None:
    def told(**train: Any) -> str | None:
        return recipe(training(settings=train).spec["train"])

    assert told() is None and recipe({}) is None
    assert told(schedule="cosine", warmup_epochs=5.0, dropout=False) == (
        "dropout=false schedule=cosine warmup_epochs=5.0"
    )
    assert told(decay_epochs=[1.0, 2.0], momentum=0.5) is None  # idle without their schedule and optimizer
    assert told(schedule="step", decay_epochs=[1.0, 2.0]) == "schedule=step decay_epochs=[1.0,2.0]"
    assert told(optimizer="momentum", momentum=0.5) == "momentum=0.5"
