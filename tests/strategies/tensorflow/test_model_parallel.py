"""Model parallelism: placement of all operations, losses, optimizers, stage transfers, and stages."""

import pytest

pytest.importorskip("tensorflow")

from collections import Counter

import numpy as np

from scalebench.strategies.base import BACKWARD, FORWARD, NotMeasured
from tests.strategies.tensorflow.builders import RESNET, TWO, batches, on
from tests.strategies.tensorflow.conftest import DEVICES

INCEPTION = ("model=inception_v3", "dataset=imagenet_synthetic", "model.input_shape=[76,76,3]", "train.global_batch=3")
MODELS = {"materials_cnn": (), "resnet20_cifar10": RESNET, "inception_v3": INCEPTION}
BY_SIZE = "strategy.options.split=size"
FAST = [name if name != "inception_v3" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
# Kinds of nodes, and the operations that they become; the backward pass of a product is two.
FORWARD_OF = {"conv": "Conv2D", "batch_norm": "FusedBatchNormV3", "dense": "MatMul", "relu": "Relu"}
BACKWARD_OF = {"conv": "Conv2DBackpropFilter", "batch_norm": "FusedBatchNormGradV3", "relu": "ReluGrad"}


@pytest.mark.parametrize("model", FAST)
def test_forward_and_backward_of_a_stage_are_on_its_device(strategy, model):
    """As many operations of each kind as the stage has nodes of it, in both directions."""
    two = strategy(*TWO, *MODELS[model])
    operations = two.step_function().get_concrete_function().graph.get_operations()
    back = [op for op in operations if op.name.startswith("gradients")]
    ahead = [op for op in operations if op.name.startswith(two.model.name)]
    for stage, device in zip(two.network_stages, DEVICES, strict=True):
        nodes = Counter(node.op for node in stage.nodes)
        for found, types in ((ahead, FORWARD_OF), (back, BACKWARD_OF)):
            here = Counter(op.type for op in found if on(op.device) == on(device))
            assert {kind: here[type] for kind, type in types.items()} == {kind: nodes[kind] for kind in types}
        products = [op for op in back if op.type == "MatMul" and on(op.device) == on(device)]
        assert len(products) == 2 * nodes["dense"]
    unplaced = {op.type for op in back if not op.device}
    assert not unplaced - {"ReadVariableOp"}, unplaced


@pytest.mark.slow
def test_stages_have_sizes(strategy):
    """They can balance bytes."""
    two = strategy(*TWO, *RESNET)
    first, last = two.stages()
    assert first.work_s is last.work_s is None
    assert (first.index, last.index, first.stages, first.micro_batches) == (0, 1, 2, 1)
    assert (first.first, last.last) == ("conv0", "affine0")
    assert (first.sent_bytes, last.sent_bytes) == (two.message_sizes()[0], None)
    assert first.parameter_bytes + last.parameter_bytes == 4 * two.num_params()
    assert two.state_bytes() > [first.parameter_bytes, last.parameter_bytes]
    apart = [abs(np.subtract(*one.state_bytes())) for one in (strategy(*TWO, *RESNET, BY_SIZE), two)]
    assert apart[0] < apart[1] / 2


def test_partial_steps_and_rates(strategy):
    two = strategy(*TWO)
    (batch,) = batches(two, (10,))
    before = two.parameters()
    for part in (FORWARD, BACKWARD):
        two.partial_step(batch, part)
    two.set_learning_rate(0.0)  # on all devices
    two.step(batch)
    for name, array in two.parameters().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(NotMeasured, match="wait for the one before"):
        two.local_step(batch)
    with pytest.raises(NotMeasured, match="one model over all devices"):
        two.set_gradient_sync(False)


def test_variables_and_slots_are_on_the_device_of_their_stage(strategy):
    two = strategy(*TWO, *RESNET, "train.optimizer=adam")
    for stage, device in zip(two.network_stages, DEVICES, strict=True):
        names = [array.name for node in stage.nodes for array in node.arrays]
        held = [two.model.variables_by_name[name] for name in names]
        slots = two.optimizer.by_device[held[0].value.device].variables
        assert {on(variable.value.device) for variable in (*held, *slots)} == {on(device)}
        assert len(slots) == 2 + 2 * sum(variable.trainable for variable in held)  # iterations, rate, two moments


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("bfloat16", 2)])
def test_messages_are_the_activations_between_stages(strategy, precision, size):
    two = strategy(*TWO, *RESNET, f"train.precision={precision}")
    assert two.message_sizes() == [10 * 16 * 16 * 32 * size] * 2
    two.run_isolated_sync(two.message_sizes())
    _, trip = two._exchange
    graph = trip.run.get_concrete_function(trip.buffers).graph
    copies = [op for op in graph.get_operations() if op.type == "Identity" and op.inputs[0].op.type == "Identity"]
    ways = [(on(op.inputs[0].device), on(op.device)) for op in copies[:2]]
    assert ways == [(on(DEVICES[0]), on(DEVICES[1])), (on(DEVICES[1]), on(DEVICES[0]))]


def test_the_backend_is_observed(strategy):
    two = strategy(*TWO)
    with pytest.raises(RuntimeError, match="there was no training"):
        two.backend_used()
    two.step(batches(two, (10,))[0])
    assert two.backend_used() == "copy"
    one = strategy(*TWO, "gpus=1")
    one.step(batches(one, (10,))[0])
    assert (one.backend_used(), one.message_sizes(), one.stages()) == (None, [], [])
    one.run_isolated_sync([100])
