"""Central storage: replicas on their devices, one copy of weights and statistics, and sums of gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from typing import Any

import tensorflow as tf

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.strategies.base import NotMeasured, Unsupported
from scalebench.strategies.tensorflow import central_storage
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
def test_the_step_is_applied_on_the_device_of_the_weights(run: tuple[str, Update]) -> None:
    name, update = run
    assert update.facts["weights_on"] == update.facts["slots_on"] == [WEIGHTS_ON[name]]
    assert update.devices("^sum_of_gradients/", "AddN") == {WEIGHTS_ON[name]}
    assert update.devices("", "AssignSubVariableOp") == {WEIGHTS_ON[name]}
    assert update.facts["fed_on"] == ["CPU:0", "CPU:1"]


@pytest.mark.real
def test_moving_statistics_are_the_mean_over_the_replicas(run: tuple[str, Update]) -> None:
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


def test_synchronization_cannot_be_switched_off() -> None:
    with pytest.raises(NotMeasured, match="one copy of the weights"):
        strategy().set_gradient_sync(False)


GPUS = ["/GPU:0", "/GPU:1", "/GPU:2"]
SHAPES = [(2, 3), (5,)]


def gradients(devices: list[str]) -> list[list[tf.Tensor]]:
    """Placeholders, as many of each shape as there are devices."""
    made = []
    for device in devices:
        with tf.device(device):
            made.append([tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES])
    return made


def test_gradients_are_summed_on_the_target_device() -> None:
    with tf.Graph().as_default():
        parts = gradients(GPUS)
        sums = central_storage.sum_gradients(parts, "/CPU:0")
        assert [tuple(total.shape) for total in sums] == SHAPES
        for number, total in enumerate(sums):
            assert (total.op.type, total.op.device) == ("AddN", "/device:CPU:0")
            assert [one.name for one in total.op.inputs] == [of_device[number].name for of_device in parts]


def test_nccl_reduces_each_gradient_over_all_devices() -> None:
    with tf.Graph().as_default() as graph:
        parts = gradients(GPUS)
        sums = central_storage.all_reduce_gradients(parts, GPUS, "/CPU:0")
        reduces = [op for op in graph.get_operations() if op.type == "NcclAllReduce"]
        assert [op.inputs[0].name for op in reduces] == [
            one.name for of_gradient in zip(*parts, strict=True) for one in of_gradient
        ]
        assert [op.device for op in reduces] == [f"/device:GPU:{number}" for number in (0, 1, 2)] * 2
        assert {(op.get_attr("num_devices"), op.get_attr("reduction")) for op in reduces} == {(3, b"sum")}
        names = [op.get_attr("shared_name") for op in reduces]
        assert len(set(names[:3])) == len(set(names[3:])) == 1
        assert names[0] != names[3]
        for number, total in enumerate(sums):
            local = reduces[3 * number : 3 * number + 3]
            assert total.op.device == "/device:CPU:0"
            assert total.op.inputs[0].op == local[0]
            assert set(local[1:]) <= set(total.op.control_inputs)  # or they might never run, and the first one hang


def test_one_device_reduces_nothing() -> None:
    with tf.Graph().as_default() as graph:
        (alone,) = gradients(["/GPU:0"])
        for sums in (
            central_storage.sum_gradients([alone], "/CPU:0"),
            central_storage.all_reduce_gradients([alone], ["/GPU:0"], "/CPU:0"),
        ):
            assert [one.name for one in sums] == [one.name for one in alone]
        assert {op.type for op in graph.get_operations()} == {"Placeholder"}
