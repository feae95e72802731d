"""Each operation of a network in both frameworks against numpy, in both layouts of images."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from scalebench.strategies.tensorflow import model as tensorflow_model
from scalebench.strategies.torch import model as torch_model
from scalebench.workloads.network import Network
from tests.strategies.builders import random_arrays, random_floats

SHAPES = {1: (11, 3), 2: (9, 12, 3)}  # positions, channels; height, width, channels
# In TensorFlow only images lie in memory one way or the other.
IN_TORCH = [("torch", axes, layout) for axes in (1, 2) for layout in ("nhwc", "nchw")]
WAYS = [*IN_TORCH, ("tensorflow", 1, "nhwc"), ("tensorflow", 2, "nhwc"), ("tensorflow", 2, "nchw")]
EVERY_WAY = pytest.mark.parametrize(("framework", "axes", "data_format"), WAYS)
IMAGES = pytest.mark.parametrize(("framework", "data_format"), [(name, how) for name, axes, how in WAYS if axes == 2])
# (Window, strides, padding). Of those padded by 1, most are not what TensorFlow would call SAME.
CONVOLUTIONS = [
    (1, 1, "same"), (1, 2, "valid"), (3, 1, "same"), (3, 2, "same"), (4, 1, "same"), (4, 2, "same"), (4, 3, "same"),
    (3, 2, "valid"), (4, 3, "valid"), (3, 1, 1), (4, 2, 1),
]  # fmt: skip
POOLS = [(2, 1, "same"), (2, 2, "valid"), (3, 2, "same"), (3, 3, "valid"), (2, 3, "same"), (3, 1, 1), (2, 2, 1)]


class Model(NamedTuple):
    """A network in one of the frameworks with random arrays, biases and statistics too, variances above zero."""

    run: Callable[..., np.ndarray]  # (inputs, training=False) -> outputs, channels last
    arrays: dict[str, np.ndarray]
    read: Callable[[], dict[str, np.ndarray]]


def build(framework, net, **settings):
    arrays = random_arrays(net)
    make = run_in_torch if framework == "torch" else run_in_tensorflow
    run, read = make(net, arrays, **settings)
    return Model(run, arrays, partial(read, statistics=True))


def run_in_torch(net, arrays, **settings):
    made = torch_model.NetworkModule(net, **settings)
    torch_model.load_weights(made, arrays)

    def run(inputs, training=False):
        with torch.no_grad():
            return made.train(training)(torch.from_numpy(inputs)).movedim(1, -1).numpy()

    return run, partial(torch_model.read_weights, made)


def run_in_tensorflow(net, arrays, **settings):
    made = tensorflow_model.NetworkModel(net, arrays, **settings)

    def run(inputs, training=False):
        """In a function, since the CPU has channels first only there."""
        compute = tf.function(lambda x: made(x, training=training), autograph=False)
        outputs = compute(tf.constant(inputs)).numpy()
        return np.moveaxis(outputs, 1, -1) if made.channels_first and outputs.ndim == 4 else outputs

    return run, partial(tensorflow_model.read_weights, made)


def windows(x, node, window, fill):
    """(samples, ...positions, channels, ...window) of the padded inputs."""
    padded = np.pad(x, [(0, 0), *node.settings["pads"], (0, 0)], constant_values=fill)
    axes = tuple(range(1, x.ndim - 1))
    view = np.lib.stride_tricks.sliding_window_view(padded, window, axes)
    return view[(slice(None), *[slice(None, None, node.settings["strides"])] * len(axes))]


@EVERY_WAY
@pytest.mark.parametrize(("kernel", "strides", "padding"), CONVOLUTIONS)
def test_conv(framework, axes, strides, padding, kernel, data_format):
    net = Network("net", SHAPES[axes])
    node = net.conv(net.input, "conv", 5, kernel, strides, padding, bias=strides != 2)
    model, x = build(framework, net, data_format=data_format), random_floats(SHAPES[axes])
    seen = windows(x, node, (kernel,) * axes, 0.0)
    taken = tuple(range(seen.ndim - axes, seen.ndim))
    last = seen.ndim - axes - 1  # channels
    expected = np.tensordot(seen, model.arrays["conv/kernel"], ((*taken, last), tuple(range(axes + 1))))
    expected = expected + model.arrays.get("conv/bias", 0)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(model.run(x), expected, rtol=1e-4, atol=1e-4)


@EVERY_WAY
@pytest.mark.parametrize(("window", "strides", "padding"), POOLS)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool(framework, axes, strides, padding, window, kind, data_format):
    """A mean over padding that TensorFlow would place elsewhere is refused there, as it would count the zeros."""
    net = Network("net", SHAPES[axes])
    node = getattr(net, f"{kind}_pool")(net.input, window, strides, padding)
    same = getattr(Network("net", SHAPES[axes]), f"{kind}_pool")(net.input, window, strides, "same")
    model = build(framework, net, data_format=data_format)
    x = random_floats(SHAPES[axes]) - 5  # a padding of zeros would win each maximum
    elsewhere = padding == 1 and same.settings["pads"] != node.settings["pads"]
    if framework == "tensorflow" and kind == "avg" and elsewhere:
        with pytest.raises(ValueError, match=r"avg_pool_1.*padding"):
            model.run(x)
        return
    seen, taken = windows(x, node, (window,) * axes, np.nan), tuple(range(-axes, 0))
    expected = np.nanmax(seen, taken) if kind == "max" else np.nanmean(seen, taken)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(model.run(x), expected, rtol=1e-5, atol=1e-5)


@EVERY_WAY
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm(framework, axes, scale, data_format):
    """Training uses the batch's statistics and updates the moving ones, which evaluation uses and leaves."""
    net = Network("net", SHAPES[axes])
    net.batch_norm(net.input, "bn", epsilon=0.01, momentum=0.9, scale=scale)
    model = build(framework, net, data_format=data_format)
    x = random_floats(SHAPES[axes], 4) * 3 + 1
    over = tuple(range(x.ndim - 1))

    def normal(mean, variance):
        return (x - mean) / np.sqrt(variance + 0.01) * model.arrays.get("bn/gamma", 1) + model.arrays["bn/beta"]

    mean, variance = model.arrays["bn/moving_mean"], model.arrays["bn/moving_variance"]
    np.testing.assert_allclose(model.run(x), normal(mean, variance), rtol=1e-4, atol=1e-4)
    for name, array in model.read().items():
        np.testing.assert_array_equal(array, model.arrays[name])
    np.testing.assert_allclose(model.run(x, training=True), normal(x.mean(over), x.var(over)), rtol=1e-4, atol=1e-4)
    after, unbiased = model.read(), x.var(over, ddof=1)
    np.testing.assert_allclose(after["bn/moving_mean"], 0.9 * mean + 0.1 * x.mean(over), rtol=1e-5)
    np.testing.assert_allclose(after["bn/moving_variance"], 0.9 * variance + 0.1 * unbiased, rtol=1e-5)
    assert ("bn/gamma" in after) == scale


