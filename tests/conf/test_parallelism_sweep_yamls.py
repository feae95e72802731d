"""The sweep over kinds of parallelism has the settings that its question needs, on any machine."""

from __future__ import annotations

import itertools

import pytest

from scalebench.workloads import networks
from scalebench.workloads.partition import max_stages
from tests.conf.test_sweep_yamls import archive as archive  # for every test here
from tests.conf.test_sweep_yamls import runs, values


def test_data_or_model_tries_each_kind_on_the_same_work() -> None:
    results = runs("data_or_model", model=["materials_cnn"])
    message = {(spec.config.strategy.name, spec.global_batch, spec.gpus, spec.config.scaling) for spec in results}
    strategies, batches = (values("data_or_model")[key] for key in ("strategy", "train.global_batch"))
    assert message == {(name, int(batch), 2, "strong") for name, batch in itertools.product(strategies, batches)}
    assert {spec.config.baseline for spec in results} == {"bare"} and not any(spec.unsupported for spec in results)
    assert all(spec.config.measure.probes for spec in results)  # of which the predictions are made


@pytest.mark.parametrize("model", ["mlp", "resnet20_cifar10", "materials_cnn"])
def test_its_models_can_be_cut(model: str) -> None:
    assert model in values("data_or_model")["model"]
    (spec, *_) = runs("data_or_model", model=[model], strategy=["ddp_gloo"])
    assert max_stages(networks.build_network(spec.config.model)) >= 2
