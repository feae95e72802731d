"""Steps that leave out parts of the synchronization of one copy of the weights: what they send, compute and change."""

import numpy as np
import pytest
import tensorflow as tf

from scalebench.core.result import SYNC_PARTS
from scalebench.strategies.tensorflow import batches
from scalebench.strategies.tensorflow.frozen_copies import FrozenSlices, is_same_device
from scalebench.workloads.source import Batch
from tests.strategies.tensorflow.builders import BYTES, on, replica_weights
from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.test_tf_probes import CONVOLUTIONS, ran

TOWER_LOSS, ENQUEUE = "strategy.options.loss=tower", "strategy.options.enqueue=true"
CENTRAL = {"input", "output"}
INSEPARABLE = {
    "central_storage_spread": CENTRAL,
    "multi_gpu_model": set(),
    f"avolkov1_ps_gpu {TOWER_LOSS} {ENQUEUE}": {"input", "output"},
    "central_storage_cpu": CENTRAL,
    "avolkov1_ps_cpu": set(),
}
QUICK = list(INSEPARABLE)[:2]
SIGNS_BYTES = 100  # one element of each result


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


@pytest.mark.parametrize(
    "which", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in INSEPARABLE]
)
def test_each_part_is_left_out_by_itself(strategy, source, which):
    """One of two devices has each weight. Without synchronization both still compute all gradients, which nobody uses,
    and the weights are updated once."""
    name, *options = which.split()
    words = ("gpus=2", "train.global_batch=8", "scaling=strong")
    one = strategy(f"strategy={name}", *words, *options)
    assert set(one.inseparable_sync_parts()) == INSEPARABLE[which]
    batch = next(iter(one.feed(source(global_batch=8))))
    one.step(batch)
    sent = []
    for count in range(len(SYNC_PARTS) + 1):
        one.leave_out_sync_parts(SYNC_PARTS[:count])
        sent.append(count_sent_bytes(one))
    assert sent[:-1] == [2 * BYTES, 2 * BYTES, BYTES, BYTES]
    assert sent[-1] <= SIGNS_BYTES
    before = replica_weights(one)
    one.step(batch)
    calls = ran(lambda: float(one.step(batch).loss_sum))
    assert calls["Conv2D"] + calls["FusedConv2D"] == calls["Conv2DBackpropFilter"] == 2 * CONVOLUTIONS
    assert calls["AssignSubVariableOp"] == len(before)
    assert any(np.abs(now - then).max() > 0 for now, then in zip(replica_weights(one), before, strict=True))
    one.set_gradient_sync(True)
    assert count_sent_bytes(one) == 2 * BYTES


def test_frozen_slices_are_as_large_as_those_of_the_batch():
    """Also those of a full batch, made of the smaller last one of an epoch."""
    inputs, targets = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    frozen = FrozenSlices(DEVICES, batches.place_batch(Batch(inputs, targets, 5), DEVICES[:1]), global_batch=9)
    assert [part.numpy().tolist() for part in frozen.take(tf.constant(9), 1)] == [[0, 1, 2, 3], [4, 0, 1, 2, 3]]
    assert [part.shape for part in frozen.take(tf.constant(5), 0)] == [(2, 2), (3, 2)]
    assert [on(part.device) for part in frozen.take(tf.constant(5), 0)] == [on(device) for device in DEVICES]
    complete = "/job:localhost/replica:0/task:0/device:GPU:1"
    assert is_same_device("/GPU:1", complete) and not is_same_device("/GPU:0", complete)
    assert not is_same_device("/CPU:1", complete)
