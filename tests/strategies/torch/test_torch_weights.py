"""Neutral names and layouts into torch and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scalebench.strategies.torch.model import NetworkModule, load_weights, read_weights
from scalebench.workloads import networks
from scalebench.workloads.network import Network


def cnn(positions: int = 200) -> Network:
    return networks.build_by_name("materials_cnn", (positions, 3), 2)


def drawn(net: Network) -> dict[str, np.ndarray]:
    """Of every array, biases too, so that none of them can be mixed up unseen."""
    rng = np.random.default_rng(1)
    return {array.name: rng.normal(size=array.shape).astype(np.float32) for array in net.arrays}


def test_there_and_back() -> None:
    net = cnn()
    model, arrays = NetworkModule(net), drawn(net)
    load_weights(model, arrays)
    back = read_weights(model)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name, strict=True)


def test_read_weights_are_copies() -> None:
    net = cnn()
    model = NetworkModule(net)
    load_weights(model, drawn(net))
    before = read_weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(np.abs(read_weights(model)[name] - array).min() > 0.5 for name, array in before.items())


def test_layout_of_a_2d_convolution_and_statistics() -> None:
    net = Network("net", (6, 6, 2))
    net.batch_norm(net.conv(net.input, "block1/conv", 5, (3, 4), bias=False), "block1/bn")
    model, arrays = NetworkModule(net), drawn(net)
    load_weights(model, arrays)
    weight = getattr(model, "block1/conv").weight
    assert weight[4, 1, 2, 3].item() == arrays["block1/conv/kernel"][2, 3, 1, 4]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    norm = getattr(model, "block1/bn")
    for torchs, neutral in {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean"}.items():
        np.testing.assert_array_equal(getattr(norm, torchs).detach().numpy(), arrays[f"block1/bn/{neutral}"])
    assert list(read_weights(model)) == ["block1/conv/kernel", "block1/bn/gamma", "block1/bn/beta"]
    assert read_weights(model, statistics=True).keys() == arrays.keys()


def test_weights_that_do_not_fit() -> None:
    net = cnn()
    model, arrays = NetworkModule(net), drawn(net)
    with pytest.raises(ValueError, match="dense3/bias"):
        load_weights(model, {**arrays, "dense3/bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="conv2/bias"):
        load_weights(model, {k: v for k, v in arrays.items() if k != "conv2/bias"})
    with pytest.raises(ValueError, match="dense1/kernel"):
        load_weights(NetworkModule(cnn(100)), arrays)
