"""Networks in torch: operations against numpy, the plan of the forward pass, weights, and every network of the zoo."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from scalebench.strategies.torch.model import NetworkModule, load_weights, read_weights
from scalebench.workloads import networks
from scalebench.workloads.network import Network, Node
from scalebench.workloads.weights import initial_weights
from tests.strategies.torch.conftest import model_spec

SHAPES = {1: (11, 3), 2: (9, 12, 3)}  # positions, channels; height, width, channels
AXES = pytest.mark.parametrize("axes", [1, 2])
FORMATS = pytest.mark.parametrize("data_format", ["nhwc", "nchw"])
SLIDES = list(itertools.product([1, 2, 3], ["same", "valid", 1]))


def module(net: Network, **others: Any) -> tuple[NetworkModule, dict[str, np.ndarray]]:
    """Return the module with random arrays, including biases and statistics, and these arrays."""
    rng = np.random.default_rng(0)
    arrays = {a.name: rng.normal(size=a.shape).astype(np.float32) for a in net.arrays}
    arrays = {k: np.abs(v) + 0.5 if k.endswith("variance") else v for k, v in arrays.items()}
    made = NetworkModule(net, **others)
    load_weights(made, arrays)
    return made, arrays


def output(made: NetworkModule, inputs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        actual = made(torch.from_numpy(inputs))
    return actual.movedim(1, -1).numpy()


def drawn(shape: tuple[int, ...], samples: int = 2) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(samples, *shape)).astype(np.float32)


def windows(x: np.ndarray, node: Node, window: tuple[int, ...], fill: float) -> np.ndarray:
    """Return (samples, ...positions, channels, ...window) of the padded inputs."""
    padded = np.pad(x, [(0, 0), *node.settings["pads"], (0, 0)], constant_values=fill)
    axes = tuple(range(1, x.ndim - 1))
    view = np.lib.stride_tricks.sliding_window_view(padded, window, axes)
    return view[(slice(None), *[slice(None, None, node.settings["strides"])] * len(axes))]


@FORMATS
@AXES
@pytest.mark.parametrize(("strides", "padding"), SLIDES)
@pytest.mark.parametrize("kernel", [1, 3, 4])
def test_conv(axes: int, strides: int, padding: str | int, kernel: int, data_format: str) -> None:
    net = Network("net", SHAPES[axes])
    node = net.conv(net.input, "conv", 5, kernel, strides, padding, bias=strides != 2)
    made, arrays = module(net, data_format=data_format)
    x = drawn(SHAPES[axes])
    observed = windows(x, node, (kernel,) * axes, 0.0)
    taken = tuple(range(observed.ndim - axes, observed.ndim))
    last = observed.ndim - axes - 1  # channels
    expected = np.tensordot(observed, arrays["conv/kernel"], ((*taken, last), tuple(range(axes + 1))))
    expected = expected + arrays.get("conv/bias", 0)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(output(made, x), expected, rtol=1e-4, atol=1e-4)


@FORMATS
@AXES
@pytest.mark.parametrize(("strides", "padding"), SLIDES)
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool(axes: int, strides: int, padding: str | int, window: int, kind: str, data_format: str) -> None:
    net = Network("net", SHAPES[axes])
    node = getattr(net, f"{kind}_pool")(net.input, window, strides, padding)
    x = drawn(SHAPES[axes]) - 5  # a padding of zeros would win each maximum
    taken = tuple(range(-axes, 0))
    observed = windows(x, node, (window,) * axes, np.nan)
    expected = np.nanmax(observed, taken) if kind == "max" else np.nanmean(observed, taken)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(output(module(net, data_format=data_format)[0], x), expected, rtol=1e-5, atol=1e-5)


@FORMATS
@AXES
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm(axes: int, scale: bool, data_format: str) -> None:
    """Training uses the batch's statistics and updates the moving ones, which evaluation uses."""
    net = Network("net", SHAPES[axes])
    net.batch_norm(net.input, "bn", epsilon=0.01, momentum=0.9, scale=scale)
    made, arrays = module(net, data_format=data_format)
    x = drawn(SHAPES[axes], 4) * 3 + 1
    over = tuple(range(x.ndim - 1))

    def normal(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return (x - mean) / np.sqrt(variance + 0.01) * arrays.get("bn/gamma", 1) + arrays["bn/beta"]

    made.eval()
    moving = arrays["bn/moving_mean"], arrays["bn/moving_variance"]
    np.testing.assert_allclose(output(made, x), normal(*moving), rtol=1e-4, atol=1e-4)
    made.train()
    np.testing.assert_allclose(output(made, x), normal(x.mean(over), x.var(over)), rtol=1e-4, atol=1e-4)
    after = read_weights(made, statistics=True)
    np.testing.assert_allclose(after["bn/moving_mean"], 0.9 * moving[0] + 0.1 * x.mean(over), rtol=1e-5)
    unbiased = x.var(over, ddof=1)
    np.testing.assert_allclose(after["bn/moving_variance"], 0.9 * moving[1] + 0.1 * unbiased, rtol=1e-5)
    assert ("bn/gamma" in after) == scale


def test_batch_norm_of_single_values() -> None:
    """The last batch of an epoch may have one sample: its output is the offset, and statistics stay as they are."""
    net = Network("net", (6,))
    net.batch_norm(net.input, "bn")
    made, arrays = module(net)
    np.testing.assert_allclose(output(made, drawn((6,), 1))[0], arrays["bn/beta"], atol=1e-6)
    np.testing.assert_array_equal(
        read_weights(made, statistics=True)["bn/moving_variance"], arrays["bn/moving_variance"]
    )


@FORMATS
def test_lrn(data_format: str) -> None:
    net = Network("net", (5, 4, 7))
    net.lrn(net.input, radius=2, bias=1.5, alpha=0.3, beta=0.75)
    x = drawn((5, 4, 7))
    squares = np.pad(x**2, [(0, 0)] * 3 + [(2, 2)])
    sums = sum(squares[..., i : i + 7] for i in range(5))
    expected = x / (1.5 + 0.3 * sums) ** 0.75
    np.testing.assert_allclose(output(module(net, data_format=data_format)[0], x), expected, rtol=1e-5)


@FORMATS
@AXES
def test_operations_without_a_window(axes: int, data_format: str) -> None:
    """These operations have no window; the inputs of most of them have a second reader."""
    net = Network("net", SHAPES[axes])
    rectified = net.relu(net.input)
    both = net.concat(net.add(net.input, rectified, rectified), net.pad_channels(rectified, 1))
    net.concat(net.global_avg_pool(both), net.dense(net.flatten(net.zero_pad(both, 2)), "dense", 4))
    made, arrays = module(net, data_format=data_format)
    x = drawn(SHAPES[axes])
    positive = np.maximum(x, 0)
    wide = np.concatenate([x + 2 * positive, np.pad(positive, [*[(0, 0)] * (axes + 1), (1, 1)])], -1)
    padded = np.pad(wide, [(0, 0), *[(2, 2)] * axes, (0, 0)])
    dense = padded.reshape(len(x), -1) @ arrays["dense/kernel"] + arrays["dense/bias"]
    expected = np.concatenate([wide.mean(tuple(range(1, axes + 1))), dense], -1)
    before = x.copy()
    np.testing.assert_allclose(output(made, x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x, before)


def test_dropout() -> None:
    net = Network("net", (1000,))
    net.dropout(net.input, 0.3)
    x = np.ones((5, 1000), np.float32)
    made = module(net)[0]
    actual = output(made, x)
    np.testing.assert_allclose(np.unique(actual), [0, 1 / 0.7], rtol=1e-6)
    assert (actual == 0).mean() == pytest.approx(0.3, abs=0.05)
    assert (output(made.eval(), x) == x).all()
    assert (output(module(net, dropout=False)[0], x) == x).all()


def residual() -> Network:
    """Return a network with everything that the plan rewrites: padding before convolutions and in-place activations."""
    net = Network("net", (9, 9, 3))
    x = net.relu(net.batch_norm(net.conv(net.zero_pad(net.input, 2), "conv1", 8, 3, 2, "valid"), "bn1"))
    y = net.conv(net.zero_pad(x, 1), "conv2", 8, 3, 1, "valid")
    y = net.relu(net.add(net.batch_norm(y, "bn2"), x))
    shared = net.zero_pad(y, 1)
    y = net.add(net.conv(shared, "conv3", 4, 3, 1, "valid"), net.conv(shared, "conv4", 4, 3, 1, "valid"))
    net.dense(net.flatten(net.concat(net.relu(y), y)), "dense", 3)
    return net


def test_plan() -> None:
    """Padding moves into a convolution that is its only reader; relu overwrites inputs without other readers."""
    made = module(residual())[0]
    steps = [step.module for step in made.plan]
    assert made.conv1.padding == (2, 2) and made.conv2.padding == (1, 1) and made.conv3.padding == (0, 0)
    assert [name for name in steps if name.startswith("zero_pad")] == ["zero_pad_10"]
    in_place = {name: made.get_submodule(name).inplace for name in steps if name.startswith("relu")}
    assert list(in_place.values()) == [True, True, False]
    spent = [name for step in made.plan for name in step.last_reads]
    assert sorted(spent) == sorted({"input", *steps} - {"dense"})


@pytest.mark.parametrize("before", ["input", "relu"])
def test_values_with_other_readers_are_not_overwritten(before: str) -> None:
    """The batch belongs to the feed, and the backward pass of an activation reads its output."""
    net = Network("net", (6,))
    x = net.relu(net.dense(net.input, "dense", 6)) if before == "relu" else net.input
    net.relu(net.add(net.relu(x), net.relu(x)))
    lone = Network("lone", (6,))
    lone.relu(lone.relu(lone.dense(lone.input, "dense", 6)) if before == "relu" else lone.input)
    inputs = torch.from_numpy(drawn((6,)))
    for network in (net, lone):
        kept = inputs.clone().requires_grad_()
        module(network)[0](kept.clone() if before == "relu" else kept).sum().backward()
        assert torch.equal(kept, inputs)


@FORMATS
def test_gradients_are_those_without_rewriting(data_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with autograd over the same network without rewriting."""
    x = torch.from_numpy(drawn((9, 9, 3)))
    actual = gradients(module(residual(), data_format=data_format)[0], x)
    monkeypatch.setattr("scalebench.strategies.torch.model._merge_padding", list)
    monkeypatch.setattr("scalebench.strategies.torch.model._mark_overwrites", list)
    expected = gradients(module(residual(), data_format="nchw")[0], x)
    assert actual.keys() == expected.keys() and len(actual) == 14
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-6)


def gradients(made: NetworkModule, x: torch.Tensor) -> dict[str, torch.Tensor]:
    made.double()(x.double()).square().sum().backward()
    return {name: parameter.grad for name, parameter in made.named_parameters()}


def test_bytes_become_minus_one_to_one() -> None:
    made = module(residual())[0].eval()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), np.uint8)
    as_floats = (pixels / np.float32(127.5) - 1).astype(np.float32)
    np.testing.assert_array_equal(output(made, pixels), output(made, as_floats))


def test_images_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is channels_last in memory already, and every activation stays so."""
    made = module(residual())[0]
    observed = []
    for name in ("conv1", "conv2", "conv3"):
        made.get_submodule(name).register_forward_pre_hook(lambda _, args: observed.append(args[0]))
    x = torch.from_numpy(drawn((9, 9, 3)))
    made(x)
    assert observed[0].data_ptr() == x.data_ptr()
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in observed)


SMALL = {"inception_v3": 75, "alexnet": 67}  # pixels; the others go down to 32


def small(name: str) -> Network:
    """Build the network for the smallest useful inputs."""
    model = model_spec(name)
    shape = list(model.input_shape)
    if len(shape) == 3 and shape[0] > 64:
        shape[:2] = [SMALL.get(name, 32)] * 2
    return networks.build_by_name(name, shape, model.outputs, model.options)


LARGE = ("resnet101", "resnet152", "vgg16", "densenet100_k12")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in networks.NETWORKS]


@pytest.mark.parametrize("name", EVERY)
def test_every_network(name: str) -> None:
    """Check the size, the arrays that are loaded and read, the output, and the gradients of all trained arrays."""
    net = small(name)
    made, arrays = module(net)
    assert sum(p.numel() for p in made.parameters()) == net.parameters
    back = read_weights(made, statistics=True)
    assert list(back) == list(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(back[key], array, err_msg=key, strict=True)
    assert list(read_weights(made)) == [a.name for a in net.arrays if a.trainable]
    load_weights(made, initial_weights(((a.name, a.shape, a.init) for a in net.arrays), 0))
    tokens = torch.arange(3 * net.input.shape[0]).reshape(3, -1) if name == "gpt_small" else None
    actual = made(torch.from_numpy(drawn(net.input.shape, 3)) if tokens is None else tokens)
    assert actual.shape == (3, net.output.shape[-1], *net.output.shape[:-1])
    torch.nn.functional.mse_loss(actual, torch.rand(actual.shape)).backward()
    for key, parameter in made.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key
        assert parameter.grad.stride() == parameter.stride(), f"{key}: a fused optimizer would mix it up"


def cnn(positions: int = 200) -> Network:
    return networks.build_by_name("materials_cnn", (positions, 3), 2)


def drawn_weights(net: Network) -> dict[str, np.ndarray]:
    """Return random values for every array, including biases, so that no two arrays can be confused."""
    rng = np.random.default_rng(1)
    return {array.name: rng.normal(size=array.shape).astype(np.float32) for array in net.arrays}


def test_read_weights_are_copies() -> None:
    net = cnn()
    model = NetworkModule(net)
    load_weights(model, drawn_weights(net))
    before = read_weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(np.abs(read_weights(model)[name] - array).min() > 0.5 for name, array in before.items())


def test_layout_of_a_2d_convolution_and_statistics() -> None:
    net = Network("net", (6, 6, 2))
    net.batch_norm(net.conv(net.input, "block1/conv", 5, (3, 4), bias=False), "block1/bn")
    model, arrays = NetworkModule(net), drawn_weights(net)
    load_weights(model, arrays)
    weight = getattr(model, "block1/conv").weight
    assert weight[4, 1, 2, 3].item() == arrays["block1/conv/kernel"][2, 3, 1, 4]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    norm = getattr(model, "block1/bn")
    for torchs, neutral in {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean"}.items():
        np.testing.assert_array_equal(getattr(norm, torchs).detach().numpy(), arrays[f"block1/bn/{neutral}"])
    assert list(read_weights(model)) == ["block1/conv/kernel", "block1/bn/gamma", "block1/bn/beta"]
    assert read_weights(model, statistics=True).keys() == arrays.keys()


def test_mismatching_weights_are_named() -> None:
    net = cnn()
    model, arrays = NetworkModule(net), drawn_weights(net)
    with pytest.raises(ValueError, match="dense3/bias"):
        load_weights(model, {**arrays, "dense3/bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="conv2/bias"):
        load_weights(model, {k: v for k, v in arrays.items() if k != "conv2/bias"})
    with pytest.raises(ValueError, match="dense1/kernel"):
        load_weights(NetworkModule(cnn(100)), arrays)
