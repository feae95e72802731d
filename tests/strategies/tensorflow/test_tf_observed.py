"""Observed backends and message sizes of hand-written functions, and the isolated all-reduce."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.base import Loop
from scalebench.strategies.tensorflow import observed, profiling
from scalebench.strategies.tensorflow.mirrored import GradientAllReduce
from tests.strategies.tensorflow.conftest import DEVICES, mirrored


def ring(parts: list[tf.Tensor]) -> list[tf.Tensor]:
    """Two collectives on each device: of the numbers, and of their first two."""
    strategy = mirrored(DEVICES)

    def sums(part: tf.Tensor) -> list[tf.Tensor]:
        context, local = tf.distribute.get_replica_context(), part * 2
        return [context.all_reduce("SUM", local), context.all_reduce("SUM", local[:2])]

    per_replica = strategy.experimental_distribute_values_from_function(lambda own: parts[own.replica_id_in_sync_group])
    totals = strategy.run(sums, (per_replica,))
    return [one for total in totals for one in strategy.experimental_local_results(total)]


def copy(parts: list[tf.Tensor]) -> list[tf.Tensor]:
    """The sum on one device of what comes from both, and a sum that no gradient crosses devices for."""
    moved = []
    for device, part in zip(DEVICES, parts, strict=True):
        with tf.device(device):
            moved.append(part * 2)
    with tf.device(DEVICES[1]):
        return [tf.add_n(moved), tf.add_n([moved[1], moved[1] * 2])]


def nothing(parts: list[tf.Tensor]) -> list[tf.Tensor]:
    with tf.device(DEVICES[0]):
        return [tf.add_n([parts[0] * 2, parts[0] * 3])]


MADE = {"ring": ring, "copy": copy, None: nothing}
BYTES = {"ring": [28, 8], "copy": [28], None: []}


def parts() -> list[tf.Tensor]:
    found = []
    for device in DEVICES:
        with tf.device(device):
            found.append(tf.random.uniform([7]))
    return found


def function(which: str | None, nested: bool = False) -> Any:
    inner = tf.function(MADE[which], autograph=False)
    outer = tf.function(lambda given: inner(given), autograph=False) if nested else inner
    outer.get_concrete_function([tf.TensorSpec([7])] * 2)
    return outer


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("which", MADE)
def test_message_bytes(which: str | None, nested: bool) -> None:
    """One of each message, as one device sends it, also where a function calls the one that sends."""
    made = function(which, nested).get_concrete_function([tf.TensorSpec([7])] * 2)
    assert observed.reduction_message_bytes(made) == BYTES[which]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("which", MADE)
def test_the_backend_is_observed(which: str | None, nested: bool) -> None:
    made, updates = function(which, nested), []

    def train(loop: Loop) -> None:
        for batch in loop:
            made(batch)
            updates.append(loop.done(None))

    of_parts = tf.function(lambda given: made(given), autograph=False, input_signature=[[tf.TensorSpec([7])] * 2])
    assert observed.observe_backend(train, of_parts, parts()) == which
    assert updates == [False, True]


def test_a_traced_collective_must_run() -> None:
    """A collective that no update comes to carries nothing."""
    made = tf.function(MADE["ring"], autograph=False, input_signature=[[tf.TensorSpec([7])] * 2])
    assert observed.observe_backend(lambda loop: None, made, parts()) is None


@pytest.mark.parametrize(
    ("event", "backend"), [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl"), ("NcclAllReduce:NcclAllReduce", "nccl")]
)
def test_nccl_is_recognized_by_its_kernels(monkeypatch: pytest.MonkeyPatch, event: str, backend: str) -> None:
    monkeypatch.setattr(observed, "record_event_names", lambda action: {event, "AddN:AddN"})
    made = tf.function(MADE["ring"], autograph=False, input_signature=[[tf.TensorSpec([7])] * 2])
    assert observed.observe_backend(lambda loop: None, made, parts()) == backend


def test_observing_needs_a_training() -> None:
    with pytest.raises(RuntimeError, match="there was no training"):
        observed.observe_backend(lambda loop: None, None, None)


@pytest.mark.parametrize(
    ("event", "name", "same"),
    [
        ("add:AddN", "add", True),
        ("call/add:AddN", "add", True),
        ("badd:AddN", "add", False),
        ("add_1:AddN", "add", False),
    ],
)
def test_events_of_an_operation(event: str, name: str, same: bool) -> None:
    assert profiling.is_event_of(event, name) is same


@pytest.mark.parametrize("jit", [False, True])
def test_the_compiler_is_observed(jit: bool) -> None:
    inner = tf.function(lambda x: x * 2 + 1, jit_compile=jit)
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.TensorSpec([3]))
    assert observed.compiler_used(outer) == ("xla" if jit else "none")


@pytest.mark.parametrize("ops", [None, tf.distribute.HierarchicalCopyAllReduce])
def test_all_reduce_adds_up_over_the_devices(ops: Any) -> None:
    strategy = mirrored(DEVICES, ops() if ops else None)
    alone = GradientAllReduce(strategy, [8, 20])
    alone._buffers = [
        strategy.experimental_distribute_values_from_function(
            lambda context, size=size: tf.fill([size], float(context.replica_id_in_sync_group + 1))
        )
        for size in (2, 5)
    ]
    sums = alone._run(alone._buffers)
    for size, of_devices in zip((2, 5), sums, strict=True):
        assert len(of_devices) == 2
        for one in of_devices:
            np.testing.assert_array_equal(one, np.full(size, 3.0))


def test_all_reduce_has_the_given_sizes_and_runs_each_time() -> None:
    strategy = mirrored(DEVICES)
    alone = GradientAllReduce(strategy, [4, 4000, 0])
    shapes = [[one.shape[0] for one in strategy.experimental_local_results(buffer)] for buffer in alone._buffers]
    assert shapes == [[1, 1], [1000, 1000], [1, 1]]
    alone()
    for _ in range(2):
        assert any("CollectiveReduce" in event for event in observed.record_event_names(alone))
