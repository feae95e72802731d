"""One network, two frameworks: the same weights give the same outputs, and the same losses while training. They are
also those of keras.applications, the outside oracle."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from scalebench.core.spec import TrainSpec
from scalebench.strategies.tensorflow import optimizer as tf_training
from scalebench.strategies.tensorflow.model import NetworkModel, read_weights
from scalebench.strategies.torch import model as torch_weights
from scalebench.strategies.torch import optimizer as torch_training
from scalebench.strategies.torch.model import NetworkModule
from scalebench.strategies.torch.step_module import select_loss
from scalebench.workloads import networks
from scalebench.workloads.weights import initial_weights

torch.set_num_threads(1)  # of networks this small, two threads mostly wait for each other
# The rest of the models, and the oracle, run in `make test-all`.
QUICK = ("materials_cnn", "resnet20_cifar10", "gpt_small", "lstm_small", "lenet")
SIZES = {"inception_v3": 75, "alexnet": 67, "overfeat": 71}  # pixels, where 32 are too few
SHAPES = {"materials_cnn": (200, 3), "mlp": (8000,), "synthetic": (1024, 1), "gpt_small": (16,), "lstm_small": (16,)}
OPTIONS = {
    "synthetic": {"parameters": 100_000, "flops": 10_000_000, "sample_bytes": 4096},
    "gpt_small": {"layers": 2, "width": 32, "heads": 2, "sequence_length": 16},
    "lstm_small": {"layers": 2, "width": 32, "sequence_length": 16},
}
OUTPUTS = {"materials_cnn": 2, "mlp": 1, "synthetic": 1, "cifar10_cnn": 10}
SAMPLES, UPDATES = 8, 20
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in networks.NETWORKS]
TRAINED = [pytest.param(name, marks=pytest.mark.slow) if name == "lenet" else name for name in ALL]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Of torch's compiler, which the first update of an optimizer looks up, and sets by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


def network(name):
    """At a size that is quick to compute, and with few outputs."""
    pixels = SIZES.get(name, 32)
    shape = SHAPES.get(name, (pixels, pixels, 3))
    return networks.build_by_name(name, shape, OUTPUTS.get(name, 11), OPTIONS.get(name))


def arrays(net, seed=1):
    """Biases and statistics that are not 0 and 1, which would hide mistakes.

    Kernels as large as He et al. 2015 have them for relu: with those that Keras begins with, and statistics that are
    not the batch's own, hardly anything of the picture would be left in the outputs.
    """
    kernels = ((a.name, a.shape, "he_uniform" if len(a.shape) > 1 else a.init) for a in net.arrays)
    actual = dict(initial_weights(kernels, seed))
    rng = np.random.default_rng(seed)
    for name, array in actual.items():
        if array.ndim == 1:
            actual[name] = (array + rng.uniform(-0.2, 0.2, array.shape)).astype(np.float32)
    return actual


def data(net, seed=2):
    """(inputs, targets, loss)."""
    rng = np.random.default_rng(seed)
    inputs = rng.uniform(-1, 1, (SAMPLES, *net.input.shape)).astype(np.float32)
    outputs = net.output.shape[-1]
    if net.count("embedding"):
        tokens = rng.integers(0, outputs, (SAMPLES, 1 + net.input.shape[0]))
        return tokens[:, :-1].astype(np.int32), tokens[:, 1:], "cross_entropy"
    if outputs < 10:
        return inputs, rng.random((SAMPLES, outputs), np.float32), "mse"
    return inputs, rng.integers(0, outputs, SAMPLES), "cross_entropy"


def in_torch(net, **settings):
    model = NetworkModule(net, dropout=False, **settings)
    torch_weights.load_weights(model, arrays(net))
    return model


def in_keras(net, **settings):
    return NetworkModel(net, arrays(net), dropout=False, **settings)


def assert_close(actual, wanted, rtol):
    """Relative to the largest value: a number near 0 among large ones carries their rounding."""
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=rtol * np.abs(wanted).max())


@pytest.mark.parametrize("name", ALL)
def test_parity_of_outputs(name):
    net = network(name)
    inputs, *_ = data(net)
    ours = in_keras(net)(tf.constant(inputs), training=False).numpy()
    module = in_torch(net).eval()
    with torch.no_grad():
        other_side = np.moveaxis(module(torch.from_numpy(inputs)).numpy(), 1, -1)
    back, loaded = torch_weights.read_weights(module, statistics=True), arrays(net)
    assert list(back) == list(loaded)
    for key, array in loaded.items():
        np.testing.assert_array_equal(back[key], array, err_msg=key, strict=True)
    assert np.abs(other_side).max() > 1e-3
    assert_close(ours, other_side, 1e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_parity_of_losses(name):
    """Twenty updates from the same weights, which take a fifth off the loss or so; moving statistics agree as well.

    The two add up in another order. At 32 pixels the last stages normalise over eight numbers, and a rounding that
    turns a relu off or on is seen in all gradients before it: in ResNet-50 those of either framework are some percent
    off what float64 gives. That is why the steps are short, and the tolerance is wider with batch normalisation.
    """
    net = network(name)
    rate = short_rate(net)
    other_side, module = losses_in_torch(net, rate)
    ours, model = losses_in_keras(net, rate)
    assert ours[-1] < 0.99 * ours[0]
    normalised = any(node.op == "batch_norm" for node in net.nodes)
    np.testing.assert_allclose(ours, other_side, rtol=5e-3 if normalised else 1e-4)
    actual, wanted = read_weights(model, statistics=True), torch_weights.read_weights(module, statistics=True)
    assert actual.keys() == wanted.keys()
    for array in (a for a in net.arrays if not a.trainable):
        assert_close(actual[array.name], wanted[array.name], 1e-2)


def short_rate(net):
    """A learning rate at which the first gradient, followed for all updates, would take a fifth off the loss."""
    model, (inputs, targets, loss) = in_torch(net).train(), data(net)
    value = select_loss(loss).mean(model(torch.from_numpy(inputs)), torch.from_numpy(targets))
    value.backward()
    squares = sum(float(parameter.grad.square().sum()) for parameter in model.parameters())
    return 0.2 * value.item() / UPDATES / squares


def losses_in_keras(net, rate):
    model, (inputs, targets, loss) = in_keras(net), data(net)
    optimizer = tf_training.create_optimizer(TrainSpec(optimizer="sgd"), rate)
    optimizer.build(model.trainable_variables)
    x, y, of = tf.constant(inputs), tf.constant(targets), tf_training.loss_function(loss)

    @tf.function(autograph=False)
    def update():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(of(model(x, training=True), y))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    return [float(update()) for _ in range(UPDATES)], model


def losses_in_torch(net, rate):
    model, (inputs, targets, loss) = in_torch(net).train(), data(net)
    optimizer = torch_training.build_optimizer(TrainSpec(optimizer="sgd"), model.parameters(), rate)
    x, y, of = torch.from_numpy(inputs), torch.from_numpy(targets), select_loss(loss).mean
    losses = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        value = of(model(x), y)
        value.backward()
        for parameter in model.parameters():
            assert parameter.grad.stride() == parameter.stride(), "a fused optimizer would mix it up"
        optimizer.step()
        losses.append(value.item())
    return losses, model


APPLICATIONS = {
    "inception_v3": "InceptionV3", "resnet50": "ResNet50", "resnet50_v2": "ResNet50V2", "resnet101": "ResNet101",
    "vgg16": "VGG16", "vgg19": "VGG19",
}  # fmt: skip


def oracle(net):
    """The application that `net` claims to be, with our arrays by their names."""
    keras.utils.clear_session()  # it numbers layers that it does not name
    settings = {"weights": None, "classes": net.output.shape[0], "classifier_activation": None}
    model = getattr(keras.applications, APPLICATIONS[net.name])(input_shape=net.input.shape, **settings)
    values = arrays(net)
    shapes = {name: array.shape for name, array in values.items()}
    assert {weight.path: tuple(weight.shape) for weight in model.weights} == shapes
    for weight in model.weights:
        weight.assign(values[weight.path])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
def test_parity_of_outputs_with_the_oracle(name):
    net = network(name)
    inputs, *_ = data(net)
    wanted = oracle(net)(inputs, training=False).numpy()
    assert wanted.std(0).min() > 10 * 1e-4 * np.abs(wanted).max()  # they depend on the picture
    assert_close(NetworkModel(net, arrays(net))(tf.constant(inputs), training=False).numpy(), wanted, 1e-4)
    module = NetworkModule(net)
    torch_weights.load_weights(module, arrays(net))
    with torch.no_grad():
        assert_close(module.eval()(torch.from_numpy(inputs)).numpy(), wanted, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in APPLICATIONS if not name.startswith("vgg")])  # has no statistics
def test_parity_of_training_with_the_oracle(name):
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
