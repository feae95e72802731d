"""Sweeps that repeat the studies of batches and accuracy have the studies' training settings."""

from __future__ import annotations

import pytest

from tests.conf.test_sweep_yamls import archive as archive  # for every test here
from tests.conf.test_sweep_yamls import runs, values


def test_thesis_batch_size_sweeps_devices_and_batches() -> None:
    results = runs("thesis_batch_size")
    assert {spec.config.model.name for spec in results} == {"materials_cnn"}
    assert not any(spec.unsupported for spec in results)
    of_one = {spec.batch_per_device for spec in results if spec.gpus == 1}
    assert min(of_one) == 75 and max(of_one) == 5000 and {700, 1000} < of_one
    assert {150, 300} < of_one & {spec.global_batch for spec in results if spec.gpus == 2}  # the same work on one


@pytest.mark.parametrize(
    "rule, k, batch", [("none", 1, 700), ("sqrt", (700 / 75) ** 0.5, 700), ("linear", 700 / 75, 700), ("linear", 1, 75)]
)
def test_thesis_accuracy_scales_the_rate_of_a_batch_of_75(rule: str, k: float, batch: int) -> None:
    chosen = {"train.learning_rate_rule": [rule], "train.batch_per_device": [str(batch)]}
    (spec,) = runs("thesis_accuracy", **chosen)
    assert spec.learning_rate == pytest.approx(4.7331e-4 * k)
    assert (spec.gpus, spec.config.train.stop.seconds, spec.config.train.stop.epochs) == (1, 30, None)
    assert {"75", "700"} == set(values("thesis_accuracy")["train.batch_per_device"])


@pytest.mark.parametrize("gpus", [1, 2, 6])
def test_cifar_scaling_is_what_the_study_ran(gpus: int) -> None:
    """cifar10_cnn_mgpu.py: RMSprop at 1e-4 times the GPUs, and a batch times the GPUs."""
    results = runs("cifar_scaling", gpus=[str(gpus)])
    assert [spec.batch_per_device for spec in results] == [4096, 512, 32]
    for spec in results:
        assert spec.learning_rate == pytest.approx(1e-4 * gpus)
        assert (spec.config.train.optimizer, spec.global_batch) == ("rmsprop", gpus * spec.batch_per_device)
        options = spec.config.strategy.options
        assert (options["variable_device"], options["slice_device"], options["merge_device"]) == ("first", "cpu", "cpu")
