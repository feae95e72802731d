"""The models as data: parameters and operations."""

import pytest

from scalebench.workloads import models
from scalebench.workloads.weights import initial_weights


def test_materials_cnn_is_that_of_the_thesis():
    assert models.parameters("materials_cnn") == 153_441
    weights = initial_weights(models.layers("materials_cnn"), seed=0)
    assert {name: array.shape for name, array in weights.items()} == {
        "conv1/kernel": (7, 3, 16),
        "conv1/bias": (16,),
        "conv2/kernel": (7, 16, 24),
        "conv2/bias": (24,),
        "dense1/kernel": (1200, 125),
        "dense1/bias": (125,),
        "dense2/kernel": (125, 2),
        "dense2/bias": (2,),
    }
    assert sum(array.size for array in weights.values()) == 153_441
    assert not any(array.any() for name, array in weights.items() if name.endswith("bias"))


def test_flops_of_materials_cnn():
    forward_macs = 200 * 7 * 3 * 16 + 100 * 7 * 16 * 24 + 1200 * 125 + 125 * 2
    assert models.flops_per_sample("materials_cnn") == 6 * forward_macs == 2_917_500


@pytest.mark.parametrize("ask", [models.layers, models.flops_per_sample, models.parameters])
def test_unknown_model(ask):
    with pytest.raises(ValueError, match=r"model vgg is unknown here: materials_cnn"):
        ask("vgg")
