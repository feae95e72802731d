"""Sweeps over batches have the settings that their questions need, on any machine and with any model."""

from __future__ import annotations

import itertools

import pytest

from tests.conf.test_sweep_yamls import archive as archive  # for every test here
from tests.conf.test_sweep_yamls import runs, values


def test_batch_size_goes_from_75_to_5000_on_one_device() -> None:
    results = runs("batch_size")
    assert [spec.batch_per_device for spec in results] == [75, 150, 350, 700, 1000, 2000, 5000]
    assert {(s.config.strategy.name, s.gpus, s.config.model.name) for s in results} == {
        ("bare_torch", 1, "materials_cnn")
    }
    assert not any(spec.unsupported for spec in results)


def test_batch_size_takes_any_model_strategy_and_batches() -> None:
    chosen = {"train.batch_per_device": ["8", "16"], "gpus": ["2"]}
    results = runs("batch_size", "model=cifar10_cnn", "strategy=ddp_gloo", **chosen)
    message = {(s.config.model.name, s.config.dataset.name, s.config.strategy.name) for s in results}
    assert message == {("cifar10_cnn", "cifar10_synthetic", "ddp_gloo")}
    assert [(spec.batch_per_device, spec.global_batch) for spec in results] == [(8, 16), (16, 32)]


@pytest.mark.slow
def test_devices_or_batch_has_both_sides_of_a_pair() -> None:
    for gpus in ([1, 2], [1, 2, 4, 8], [1, 10]):
        results = runs("devices_or_batch", gpus=[str(count) for count in gpus])
        alone = {spec.batch_per_device for spec in results if spec.gpus == 1}
        for count in gpus[1:]:
            assert any(spec.global_batch in alone for spec in results if spec.gpus == count)
    assert list(values("devices_or_batch")) == ["repeat", "train.batch_per_device", "gpus"]


def test_devices_or_batch_scales_both_learning_rates_equally() -> None:
    results = runs("devices_or_batch", "train.learning_rate_rule=linear", "train.base_batch=75")
    rates: dict[int, set[float]] = {}
    for spec in results:
        rates.setdefault(spec.global_batch, set()).add(spec.learning_rate)
    assert all(len(results) == 1 for results in rates.values()) and len(rates) > 5
    pairs = itertools.pairwise(sorted(rates))
    assert all(rates[small].pop() * large / small - min(rates[large]) < 1e-9 for small, large in pairs)
