"""A stage by itself: its operations and nothing else, on its device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf

from scalebench.strategies.tensorflow import model_parallel
from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.two_stage_model import RESNET, TWO, batches, on


@pytest.mark.slow
def test_each_stage_computes_its_own_gradients_and_no_more(strategy: Any) -> None:
    two = strategy(*TWO, *RESNET)
    inputs, targets = batches(two, (4,))[0].parts[0]
    read = model_parallel._read(two.model, two.cut, inputs)
    assert [on(tensor.device) for tensor in read] == [on(device) for device in DEVICES]
    assert tuple(read[1].shape) == (4, *two.cut[0].output.shape)
    for stage, device, own in zip(two.cut, DEVICES, read, strict=True):
        alone = model_parallel._alone(two.model, stage, two._loss if stage is two.cut[-1] else None)
        trained = sum(array.trainable for node in stage.nodes for array in node.arrays)
        found = alone(own, targets)
        assert len(found) == trained + (stage.index > 0)  # and of what it reads, which goes back
        assert all(number.shape == () for number in found)  # what a function gives back goes to the first device
        operations = alone.get_concrete_function(own, targets).graph.get_operations()
        assert {on(op.device) for op in operations if op.device} == {on(device)}
        nodes = Counter(node.op for node in stage.nodes)
        here = Counter(op.type for op in operations if on(op.device) == on(device))
        assert (here["Conv2D"], here["Conv2DBackpropFilter"]) == (nodes["conv"], nodes["conv"])


def test_the_last_ones_gradients_are_those_of_the_update(strategy: Any) -> None:
    """Of the sum of the losses, which an update divides by the samples."""
    two = strategy(*TWO)
    (batch,) = batches(two, (6,))
    _, read = model_parallel._read(two.model, two.cut, batch.parts[0][0])
    last = two.cut[-1]
    _, *found = model_parallel._alone(two.model, last, two._loss)(read, batch.parts[0][1])
    assert len(found) == sum(len(node.arrays) for node in last.nodes)
    wanted = gradients(two, batch)[-len(found) :]
    for ours, theirs in zip(found, wanted, strict=True):
        assert float(ours) / batch.samples == pytest.approx(float(theirs.numpy().flat[0]), abs=1e-6)


def gradients(two: Any, batch: Any) -> list[Any]:
    (part,) = batch.parts
    return list(tf.function(lambda: two.gradients(*part, batch.global_samples)[1], autograph=False)())
