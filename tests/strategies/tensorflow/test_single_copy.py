"""Strategies with one copy of weights and statistics for all devices: central storage and replication in the graph."""

import re
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from scalebench.config.compose import compose_config
from scalebench.config.resolve import resolve
from scalebench.core.errors import InputError
from scalebench.strategies import registry
from scalebench.strategies.base import Unsupported
from scalebench.strategies.tensorflow import central_storage, devices
from scalebench.workloads import datasets
from scalebench.workloads.source import Source
from tests.strategies.tensorflow.builders import SMALL_IMAGES, SMALL_PARAMS
from tests.strategies.tensorflow.conftest import DEVICES

WORDS = (*SMALL_IMAGES, "dataset.size=40", "scaling=strong", "gpus=2", "dataset.validation_share=0.1")


class Places(NamedTuple):
    """Where things are: replicas are on CPU:1, which is the first device, and CPU:0."""

    weights: list[str]  # and slots and sums of gradients
    slices: set[str] | None = None  # of a batch, in the graph
    merged: str = ""  # outputs and losses, in the graph


PLACES = {
    "central_storage_device": Places(["CPU:1"]),
    "central_storage_spread train.optimizer=momentum": Places(["CPU:0", "CPU:1"]),
    "multi_gpu_model": Places(["CPU:0"], {"CPU:0", "CPU:1"}, "CPU:0"),
    "multi_gpu_model strategy.options.slice_device=cpu strategy.options.merge_device=first": Places(
        ["CPU:0"], {"CPU:0"}, "CPU:1"
    ),
    "avolkov1_ps_cpu strategy.options.enqueue=true": Places(["CPU:0"], set(), "CPU:0"),
    "central_storage_cpu": Places(["CPU:0"]),
    "central_storage_device train.precision=float16": Places(["CPU:1"]),
    "kuza55_ps_cpu": Places(["CPU:0"], {"CPU:0", "CPU:1"}, "CPU:0"),
    "kuza55_ps_gpu": Places(["CPU:1"], {"CPU:0", "CPU:1"}, "CPU:1"),
    "kuza55_ps_gpu strategy.options.merge_device=cpu": Places(["CPU:1"], {"CPU:0", "CPU:1"}, "CPU:0"),
    "avolkov1_ps_gpu strategy.options.loss=tower": Places(["CPU:1"], {"CPU:1"}, "CPU:1"),
}
FORWARD = {"Conv2D", "MatMul", "FusedBatchNormV3"}
BACKWARD = {"Conv2DBackpropInput", "Conv2DBackpropFilter", "MatMul", "FusedBatchNormGradV3"}
QUICK = ("central_storage_device", "multi_gpu_model")


def short(device):
    """CPU:0 of /job:localhost/replica:0/task:0/device:CPU:0."""
    return device.rpartition("device:")[2].removeprefix("/")


def devices_of(operations, scope, *types):
    """Where the operations of these types are whose names begin with `scope`."""
    return {short(op.device) for op in operations if op.type in types and re.match(scope, op.name)}


def check_placement(which, one, batch):
    """Check that each replica computes on its device, and that weights, sums, slices and outputs are where they
    should be."""
    central, places = which.startswith("central"), PLACES[which]
    operations = one.step_function().get_concrete_function().graph.get_operations()
    for number, device in enumerate(["CPU:1", "CPU:0"]):
        ahead, back = f"tower_{number}/", f"gradients/tower_{number}/"
        if central:
            replica = "small" if number == 0 else "replica_1/small"
            ahead, back = f"{replica}", f"gradient_tape/{replica}"
        for scope, types in ((ahead, FORWARD), (back, BACKWARD)):
            for type in types:
                assert devices_of(operations, scope, type) == {device}, f"{type} under {scope}"
    for variables in (one.model.variables, one.optimizer.variables):
        assert sorted({short(variable.value.device) for variable in variables}) == places.weights
    assert devices_of(operations, "sum_of_gradients", "AddN") == set(places.weights)
    fed_on = {short(tensor.device) for part in batch.parts for tensor in part}
    if central:
        assert fed_on == {"CPU:0", "CPU:1"}
    else:
        assert devices_of(operations, ".*slice", "StridedSlice") == places.slices
        assert len(fed_on) == (1 if places.slices else 2)
        assert devices_of(operations, "merge/", "Pack" if "loss=tower" in which else "ConcatV2") == {places.merged}
    assert not any("_XlaMustCompile" in op.node_def.attr for op in operations)


