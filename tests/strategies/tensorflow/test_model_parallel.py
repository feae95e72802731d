"""Model parallelism: what is placed where, forward, backward and in the optimizer, and the losses of one device."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from scalebench.strategies.base import BACKWARD, FORWARD, NotMeasured, Unsupported
from scalebench.workloads import networks
from tests.strategies.tensorflow.conftest import DEVICES
from tests.strategies.tensorflow.single_update import one_update
from tests.strategies.tensorflow.two_stage_model import RESNET, TWO, batches, on

BARE = ("strategy=bare_tensorflow", "gpus=1", *TWO[2:])
INCEPTION = ("model=inception_v3", "dataset=imagenet_synthetic", "model.input_shape=[76,76,3]", "train.global_batch=3")
MODELS = {
    "materials_cnn": (),
    "resnet20_cifar10": RESNET,
    "inception_v3": INCEPTION,
}
FAST = [name if name != "inception_v3" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
# Kinds of nodes, and the operations that they become; the backward pass of a product is two.
FORWARD_OF = {"conv": "Conv2D", "batch_norm": "FusedBatchNormV3", "dense": "MatMul", "relu": "Relu"}
BACKWARD_OF = {"conv": "Conv2DBackpropFilter", "batch_norm": "FusedBatchNormGradV3", "relu": "ReluGrad"}


@pytest.mark.slow
@pytest.mark.parametrize("model", FAST)
def test_the_update_is_that_of_one_device(strategy: Any, model: str) -> None:
    """Losses, weights and moving statistics, uneven batches included: a batch stays whole."""
    bare, two = strategy(*BARE, *MODELS[model]), strategy(*TWO, *MODELS[model])
    for batch in batches(two, (3, 3, 2)):
        assert float(two.step(batch).loss_sum) == pytest.approx(float(bare.step(batch).loss_sum), rel=1e-6)
    for kind in ("trained", "moving_statistics"):
        for ours, theirs in zip(getattr(two.model, kind), getattr(bare.model, kind), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-6, err_msg=ours.name)
    inputs = batches(two, (4,))[0].parts[0][0]
    np.testing.assert_allclose(two.forward(inputs), bare.forward(inputs), atol=1e-5)


@pytest.mark.parametrize("model", FAST)
def test_forward_and_backward_of_a_stage_are_on_its_device(strategy: Any, model: str) -> None:
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


@pytest.mark.real
@pytest.mark.slow
def test_where_tensorflow_really_placed_an_update() -> None:
    """By its own log, with CPU:1 for the first device, which is not where it puts what names none."""
    update = one_update(*TWO, *RESNET, "dataset.size=40", "dataset.validation_share=0.1")
    first = update.devices("^resnet20_cifar10_1/convolution_1$", "Conv2D")
    last = update.devices("^resnet20_cifar10_1/MatMul$", "MatMul")
    assert (first, last) == ({"CPU:1"}, {"CPU:0"})
    convolutions = [one for one in update.placed if one.type == "Conv2DBackpropFilter"]
    assert Counter(one.device for one in convolutions) == {
        device: sum(
            one.type == "Conv2D" and one.device == device and "gradients" not in one.name for one in update.placed
        )
        for device in ("CPU:0", "CPU:1")
    }
    assert update.facts["weights_on"] == update.facts["slots_on"] == ["CPU:0", "CPU:1"]
    assert update.facts["fed_on"] == ["CPU:1"]


@pytest.mark.slow
def test_stages_tell_what_they_hold_and_how_long_they_work(strategy: Any) -> None:
    two = strategy(*TWO, *RESNET)
    assert {stage.work_s for stage in two.stages()} == {None}  # nobody trained
    two.step(batches(two, (10,))[0])
    first, last = two.stages()
    assert all(stage.work_s is not None and stage.work_s > 0 for stage in (first, last))
    assert (first.index, last.index, first.stages, first.micro_batches) == (0, 1, 2, 1)
    assert (first.first, last.last) == ("conv0", "affine0")
    assert (first.sent_bytes, last.sent_bytes) == (two.message_sizes()[0], None)
    assert first.parameter_bytes + last.parameter_bytes == 4 * two.num_params()
    assert two.state_bytes() > [first.parameter_bytes, last.parameter_bytes]


@pytest.mark.slow
def test_bytes_can_be_balanced_instead(strategy: Any) -> None:
    flops, size = (strategy(*TWO, *RESNET, f"strategy.options.split={by}") for by in ("flops", "size"))
    apart = [abs(one.state_bytes()[0] - one.state_bytes()[1]) for one in (flops, size)]
    assert apart[1] < apart[0] / 2


def test_parts_of_an_update(strategy: Any) -> None:
    two = strategy(*TWO)
    (batch,) = batches(two, (10,))
    before = two.parameters()
    for part in (FORWARD, BACKWARD):
        two.partial_step(batch, part)
    for name, array in two.parameters().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(NotMeasured, match="waits for the one before"):
        two.local_step(batch)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.compile=true",), "train.compile=true would put it all on one"),
        (("train.accumulate=2",), "train.accumulate.*leave it out"),
        (("train.precision=float16",), "use bfloat16"),
        (
            ("model=custom", "model.keras=tests.strategies.tensorflow.user_models:normalised"),
            "does not say where it can be cut",
        ),
    ],
)
def test_what_it_does_not_do(made: Any, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        made(*TWO, *words).setup()


def test_more_stages_than_there_are_places_to_cut(made: Any) -> None:
    one = made(*TWO, "gpus=5")
    one.devices = DEVICES * 3
    with pytest.raises(Unsupported, match=re.escape("can be cut into at most 4 stages")):
        one.device_of(networks.build_network(one.spec.config.model))


def test_the_exchange_stays(made: Any) -> None:
    with pytest.raises(NotMeasured, match="one model over all devices"):
        made(*TWO).set_gradient_sync(False)
