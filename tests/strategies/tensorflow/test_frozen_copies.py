"""Steps that leave out parts of the synchronization of one copy of the weights: what they send, compute and change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalebench.core.result import SYNC_PARTS
from scalebench.strategies.tensorflow import batches
from scalebench.strategies.tensorflow.frozen_copies import FrozenSlices, is_same_device
from scalebench.workloads.source import Batch, Source
from tests.strategies.tensorflow.builders import BYTES, on, replica_weights
from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.test_tf_probes import CONVOLUTIONS, ran

TOWER_LOSS, ENQUEUE = "strategy.options.loss=tower", "strategy.options.enqueue=true"
CENTRAL = {"input", "output"}
INSEPARABLE = {
    "central_storage_cpu": CENTRAL,
    "central_storage_device": CENTRAL,
    "central_storage_spread": CENTRAL,
    "multi_gpu_model": set(),
    "kuza55_ps_cpu": set(),
    f"avolkov1_ps_gpu {TOWER_LOSS} {ENQUEUE}": {"input", "output"},
}
SIGNS_BYTES = 100  # one element of each result


def count_sent_bytes(one: Any) -> int:
    """Count the bytes of weights and gradients that a step sends to another device; their shapes alone are fixed."""
    sent = {}
    for operation in one.step_function().get_concrete_function().graph.get_operations():
        for tensor in operation.inputs:
            fixed = tensor.shape.is_fully_defined() and tensor.shape.rank and tensor.dtype == tf.float32
            if fixed and operation.device and tensor.device and on(operation.device) != on(tensor.device):
                sent[tensor.name, on(operation.device)] = 4 * tensor.shape.num_elements()
    return sum(sent.values())


@pytest.mark.parametrize("which", INSEPARABLE)
def test_each_part_is_left_out_by_itself(strategy: Any, source: Callable[..., Source], which: str) -> None:
    """Both devices still compute all, and the weights are updated once. One of two devices has the weights."""
    name, *options = which.split()
    one = strategy(
        f"strategy={name}", "gpus=2", "train.optimizer=sgd", "train.global_batch=8", "scaling=strong", *options
    )
    assert set(one.inseparable_sync_parts()) == INSEPARABLE[which]
    batch = next(iter(one.feed(source(global_batch=8))))
    one.step(batch)
    sent, updates = {}, set()
    for parts in ((), SYNC_PARTS[:1], SYNC_PARTS[:2], SYNC_PARTS[:3], SYNC_PARTS):
        one.leave_out_sync_parts(parts)
        sent[len(parts)] = count_sent_bytes(one)
        before = replica_weights(one)
        calls = ran(lambda: float(one.step(batch).loss_sum))
        assert calls["Conv2D"] + calls["FusedConv2D"] == calls["Conv2DBackpropFilter"] == 2 * CONVOLUTIONS, parts
        updates.add(calls["AssignSubVariableOp"])
        assert any(np.abs(now - then).max() > 0 for now, then in zip(replica_weights(one), before, strict=True))
    assert (sent[0], sent[1], sent[2], sent[3]) == (2 * BYTES, 2 * BYTES, BYTES, BYTES)
    assert sent[4] <= SIGNS_BYTES
    assert updates == {8}
    one.set_gradient_sync(True)
    assert count_sent_bytes(one) == 2 * BYTES


def test_frozen_slices_are_as_large_as_those_of_the_batch() -> None:
    """Also those of a full batch, made of the smaller last one of an epoch."""
    inputs, targets = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    frozen = FrozenSlices(DEVICES, batches.place_batch(Batch(inputs, targets, 5), DEVICES[:1]), global_batch=9)
    assert [part.numpy().tolist() for part in frozen.take(tf.constant(9), 1)] == [[0, 1, 2, 3], [4, 0, 1, 2, 3]]
    assert [part.shape for part in frozen.take(tf.constant(5), 0)] == [(2, 2), (3, 2)]
    assert [on(part.device) for part in frozen.take(tf.constant(5), 0)] == [on(device) for device in DEVICES]


def test_devices_are_compared_without_the_process() -> None:
    complete = "/job:localhost/replica:0/task:0/device:GPU:1"
    assert is_same_device("/GPU:1", complete) and not is_same_device("/GPU:0", complete)
    assert not is_same_device("/CPU:1", complete)
