"""The materials CNN in torch: its size, its weights under neutral names, and its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from scalebench.adapters.torch import models
from scalebench.spec import InputError
from scalebench.workloads.models import layers, parameters
from scalebench.workloads.weights import initial_weights

NAME, SHAPE = "materials_cnn", (200, 3)


def drawn(seed: int = 1) -> dict[str, np.ndarray]:
    """Weights of every array, biases too, so that none of them can be mixed up unseen."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape, _ in layers(NAME)}


def test_parameters_and_shapes() -> None:
    model = models.build(NAME, SHAPE)
    assert sum(p.numel() for p in model.parameters()) == parameters(NAME) == 153441
    assert model(torch.zeros(5, *SHAPE)).shape == (5, len(model.TARGETS))


def test_every_parameter_gets_a_gradient() -> None:
    model = models.build(NAME, SHAPE)
    models.load_weights(model, initial_weights(layers(NAME), 0))
    functional.mse_loss(model(torch.randn(8, *SHAPE)), torch.rand(8, 2)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_weights_survive_the_round_trip() -> None:
    model, arrays = models.build(NAME, SHAPE), drawn()
    models.load_weights(model, arrays)
    back = models.read_weights(model)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name, strict=True)


def test_read_weights_are_copies() -> None:
    model = models.build(NAME, SHAPE)
    before = models.read_weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(np.abs(models.read_weights(model)[name] - array).min() > 0.5 for name, array in before.items())


def test_layout_of_a_2d_convolution() -> None:
    model = torch.nn.Sequential()
    model.add_module("conv", torch.nn.Conv2d(2, 5, (3, 4)))
    kernel = np.random.default_rng(0).normal(size=(3, 4, 2, 5)).astype(np.float32)
    models.load_weights(model, {"conv/kernel": kernel, "conv/bias": np.zeros(5, np.float32)})
    assert model.conv.weight[4, 1, 2, 3].item() == kernel[2, 3, 1, 4]
    np.testing.assert_array_equal(models.read_weights(model)["conv/kernel"], kernel)


def test_weights_that_do_not_fit() -> None:
    model, arrays = models.build(NAME, SHAPE), drawn()
    with pytest.raises(ValueError, match="dense3/bias"):
        models.load_weights(model, {**arrays, "dense3/bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="conv2/bias"):
        models.load_weights(model, {k: v for k, v in arrays.items() if k != "conv2/bias"})
    with pytest.raises(ValueError, match="dense1/kernel"):
        models.load_weights(models.build(NAME, (100, 3)), arrays)


def test_unknown_model() -> None:
    with pytest.raises(InputError, match="materials_cnn"):
        models.build("materials_cn", SHAPE)


def test_forward_against_numpy() -> None:
    """Neutral layout, written out: what Keras' layers compute, channels last."""
    shape = (9, 3)  # odd, so that each pooling drops a position
    rng = np.random.default_rng(2)
    shapes = {name: shape for name, shape, _ in layers(NAME)} | {"dense1/kernel": (2 * 24, 125)}
    arrays = {name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in shapes.items()}
    model = models.build(NAME, shape)
    models.load_weights(model, arrays)
    inputs = rng.normal(size=(2, *shape)).astype(np.float32)

    def conv(x: np.ndarray, layer: str) -> np.ndarray:
        kernel, bias = arrays[f"{layer}/kernel"], arrays[f"{layer}/bias"]
        padded = np.pad(x, ((3, 3), (0, 0)))
        rows = [np.tensordot(padded[p : p + 7], kernel, ((0, 1), (0, 1))) + bias for p in range(len(x))]
        return np.maximum(np.stack(rows), 0)

    def pool(x: np.ndarray) -> np.ndarray:
        return np.stack([np.maximum(x[2 * i], x[2 * i + 1]) for i in range(len(x) // 2)])

    def expected(x: np.ndarray) -> np.ndarray:
        x = pool(conv(pool(conv(x, "conv1")), "conv2")).reshape(-1)
        x = np.maximum(x @ arrays["dense1/kernel"] + arrays["dense1/bias"], 0)
        return x @ arrays["dense2/kernel"] + arrays["dense2/bias"]

    with torch.no_grad():
        found = model(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(found, np.stack([expected(x) for x in inputs]), rtol=1e-5, atol=1e-5)
