"""What the fingerprint of a run is made of."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from scalebench.core.config_fingerprint import ADDED, fingerprint
from scalebench.core.spec import Config, StrategySpec, TrainSpec

OF_THE_PROGRAM = {
    "repeat",
    "resume",
    "baseline",
    "dry_run",
    "debug",
    "dataset.cache",
    "sweep.max_minutes",
    "sweep.report",
} | {f"measure.{name}" for name in ("repeats", "order", "cool_down_s")}
QUEUEING = {"hardware.max_jobs"} | {
    f"hardware.slurm.{name}" for name in ("account", "qos", "reservation", "time_minutes", "bin")
}
LATER = ("layout", "interface", "stage", "max_jobs")  # keys that older records do not have
OF_CURVES = {
    "train.evaluate_epochs",
    "train.evaluate_s",
    "train.evaluate_samples",
}  # of trainings to a stop: no other has points
LATER_TO_TRAIN = [f.name for f in dataclasses.fields(TrainSpec)][
    [f.name for f in dataclasses.fields(TrainSpec)].index("momentum") :
]
DECIDED = {"gpus"}  # given to fingerprint() as a number of its own, since null means a default
OF_THE_CONTRACT = {"strategy.approximate", "strategy.tolerance", "strategy.choices", "strategy.at_least"}


def leaves(record: Any, prefix: str = "") -> Iterator[str]:
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}"


def changed(config: Config, key: str) -> Config:
    """A copy with another value under `key`."""
    made = copy.deepcopy(config)
    *path, name = key.split(".")
    owner: Any = made
    for part in path:
        owner = getattr(owner, part)
    value = getattr(owner, name)
    if isinstance(value, bool):
        other: Any = not value
    elif isinstance(value, (int, float)):
        other = value + 1
    elif isinstance(value, list):
        other = [*value, 7]
    elif isinstance(value, dict):
        other = {**value, "more": 1}
    else:
        other = f"{value}x"
    setattr(owner, name, other)
    return made


LEAVES = sorted(leaves(Config()))


def test_the_fingerprint_is_16_hex_digits_and_stands_still() -> None:
    assert fingerprint(Config(), 2, "cpu") == fingerprint(Config(), 2, "cpu")
    assert len(fingerprint(Config(), 2, "cpu")) == 16
    int(fingerprint(Config(), 2, "cpu"), 16)


@pytest.mark.parametrize("key", sorted(OF_THE_PROGRAM | QUEUEING | DECIDED | OF_CURVES | OF_THE_CONTRACT))
def test_switches_of_the_program_leave_the_fingerprint_alone(key: str) -> None:
    assert key in LEAVES
    assert fingerprint(changed(Config(), key), 2, "cpu") == fingerprint(Config(), 2, "cpu")


@pytest.mark.parametrize("key", sorted(set(LEAVES) - OF_THE_PROGRAM - QUEUEING - DECIDED - OF_CURVES - OF_THE_CONTRACT))
def test_everything_else_changes_the_fingerprint(key: str) -> None:
    assert fingerprint(changed(Config(), key), 2, "cpu") != fingerprint(Config(), 2, "cpu")


def test_keys_that_came_later_leave_the_fingerprint_of_older_runs_alone() -> None:
    """They are in no such tree, and there `slurm` is empty where there is no scheduler."""
    tree = dataclasses.asdict(Config())
    for key in ("repeat", "resume", "baseline", "dry_run", "debug", "sweep"):
        del tree[key]
    for group, keys in {"dataset": ["cache"], "measure": ["repeats", "order", "cool_down_s"]}.items():
        for key in keys:
            del tree[group][key]
    for key in {*LATER} - {key for part, key, _ in ADDED if part == "hardware"}:
        del tree["hardware"][key]
    for key in LATER_TO_TRAIN:
        del tree["train"][key]
    for part, key, _ in ADDED:
        del tree[part][key]
    for key in ("approximate", "tolerance", "choices", "at_least"):
        del tree["strategy"][key]
    tree["hardware"]["slurm"] = {}
    text = json.dumps(tree | {"gpus": 2, "device": "cpu"}, sort_keys=True, separators=(",", ":"))
    assert fingerprint(Config(), 2, "cpu") == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_options_that_came_later_leave_the_fingerprint_of_older_runs_alone() -> None:
    def marked(**options: Any) -> str:
        return fingerprint(Config(strategy=StrategySpec("ddp", options=options)), 2, "cpu")

    assert marked(bucket_cap_mb=1.0) == marked(bucket_cap_mb=1.0, overlap=True)
    assert len({marked(), marked(bucket_cap_mb=1.0), marked(overlap=False), marked(overlap=None)}) == 4


def test_fingerprints_of_before_there_was_any_training() -> None:
    """As they were computed then."""
    config = Config(gpus=2)
    assert fingerprint(config, 2, "cpu") == "535b3b327f967737"
    config.train.optimizer, config.train.batch_per_device, config.train.learning_rate = "sgd", 75, 0.01
    config.measure.min_s = 1.0
    assert fingerprint(config, 2, "cuda") == "3b8dd27c5196b4f6"


@pytest.mark.parametrize("key", sorted(OF_CURVES))
def test_where_the_points_of_a_curve_are_belongs_to_a_training(key: str) -> None:
    config = Config()
    config.train.stop.steps = 10
    assert fingerprint(changed(config, key), 2, "cpu") != fingerprint(config, 2, "cpu")


def test_devices_count_for_the_fingerprint() -> None:
    found = {fingerprint(Config(), gpus, device) for gpus in (1, 2) for device in ("cpu", "cuda")}
    assert len(found) == 4


def test_the_fingerprint_does_not_change_the_config() -> None:
    config = Config()
    fingerprint(config, 2, "cpu")
    assert config == Config()
