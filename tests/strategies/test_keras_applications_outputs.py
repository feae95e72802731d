"""keras.applications as the outside oracle: with the same weights, the same outputs in both of our frameworks.

Our names of layers are theirs, so that weights are set by name.
"""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from scalebench.strategies.tensorflow.model import NetworkModel, read_weights
from scalebench.strategies.torch.model import NetworkModule, load_weights
from scalebench.workloads.network import Network
from scalebench.workloads.weights import initial_weights
from tests.strategies.test_framework_parity import SAMPLES, assert_close, data, network

APPLICATIONS = {
    "inception_v3": "InceptionV3",
    "resnet50": "ResNet50",
    "resnet50_v2": "ResNet50V2",
    "resnet101": "ResNet101",
    "vgg16": "VGG16",
}
ALL = [name if name == "resnet50" else pytest.param(name, marks=pytest.mark.slow) for name in APPLICATIONS]


def arrays(net: Network) -> dict[str, np.ndarray]:
    """Biases and statistics that are not 0 and 1, which would hide mistakes.

    Kernels as large as He et al. 2015 have them for relu: with those that Keras begins with, and statistics that are
    not the batch's own, hardly anything of the picture would be left in the outputs.
    """
    shapes = ((a.name, a.shape, "he_uniform" if len(a.shape) > 1 else a.init) for a in net.arrays)
    actual, rng = initial_weights(shapes, 1), np.random.default_rng(1)
    for name, array in actual.items():
        if array.ndim == 1:
            actual[name] = (array + rng.uniform(-0.2, 0.2, array.shape)).astype(np.float32)
    return actual


def oracle(net: Network) -> keras.Model:
    """The application that `net` claims to be, with our arrays by their names."""
    keras.utils.clear_session()  # it numbers layers that it does not name
    model = getattr(keras.applications, APPLICATIONS[net.name])(
        weights=None, input_shape=net.input.shape, classes=net.output.shape[0], classifier_activation=None
    )
    values = arrays(net)
    assert {weight.path: tuple(weight.shape) for weight in model.weights} == {
        name: array.shape for name, array in values.items()
    }
    for weight in model.weights:
        weight.assign(values[weight.path])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_parity_of_outputs_with_the_oracle(name: str) -> None:
    net = network(name)
    inputs, *_ = data(net)
    wanted = oracle(net)(inputs, training=False).numpy()
    assert wanted.std(0).min() > 10 * 1e-4 * np.abs(wanted).max()  # they depend on the picture
    assert_close(NetworkModel(net, arrays(net))(tf.constant(inputs), training=False).numpy(), wanted, 1e-4)
    module = NetworkModule(net)
    load_weights(module, arrays(net))
    with torch.no_grad():
        assert_close(module.eval()(torch.from_numpy(inputs)).numpy(), wanted, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL[:-1])  # VGG16 has nothing that training changes
def test_parity_of_training_with_the_oracle(name: str) -> None:
    """Outputs by the batch's own statistics, which move the kept ones.

    The last stages normalise over as few as eight numbers here, of which some hardly differ, so that rounding is seen.
    Keras moves the variance by the biased one of the batch, we by the unbiased one as its own fused kernel did.
    """
    net = network(name)
    inputs, *_ = data(net)
    other_side, ours = oracle(net), NetworkModel(net, arrays(net))
    assert_close(ours(tf.constant(inputs), training=True).numpy(), other_side(inputs, training=True).numpy(), 1e-3)
    before, actual = arrays(net), read_weights(ours, statistics=True)
    moved = {weight.path: weight.numpy() for weight in other_side.weights}
    for node in (node for node in net.nodes if node.op == "batch_norm"):
        mean, variance = f"{node.name}/moving_mean", f"{node.name}/moving_variance"
        assert_close(actual[mean], moved[mean], 1e-3)
        count, kept = SAMPLES * math.prod(node.shape[:-1]), node.settings["momentum"] * before[variance]
        assert_close(actual[variance] - kept, (moved[variance] - kept) * count / (count - 1), 1e-2)
