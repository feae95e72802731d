"""One optimizer for each device: what it keeps and what it computes is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.two_stage_model import RESNET, TWO, batches, on


def test_variables_and_slots_are_on_the_device_of_their_stage(strategy: Any) -> None:
    two = strategy(*TWO, *RESNET, "train.optimizer=adam")
    for stage, device in zip(two.cut, DEVICES, strict=True):
        names = [array.name for node in stage.nodes for array in node.arrays]
        held = [two.model.variable_of[name] for name in names]
        slots = two.optimizer.of_device[held[0].value.device].variables
        assert {on(variable.value.device) for variable in (*held, *slots)} == {on(device)}
        assert len(slots) == 2 + 2 * sum(variable.trainable for variable in held)  # iterations, rate, two moments


def test_the_learning_rate_changes_on_all_devices(strategy: Any) -> None:
    two = strategy(*TWO, "train.optimizer=sgd")
    before = [variable.numpy() for variable in two.model.trained]
    two.set_learning_rate(0.0)
    two.step(batches(two, (10,))[0])
    for variable, array in zip(two.model.trained, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), array)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum", "rmsprop", "sgd"])
def test_a_step_stays_on_its_device(strategy: Any, optimizer: str) -> None:
    """But for what names no device and follows the variable that it reads."""
    two = strategy(*TWO, f"train.optimizer={optimizer}", "train.weight_decay=0.1")
    operations = two.update_function().get_concrete_function().graph.get_operations()
    names = {one.name for one in two.optimizer.of_device.values()}
    steps = [
        op
        for op in operations
        if op.name.partition("/")[0].rpartition("_")[0] in names or op.name.partition("/")[0] in names
    ]
    assert {op.type for op in steps if not op.device} <= {"ReadVariableOp", "Placeholder"}
    placed = [op for op in steps if op.device]
    assert {on(op.device) for op in placed} == {on(device) for device in DEVICES}
    for op in placed:
        assert {on(tensor.device) for tensor in op.inputs if tensor.device} <= {on(op.device)}, op.name