def round_trip(one):
    """Devices of the sums and of their copies, in the exchange alone; its buffers are on both."""
    one.run_isolated_sync([8, 400])
    _, trip = one._exchange
    operations = trip.run.get_concrete_function(trip.buffers).graph.get_operations()
    sums = [op for op in operations if op.type == "AddN"]
    assert [op.outputs[0].shape.num_elements() for op in sums] == [2, 100]
    copies = [op for op in operations if op.type == "Identity" and op.inputs[0].op in sums]
    assert [{short(buffer.device) for buffer in buffers} for buffers in trip.buffers] == [{"CPU:1"}, {"CPU:0"}]
    return [sorted({short(op.device) for op in ops}) for ops in (sums, copies)]


@pytest.mark.usefixtures("small_network")
@pytest.mark.parametrize(
    "which", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in PLACES]
)
def test_one_update_over_two_devices(made, monkeypatch, tmp_path, which):
    """Placement, statistics and messages of an update of 5 or 6 samples; 5 are cut into 2 and 3, or 3 and 2."""
    monkeypatch.setattr(devices, "configure_devices", lambda kind, place: DEVICES[::-1])
    size = 6 if which.startswith("kuza55") else 5
    one = made(*WORDS, f"dataset.cache={tmp_path}", f"train.global_batch={size}", *f"strategy={which}".split())
    one.setup()
    batch = next(iter(one.feed(datasets.open_sources(one.spec, *one.shard())[0])))
    inputs, moved = np.concatenate([part[0].numpy() for part in batch.parts]), []
    cut = len(batch.parts[0][0]) if len(batch.parts) == 2 else len(inputs) // 2
    for samples in (inputs[:cut], inputs[cut:]):
        alone = one._build_model("float32")
        alone(samples, training=True)
        moved.append([variable.numpy() for variable in alone.moving_statistics])
    one.step(batch)
    check_placement(which, one, batch)
    for variable, *replicas in zip(one.model.moving_statistics, *moved, strict=True):
        tolerance = 0.05 if "float16" in which else 1e-6
        np.testing.assert_allclose(variable.numpy(), np.mean(replicas, 0), rtol=0, atol=tolerance)
        assert np.abs(variable.numpy()).max() > 1e-5
    assert sum(one.message_sizes()) == 4 * SMALL_PARAMS  # of gradients, and neither losses nor statistics
    assert round_trip(one) == [PLACES[which].weights, ["CPU:0", "CPU:1"]]


def strategy(name, *overrides):
    """Made, and not set up, as that takes TensorFlow's devices for the whole process."""
    return registry.load_strategy(name)(resolve(compose_config([f"strategy={name}", "gpus=2", *overrides])), 0)


GPUS = ["/GPU:0", "/GPU:1", "/GPU:2"]
SHAPES = [(2, 3), (5,)]


def gradients(devices):
    """Placeholders, as many of each shape as there are devices."""
    made = []
    for device in devices:
        with tf.device(device):
            made.append([tf.compat.v1.placeholder(tf.float32, shape) for shape in SHAPES])
    return made


def test_nccl_reduces_each_gradient_over_all_devices():
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


def zeros(samples, global_batch, **settings):
    arrays = np.zeros((samples, 200, 3), np.float32), np.zeros((samples, 2), np.float32)
    return Source(*arrays, global_batch=global_batch, seed=0, replica=0, replicas=1, **settings)


def test_a_last_batch_that_does_not_divide_is_refused():
    """240 = 7 * 30 + 30 divides, 241 leaves a batch of 1."""
    kuza55 = strategy("kuza55_ps_cpu", "scaling=strong", "train.global_batch=30")
    with pytest.raises(Unsupported, match="the last batch of an epoch of 1 samples does not divide by 2 devices"):
        kuza55.feed(zeros(241, 30))
    kuza55.devices = ["/CPU:0"]
    kuza55.join()
    for full in (zeros(240, 30), zeros(241, 30, feed="fixed")):
        kuza55.feed(full)


def test_nccl_needs_its_backend():
    with pytest.raises(InputError, match="needs strategy"):
        strategy("avolkov1_ps_gpu", "strategy.options.reduction=nccl", "hardware=cpu")
