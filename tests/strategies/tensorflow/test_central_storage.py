"""CentralStorageStrategy: replicas on their devices, one copy of weights and statistics, on the device asked for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.tensorflow.central_storage import CentralStorage
from tests.strategies.tensorflow.single_update import Update, one_update

SMALL = ("model=resnet20_cifar10", "dataset=cifar10_synthetic", "dataset.size=40", "scaling=strong", "gpus=2")
# Replicas are on CPU:1, which is the first device, and CPU:0.
WEIGHTS_ON = {
    "central_storage_cpu": "CPU:0",
    "central_storage_device": "CPU:1",
    "central_storage_device train.precision=float16": "CPU:1",
}
TYPES = {
    "": {"Conv2D", "MatMul", "FusedBatchNormV3"},
    "gradient_tape/": {"Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "FusedBatchNormGradV3"},
}


QUICK = "central_storage_device"
ALL = [which if which == QUICK else pytest.param(which, marks=pytest.mark.slow) for which in WEIGHTS_ON]


@pytest.fixture(scope="module", params=ALL)
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Update]:
    """(which, its one update) of 5 samples, 3 of them on the first device."""
    cache = tmp_path_factory.getbasetemp() / "central_storage_data"
    words = (*SMALL, "train.global_batch=5", f"dataset.cache={cache}", "dataset.validation_share=0.1")
    return request.param, one_update(*words, *f"strategy={request.param}".split())


def strategy(*overrides: str) -> CentralStorage:
    """Made, and not set up, as that takes TensorFlow's devices for the whole process."""
    words = ["strategy=central_storage_device", "gpus=2", *overrides]
    return CentralStorage(resolve(compose_config(words)), 0)


@pytest.mark.slow
@pytest.mark.real
def test_each_replica_is_on_its_device_forward_and_backward(run: tuple[str, Update]) -> None:
    _, update = run
    for scope, types in TYPES.items():
        for type in types:
            assert update.devices(f"^{scope}resnet20", type) == {"CPU:1"}
            assert update.devices(f"^{scope}replica_1/resnet20", type) == {"CPU:0"}


@pytest.mark.slow
@pytest.mark.real
def test_the_update_is_made_where_the_weights_are(run: tuple[str, Update]) -> None:
    name, update = run
    assert update.facts["weights_on"] == update.facts["slots_on"] == [WEIGHTS_ON[name]]
    assert update.devices("^sum_of_gradients/", "AddN") == {WEIGHTS_ON[name]}
    assert update.devices("", "AssignSubVariableOp") == {WEIGHTS_ON[name]}
    assert update.facts["fed_on"] == ["CPU:0", "CPU:1"]


@pytest.mark.real
def test_statistics_are_the_mean_over_the_replicas(run: tuple[str, Update]) -> None:
    name, update = run
    assert max(update.facts["statistics_off_by"]) < (0.05 if "float16" in name else 1e-6)
    assert min(update.facts["statistics_moved_by"]) > 1e-5


@pytest.mark.real
def test_messages_are_the_gradients(run: tuple[str, Update]) -> None:
    name, update = run
    assert sum(update.facts["message_bytes"]) == 4 * 269_787  # and neither losses nor statistics
    assert update.facts["round_trip"] == [[WEIGHTS_ON[name]], ["CPU:0", "CPU:1"]]


def test_the_compiler_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"central_storage_device .*train.compile=true"):
        strategy("train.compile=true").setup()


def test_the_exchange_stays() -> None:
    with pytest.raises(NotMeasured, match="one copy of the weights"):
        strategy().set_gradient_sync(False)
