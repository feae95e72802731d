"""Partial steps, the time of each device, and copies of batches; and steps that leave out parts of the synchronization
of one copy of the weights: what they send, compute and change."""

import dataclasses
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.base import NotMeasured
from scalebench.strategies.tensorflow import batches, profiling
from scalebench.workloads.source import Batch
from tests.builders.runs import simulated_spec
from tests.strategies.tensorflow.builders import BYTES, SMALL_IMAGES, apart, on, replica_weights
from tests.strategies.tensorflow.conftest import DEVICES

ONE_COPY = ["central_storage_cpu", "multi_gpu_model"]
STRATEGIES = {"bare_tensorflow": 1, "mirrored": 2, **dict.fromkeys(ONE_COPY, 2)}
CONVOLUTIONS = 2  # of the network


def made(strategy, name, *words):
    return strategy(f"strategy={name}", f"gpus={STRATEGIES[name]}", *words)


def ran(action):
    """Calls of each type of operation."""
    with profiling.record_lines() as lines:
        action()
    operations = [event.operation.rpartition(":")[2] for line in lines for event in line.events]
    return Counter(name.removeprefix("_MklNative") for name in operations if name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_partial_step_runs_only_its_part(strategy, source, name):
    """On all devices; nothing is exchanged and no weight changes before the optimizer."""
    one = made(strategy, name)
    first, other = islice(one.feed(source(first=1, global_batch=27)), 2)
    before = replica_weights(one)
    for until, back in (("forward", 0), ("backward", 1)):
        one.partial_step(other, until)
        calls = ran(lambda until=until: one.partial_step(first, until))
        assert calls["Conv2D"] + calls["FusedConv2D"] == CONVOLUTIONS * STRATEGIES[name]
        assert calls["Conv2DBackpropFilter"] == CONVOLUTIONS * STRATEGIES[name] * back
        assert calls["CollectiveReduceV2"] == calls["AddN"] == calls["AssignSubVariableOp"] == 0
    counts = [function.experimental_get_tracing_count() for function in one.compiled.values()]
    assert counts == [1, 1]
    for now, then in zip(replica_weights(one), before, strict=True):
        np.testing.assert_array_equal(now, then)
    one.keep_batch(first)
    if name not in ONE_COPY:
        one.set_gradient_sync(False)
    one.partial_step(first, "optimizer")
    assert any(np.abs(now - then).max() > 0 for now, then in zip(replica_weights(one), before, strict=True))


@pytest.mark.parametrize("name", ["mirrored", *ONE_COPY])
def test_the_time_of_a_device_depends_on_all_of_its_gradients_only(strategy, source, name):
    """And the whole of that device's work on the time of the start."""
    one = made(strategy, name)
    one.local_step(next(iter(one.feed(source()))))
    operations = one.compiled["local"].get_concrete_function().graph.get_operations()
    start, *ends = [operation for operation in operations if operation.type == "Timestamp"]
    work = [{op for op in before(end) if op.type == "Conv2DBackpropFilter"} for end in ends]
    assert [{op.device.rpartition("/device:")[2] for op in of_device} for of_device in work] == [{"CPU:0"}, {"CPU:1"}]
    assert [len(of_device) for of_device in work] == [CONVOLUTIONS, CONVOLUTIONS]
    assert all(start in before(operation) for of_device in work for operation in of_device)


def before(operation):
    """All operations that it waits for."""
    found = set()
    left = [operation]
    while left:
        one = left.pop()
        new = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - found
        found |= new
        left += new
    return found


def test_copies_and_local_steps_that_are_not_measured(strategy, monkeypatch):
    with pytest.raises(NotMeasured, match=r"one device.* without the exchange"):
        made(strategy, "bare_tensorflow").local_step(None)
    one = strategy("strategy=multi_gpu_model", "gpus=2")
    as_on_gpus(one, monkeypatch)
    with pytest.raises(NotMeasured, match="the graph of multi_gpu_model itself"):
        one.copy_batch(None)


@pytest.mark.usefixtures("small_network")
def test_partial_steps_are_compiled_by_xla(strategy, pictures):
    """As the update is. That XLA then compiles them is seen in the slow test of a whole update."""
    one = made(strategy, "bare_tensorflow", *SMALL_IMAGES, "train.compile=true")
    batch = next(iter(one.feed(pictures())))
    for backward in (False, True):
        compute = tf.function(lambda *parts, backward=backward: one.compute_per_device(*parts, backward)[0][0])
        operations = compute.get_concrete_function(batch.parts, batch.global_samples).graph.get_operations()
        assert len([op for op in operations if "_XlaMustCompile" in op.node_def.attr]) == 1
        assert not [op for op in operations if op.type.startswith("Conv2D")]


def test_under_fit_a_batch_is_copied_to_the_devices_once(strategy, source, monkeypatch):
    one = made(strategy, "mirrored", "strategy.options.loop=fit")
    placed, place = [], batches.place_batch
    monkeypatch.setattr(batches, "place_batch", lambda *words: placed.append(words) or place(*words))
    batch = next(iter(one.feed(source())))
    assert isinstance(batch, Batch)
    one.set_gradient_sync(False)
    for until in ("backward", "optimizer"):
        one.partial_step(batch, until)
    assert apart(one) > 0
    assert len(one.local_step(batch)) == 2
    assert placed == [(batch, DEVICES)]


def as_on_gpus(one, monkeypatch):
    """The same devices, taken for GPUs."""
    monkeypatch.setattr(one, "spec", dataclasses.replace(one.spec, device="cuda"))


@pytest.mark.parametrize("loop", ["custom", "fit"])
def test_a_batch_copy_sends_each_device_its_part(strategy, source, monkeypatch, loop):
    one = strategy("strategy=mirrored", "gpus=2", f"strategy.options.loop={loop}")
    batch = next(iter(one.feed(source(first=1, global_batch=27))))
    with pytest.raises(NotMeasured, match="nothing is copied"):
        one.copy_batch(batch)
    as_on_gpus(one, monkeypatch)
    sent = []
    parts = one.to_step_batch(batch).parts
    monkeypatch.setattr(batches, "copy_to_device", lambda arrays, device: sent.append((arrays, device)))
    one.copy_batch(batch)
    one.copy_batch(batch)
    assert [device for _, device in sent] == [*DEVICES, *DEVICES]
    for (arrays, _), part in zip(sent, [*parts, *parts], strict=True):
        for array, tensor in zip(arrays, part, strict=True):
            assert isinstance(array, np.ndarray) and array.shape == tensor.shape
            np.testing.assert_array_equal(array, tensor)


TOWERS = "avolkov1_ps_gpu strategy.options.loss=tower strategy.options.enqueue=true"
QUICK, SLOW = ("central_storage_spread", "multi_gpu_model"), (TOWERS, "central_storage_cpu", "avolkov1_ps_cpu")


def count_sent_bytes(one):
    """Count the bytes of weights and gradients that a step sends to another device; their shapes alone are fixed."""
    graph, sent = one.step_function().get_concrete_function().graph, {}
    handles = {placeholder.name: outside.device for outside, placeholder in graph.captures}
    for operation in graph.get_operations():
        for tensor in operation.inputs:
            reads = tensor.op.type == "ReadVariableOp"  # where the variable is, whatever the scope
            source = handles[tensor.op.inputs[0].name] if reads else tensor.device
            fixed = tensor.shape.is_fully_defined() and tensor.shape.rank and tensor.dtype == tf.float32
            if fixed and operation.device and source and on(operation.device) != on(source):
                sent[tensor.name, on(operation.device)] = 4 * tensor.shape.num_elements()
    return sum(sent.values())


@pytest.mark.parametrize("which", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
def test_one_copy_of_the_weights_is_sent_out_once_and_its_gradients_back(strategy, source, which):
    """One of two devices has each weight; so no step is without its exchange."""
    name, *options = which.split()
    one = strategy(f"strategy={name}", "gpus=2", "train.global_batch=8", "scaling=strong", *options)
    one.step(next(iter(one.feed(source(global_batch=8)))))
    assert count_sent_bytes(one) == 2 * BYTES
    with pytest.raises(NotMeasured, match="has one copy of the weights"):
        one.set_gradient_sync(False)


@pytest.mark.horovod
def test_horovods_isolated_synchronization_sends_the_same_buffers_again(monkeypatch):
    """Making them takes longer than sending them within a host, and is not part of it."""
    from scalebench.strategies.horovod import tensorflow as horovod

    sent = []
    monkeypatch.setattr(horovod.hvd, "allreduce", lambda tensor, **keywords: sent.append(tensor))
    one = horovod.HorovodTensorFlow(simulated_spec(2), 0)
    one.devices = ["/CPU:0"]
    for _ in range(2):
        one.run_isolated_sync([400, 8])
    assert [len(each) for each in sent] == [100, 2, 100, 2]
    assert sent[0] is sent[2] and sent[1] is sent[3]
