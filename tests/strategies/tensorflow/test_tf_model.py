"""Operations against numpy in both layouts, compute dtypes, moving statistics, and weights read back."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow.model import OPERATIONS, NetworkModel, read_weights
from scalebench.workloads.network import Network, Node

SHAPES = {1: (11, 3), 2: (9, 12, 3)}  # positions, channels; height, width, channels
# Only images lie in memory one way or the other.
LAYOUTS = pytest.mark.parametrize(("axes", "data_format"), [(1, "nhwc"), (2, "nhwc"), (2, "nchw")])
FORMATS = pytest.mark.parametrize("data_format", ["nhwc", "nchw"])
# Of those padded by 1, most are not what TensorFlow would call SAME.
SLIDES = list(itertools.product([1, 2, 3], ["same", "valid", 1]))


def random_arrays(net: Network) -> dict[str, np.ndarray]:
    """All of them, biases and statistics too, variances above zero."""
    rng = np.random.default_rng(0)
    arrays = {a.name: rng.normal(size=a.shape).astype(np.float32) for a in net.arrays}
    return {k: np.abs(v) + 0.5 if k.endswith("variance") else v for k, v in arrays.items()}


def model(net: Network, **others: Any) -> tuple[NetworkModel, dict[str, np.ndarray]]:
    arrays = random_arrays(net)
    return NetworkModel(net, arrays, **others), arrays


def output(made: NetworkModel, inputs: np.ndarray, training: bool = False) -> np.ndarray:
    """In a function, since the CPU has channels first only there; channels come last."""
    compute = tf.function(lambda x: made(x, training=training), autograph=False)
    found = compute(tf.constant(inputs)).numpy()
    return np.moveaxis(found, 1, -1) if made.channels_first and found.ndim == 4 else found


def random_floats(shape: tuple[int, ...], samples: int = 2) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(samples, *shape)).astype(np.float32)


def windows(x: np.ndarray, node: Node, window: tuple[int, ...], fill: float) -> np.ndarray:
    """(samples, ...positions, channels, ...window) of the padded inputs."""
    padded = np.pad(x, [(0, 0), *node.settings["pads"], (0, 0)], constant_values=fill)
    axes = tuple(range(1, x.ndim - 1))
    view = np.lib.stride_tricks.sliding_window_view(padded, window, axes)
    return view[(slice(None), *[slice(None, None, node.settings["strides"])] * len(axes))]


@LAYOUTS
@pytest.mark.parametrize(("strides", "padding"), SLIDES)
@pytest.mark.parametrize("kernel", [3, 4])
def test_conv(axes: int, strides: int, padding: str | int, kernel: int, data_format: str) -> None:
    net = Network("net", SHAPES[axes])
    node = net.conv(net.input, "conv", 5, kernel, strides, padding, bias=strides != 2)
    made, arrays = model(net, data_format=data_format)
    x = random_floats(SHAPES[axes])
    seen = windows(x, node, (kernel,) * axes, 0.0)
    taken = tuple(range(seen.ndim - axes, seen.ndim))
    last = seen.ndim - axes - 1  # channels
    expected = np.tensordot(seen, arrays["conv/kernel"], ((*taken, last), tuple(range(axes + 1))))
    expected = expected + arrays.get("conv/bias", 0)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(output(made, x), expected, rtol=1e-4, atol=1e-4)


@LAYOUTS
@pytest.mark.parametrize(("strides", "padding"), SLIDES)
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool(axes: int, strides: int, padding: str | int, window: int, kind: str, data_format: str) -> None:
    """A mean over padding that TensorFlow would place elsewhere is refused, as it would count the zeros."""
    net = Network("net", SHAPES[axes])
    node = getattr(net, f"{kind}_pool")(net.input, window, strides, padding)
    same = getattr(Network("net", SHAPES[axes]), f"{kind}_pool")
    as_same = same(net.input, window, strides, "same").settings["pads"] == node.settings["pads"]
    made = model(net, data_format=data_format)[0]
    x = random_floats(SHAPES[axes]) - 5  # a padding of zeros would win each maximum
    if kind == "avg" and padding == 1 and not as_same:
        with pytest.raises(ValueError, match=r"avg_pool_1.*padding"):
            output(made, x)
        return
    taken = tuple(range(-axes, 0))
    seen = windows(x, node, (window,) * axes, np.nan)
    expected = np.nanmax(seen, taken) if kind == "max" else np.nanmean(seen, taken)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(output(made, x), expected, rtol=1e-5, atol=1e-5)


@FORMATS
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm(scale: bool, data_format: str) -> None:
    """In training by the batch's own statistics, which move the kept ones; in evaluation by those."""
    net = Network("net", SHAPES[2])
    net.batch_norm(net.input, "bn", epsilon=0.01, momentum=0.9, scale=scale)
    made, arrays = model(net, data_format=data_format)
    x = random_floats(SHAPES[2], 4) * 3 + 1
    over = tuple(range(x.ndim - 1))

    def normal(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return (x - mean) / np.sqrt(variance + 0.01) * arrays.get("bn/gamma", 1) + arrays["bn/beta"]

    moving = arrays["bn/moving_mean"], arrays["bn/moving_variance"]
    np.testing.assert_allclose(output(made, x), normal(*moving), rtol=1e-4, atol=1e-4)
    for name, array in read_weights(made, statistics=True).items():
        np.testing.assert_array_equal(array, arrays[name])
    np.testing.assert_allclose(output(made, x, training=True), normal(x.mean(over), x.var(over)), rtol=1e-4, atol=1e-4)
    after = read_weights(made, statistics=True)
    np.testing.assert_allclose(after["bn/moving_mean"], 0.9 * moving[0] + 0.1 * x.mean(over), rtol=1e-5)
    unbiased = x.var(over, ddof=1)
    np.testing.assert_allclose(after["bn/moving_variance"], 0.9 * moving[1] + 0.1 * unbiased, rtol=1e-5)
    assert ("bn/gamma" in after) == scale


@FORMATS
def test_lrn(data_format: str) -> None:
    net = Network("net", (5, 4, 7))
    net.lrn(net.input, radius=2, bias=1.5, alpha=0.3, beta=0.75)
    x = random_floats((5, 4, 7))
    squares = np.pad(x**2, [(0, 0)] * 3 + [(2, 2)])
    sums = sum(squares[..., i : i + 7] for i in range(5))
    expected = x / (1.5 + 0.3 * sums) ** 0.75
    np.testing.assert_allclose(output(model(net, data_format=data_format)[0], x), expected, rtol=1e-5)


@LAYOUTS
def test_other_operations(axes: int, data_format: str) -> None:
    """The operations without a window; flattened, the channels vary fastest in either layout."""
    net = Network("net", SHAPES[axes])
    rectified = net.relu(net.input)
    both = net.concat(net.add(net.input, rectified, rectified), net.pad_channels(net.add(rectified, net.input), 1))
    net.concat(net.global_avg_pool(both), net.dense(net.flatten(net.zero_pad(both, 2)), "dense", 4))
    made, arrays = model(net, data_format=data_format)
    x = random_floats(SHAPES[axes])
    positive = np.maximum(x, 0)
    wide = np.concatenate([x + 2 * positive, np.pad(positive + x, [*[(0, 0)] * (axes + 1), (1, 1)])], -1)
    padded = np.pad(wide, [(0, 0), *[(2, 2)] * axes, (0, 0)])
    dense = padded.reshape(len(x), -1) @ arrays["dense/kernel"] + arrays["dense/bias"]
    expected = np.concatenate([wide.mean(tuple(range(1, axes + 1))), dense], -1)
    np.testing.assert_allclose(output(made, x), expected, rtol=1e-4, atol=1e-4)


def test_dropout() -> None:
    net = Network("net", (1000,))
    net.dropout(net.input, 0.3)
    x = np.ones((5, 1000), np.float32)
    made = model(net)[0]
    found = output(made, x, training=True)
    np.testing.assert_allclose(np.unique(found), [0, 1 / 0.7], rtol=1e-6)
    assert (found == 0).mean() == pytest.approx(0.3, abs=0.05)
    assert (output(made, x) == x).all()
    assert (output(model(net, dropout=False)[0], x, training=True) == x).all()


def residual() -> Network:
    """A little of everything; its first convolution is padded as TensorFlow would not pad it."""
    net = Network("net", (10, 10, 3))
    x = net.relu(net.batch_norm(net.conv(net.input, "conv1", 8, 3, 2, padding=1, bias=False), "bn1"))
    y = net.conv(net.zero_pad(x, 1), "conv2", 8, 3, 1, "valid", bias=False)
    y = net.max_pool(net.relu(net.add(net.batch_norm(y, "bn2"), x)), 3, 2, padding=1)
    y = net.concat(net.lrn(y, 2, 1.0, 0.1, 0.75), net.avg_pool(y, 3, 1, "same"), net.conv(y, "conv3", 4, 3))
    net.dense(net.flatten(y), "dense", 3)
    return net


def outputs_and_gradients(inputs: np.ndarray, **settings: Any) -> dict[str, np.ndarray]:
    made = model(residual(), **settings)[0]

    @tf.function(autograph=False)
    def compute(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            outputs = made(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs))
        return outputs, tape.gradient(loss, [variable.value for variable in made.trainable_variables])

    outputs, gradients = compute(tf.constant(inputs))
    names = [a.name for a in made.network.arrays if a.trainable]
    found = {"outputs": outputs, **dict(zip(names, gradients, strict=True))}
    assert {value.dtype for value in found.values()} == {tf.float32}
    return {name: value.numpy() for name, value in found.items()}


def test_layouts_give_the_same_outputs_and_gradients() -> None:
    first, last = (outputs_and_gradients(random_floats((10, 10, 3)), data_format=layout) for layout in ("nchw", "nhwc"))
    assert len(last) == 11
    for name, values in last.items():
        assert np.abs(values).max() > 0
        np.testing.assert_allclose(first[name], values, rtol=0, atol=1e-5 * np.abs(values).max(), err_msg=name)


@FORMATS
def test_bfloat16_is_near_float32(data_format: str) -> None:
    """Eight bits of mantissa, through a few layers; weights, statistics, outputs and gradients stay float32."""
    x = random_floats((10, 10, 3))
    near, exact = (outputs_and_gradients(x, compute_dtype=t, data_format=data_format) for t in ("bfloat16", "float32"))
    for name, values in exact.items():
        away = np.abs(near[name] - values).max() / np.abs(values).max()
        assert 0 < away < 0.1, name


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16", "float16"])
def test_bytes_are_scaled_to_minus_one_to_one(compute_dtype: str) -> None:
    """Bit by bit, and not in a function, where TensorFlow multiplies by the inverse instead of dividing."""
    net = Network("net", (4, 4, 3))
    net.dense(net.flatten(net.input), "dense", 3)
    made = model(net, compute_dtype=compute_dtype)[0]
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), np.uint8)
    as_floats = (pixels / np.float32(127.5) - 1).astype(np.float32)
    np.testing.assert_array_equal(made(tf.constant(pixels)).numpy(), made(tf.constant(as_floats)).numpy())


def test_every_operation_of_networks_is_known() -> None:
    methods = {name for name, value in vars(Network).items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(OPERATIONS) == methods - {"count"}


def test_read_weights() -> None:
    """Under their neutral names and in their order, as copies; moving statistics if asked for."""
    made, arrays = model(residual())
    assert list(read_weights(made)) == [a.name for a in made.network.arrays if a.trainable]
    back = read_weights(made, statistics=True)
    assert list(back) == list(arrays)
    for variable in made.variables:
        variable.assign_add(tf.ones_like(variable))
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name, strict=True)
        assert np.abs(read_weights(made, statistics=True)[name] - array).min() > 0.5