@IMAGES
def test_lrn(framework, data_format):
    net = Network("net", (5, 4, 7))
    net.lrn(net.input, radius=2, bias=1.5, alpha=0.3, beta=0.75)
    x = random_floats((5, 4, 7))
    squares = np.pad(x**2, [(0, 0)] * 3 + [(2, 2)])
    expected = x / (1.5 + 0.3 * sum(squares[..., i : i + 7] for i in range(5))) ** 0.75
    np.testing.assert_allclose(build(framework, net, data_format=data_format).run(x), expected, rtol=1e-5)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "torch.nn"])
def test_lstm(framework):
    """The last two are the frameworks' own layers, with our weights."""
    net, x = Network("net", (6, 3)), random_floats((6, 3))
    net.lstm(net.input, "lstm", 5)
    model = build("torch" if framework == "torch" else "tensorflow", net)
    kernel, recurrent, bias = model.arrays.values()
    hidden = cell = np.zeros((len(x), 5))
    expected = []
    for position in range(6):
        enter, keep, candidate, leave = np.split(x[:, position] @ kernel + hidden @ recurrent + bias, 4, axis=1)
        cell = cell / (1 + np.exp(-keep)) + np.tanh(candidate) / (1 + np.exp(-enter))
        hidden = np.tanh(cell) / (1 + np.exp(-leave))
        expected.append(hidden)
    if framework == "keras":
        layer = keras.layers.LSTM(5, return_sequences=True)
        layer.build(x.shape)
        layer.set_weights(list(model.arrays.values()))
        actual = layer(x).numpy()
    elif framework == "torch.nn":
        own = torch.nn.LSTM(3, 5, batch_first=True)
        weights = (kernel.T, recurrent.T, bias, np.zeros_like(bias))
        own.load_state_dict(dict(zip(own.state_dict(), map(torch.tensor, weights), strict=True)))
        actual = own(torch.from_numpy(x))[0].detach().numpy()
    else:
        actual = model.run(x)
    np.testing.assert_allclose(actual, np.stack(expected, 1), rtol=1e-4, atol=1e-5)


@EVERY_WAY
def test_operations_without_a_window(framework, axes, data_format):
    """The inputs of most have a second reader; flattened, the channels vary fastest in either layout."""
    net = Network("net", SHAPES[axes])
    rectified = net.relu(net.input)
    both = net.concat(net.add(net.input, rectified, rectified), net.pad_channels(net.add(rectified, net.input), 1))
    net.concat(net.global_avg_pool(both), net.dense(net.flatten(net.zero_pad(both, 2)), "dense", 4))
    model, x = build(framework, net, data_format=data_format), random_floats(SHAPES[axes])
    positive = np.maximum(x, 0)
    wide = np.concatenate([x + 2 * positive, np.pad(positive + x, [*[(0, 0)] * (axes + 1), (1, 1)])], -1)
    padded = np.pad(wide, [(0, 0), *[(2, 2)] * axes, (0, 0)])
    dense = padded.reshape(len(x), -1) @ model.arrays["dense/kernel"] + model.arrays["dense/bias"]
    expected, before = np.concatenate([wide.mean(tuple(range(1, axes + 1))), dense], -1), x.copy()
    np.testing.assert_allclose(model.run(x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_dropout(framework):
    net = Network("net", (1000,))
    net.dropout(net.input, 0.3)
    x, model = np.ones((5, 1000), np.float32), build(framework, net)
    actual = model.run(x, training=True)
    np.testing.assert_allclose(np.unique(actual), [0, 1 / 0.7], rtol=1e-6)
    assert (actual == 0).mean() == pytest.approx(0.3, abs=0.05)
    assert (model.run(x) == x).all()
    assert (build(framework, net, dropout=False).run(x, training=True) == x).all()
