"""Operations against numpy, the plan of the forward pass, and every network that there is."""

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
    """The network with arrays all of which are drawn: biases and statistics too, variances above zero."""
    rng = np.random.default_rng(0)
    arrays = {a.name: rng.normal(size=a.shape).astype(np.float32) for a in net.arrays}
    arrays = {k: np.abs(v) + 0.5 if k.endswith("variance") else v for k, v in arrays.items()}
    made = NetworkModule(net, **others)
    load_weights(made, arrays)
    return made, arrays


def output(made: NetworkModule, inputs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found = made(torch.from_numpy(inputs))
    return found.movedim(1, -1).numpy()


def drawn(shape: tuple[int, ...], samples: int = 2) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(samples, *shape)).astype(np.float32)


def windows(x: np.ndarray, node: Node, window: tuple[int, ...], fill: float) -> np.ndarray:
    """(samples, ...positions, channels, ...window) of the padded inputs."""
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
    seen = windows(x, node, (kernel,) * axes, 0.0)
    taken = tuple(range(seen.ndim - axes, seen.ndim))
    last = seen.ndim - axes - 1  # channels
    expected = np.tensordot(seen, arrays["conv/kernel"], ((*taken, last), tuple(range(axes + 1))))
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
    seen = windows(x, node, (window,) * axes, np.nan)
    expected = np.nanmax(seen, taken) if kind == "max" else np.nanmean(seen, taken)
    assert expected.shape[1:] == node.shape
    np.testing.assert_allclose(output(module(net, data_format=data_format)[0], x), expected, rtol=1e-5, atol=1e-5)


@FORMATS
@AXES
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm(axes: int, scale: bool, data_format: str) -> None:
    """In training by the batch's own statistics, which move the kept ones; in evaluation by those."""
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
    """The last sample of an epoch may come alone: it gets the offset, and teaches the statistics nothing."""
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
def test_the_rest(axes: int, data_format: str) -> None:
    """The operations without a window; the inputs of most have a second reader."""
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
    found = output(made, x)
    np.testing.assert_allclose(np.unique(found), [0, 1 / 0.7], rtol=1e-6)
    assert (found == 0).mean() == pytest.approx(0.3, abs=0.05)
    assert (output(made.eval(), x) == x).all()
    assert (output(module(net, dropout=False)[0], x) == x).all()


def residual() -> Network:
    """A little of everything that the plan rewrites: padding before a convolution, activations in place."""
    net = Network("net", (9, 9, 3))
    x = net.relu(net.batch_norm(net.conv(net.zero_pad(net.input, 2), "conv1", 8, 3, 2, "valid"), "bn1"))
    y = net.conv(net.zero_pad(x, 1), "conv2", 8, 3, 1, "valid")
    y = net.relu(net.add(net.batch_norm(y, "bn2"), x))
    shared = net.zero_pad(y, 1)
    y = net.add(net.conv(shared, "conv3", 4, 3, 1, "valid"), net.conv(shared, "conv4", 4, 3, 1, "valid"))
    net.dense(net.flatten(net.concat(net.relu(y), y)), "dense", 3)
    return net


def test_plan() -> None:
    """Padding moves into a convolution that alone reads it; relu overwrites what nobody else reads."""
    made = module(residual())[0]
    steps = [step.module for step in made.plan]
    assert made.conv1.padding == (2, 2) and made.conv2.padding == (1, 1) and made.conv3.padding == (0, 0)
    assert [name for name in steps if name.startswith("zero_pad")] == ["zero_pad_10"]
    in_place = {name: made.get_submodule(name).inplace for name in steps if name.startswith("relu")}
    assert list(in_place.values()) == [True, True, False]
    spent = [name for step in made.plan for name in step.spent]
    assert sorted(spent) == sorted({"input", *steps} - {"dense"})


@pytest.mark.parametrize("before", ["input", "relu"])
def test_what_others_need_is_not_overwritten(before: str) -> None:
    """The batch belongs to whoever feeds it, and an activation's output to its backward pass."""
    net = Network("net", (6,))
    x = net.relu(net.dense(net.input, "dense", 6)) if before == "relu" else net.input
    net.relu(net.add(net.relu(x), net.relu(x)))
    lone = Network("lone", (6,))
    lone.relu(lone.relu(lone.dense(lone.input, "dense", 6)) if before == "relu" else lone.input)
    inputs = torch.from_numpy(drawn((6,)))
    for one in (net, lone):
        kept = inputs.clone().requires_grad_()
        module(one)[0](kept.clone() if before == "relu" else kept).sum().backward()
        assert torch.equal(kept, inputs)


@FORMATS
def test_gradients_are_those_of_the_plain_way(data_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against autograd over the same network with nothing rewritten."""
    x = torch.from_numpy(drawn((9, 9, 3)))
    found = gradients(module(residual(), data_format=data_format)[0], x)
    monkeypatch.setattr("scalebench.strategies.torch.model._padding_inside", list)
    monkeypatch.setattr("scalebench.strategies.torch.model._overwriting", list)
    expected = gradients(module(residual(), data_format="nchw")[0], x)
    assert found.keys() == expected.keys() and len(found) == 14
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-6)


def gradients(made: NetworkModule, x: torch.Tensor) -> dict[str, torch.Tensor]:
    made.double()(x.double()).square().sum().backward()
    return {name: parameter.grad for name, parameter in made.named_parameters()}


def test_bytes_become_minus_one_to_one() -> None:
    made = module(residual())[0].eval()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 9, 3), np.uint8)
    as_floats = (pixels / np.float32(127.5) - 1).astype(np.float32)
    np.testing.assert_array_equal(output(made, pixels), output(made, as_floats))


def test_images_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch lies in memory as channels_last already, and every activation stays so."""
    made = module(residual())[0]
    seen = []
    for name in ("conv1", "conv2", "conv3"):
        made.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.from_numpy(drawn((9, 9, 3)))
    made(x)
    assert seen[0].data_ptr() == x.data_ptr()
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in seen)


SMALL = {"inception_v3": 75, "alexnet": 67}  # pixels; the others go down to 32


def small(name: str) -> Network:
    """The network on the smallest inputs that make sense."""
    model = model_spec(name)
    shape = list(model.input_shape)
    if len(shape) == 3 and shape[0] > 64:
        shape[:2] = [SMALL.get(name, 32)] * 2
    return networks.build_by_name(name, shape, model.outputs, model.options)


LARGE = ("resnet101", "resnet152", "vgg16", "densenet100_k12")
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in networks.NETWORKS]


@pytest.mark.parametrize("name", EVERY)
def test_every_network(name: str) -> None:
    """Its size, its arrays there and back, its output, and a gradient for everything that is trained."""
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
    found = made(torch.from_numpy(drawn(net.input.shape, 3)) if tokens is None else tokens)
    assert found.shape == (3, net.output.shape[-1], *net.output.shape[:-1])
    torch.nn.functional.mse_loss(found, torch.rand(found.shape)).backward()
    for key, parameter in made.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key
        assert parameter.grad.stride() == parameter.stride(), f"{key}: a fused optimizer would mix it up"
