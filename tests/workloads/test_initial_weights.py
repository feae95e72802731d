"""Initial weights: limits from the fans, and each array from its own name."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.workloads.weights import initial_weights

# shape, fan_in, fan_out by hand
FANS = [((300, 40), 300, 40), ((7, 16, 24), 112, 168), ((3, 5, 8, 32), 120, 480)]


@pytest.mark.parametrize(("shape", "fan_in", "fan_out"), FANS)
@pytest.mark.parametrize("init", ["he_uniform", "glorot_uniform"])
def test_uniform_within_its_limit(shape, fan_in, fan_out, init):
    limit = math.sqrt(6 / fan_in) if init == "he_uniform" else math.sqrt(6 / (fan_in + fan_out))
    kernel = initial_weights([("kernel", shape, init)], seed=0)["kernel"]
    assert kernel.shape == shape and kernel.dtype == np.float32
    assert 0.98 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
    assert abs(kernel.mean()) < 5 * limit / math.sqrt(3 * kernel.size)
    assert kernel.std() == pytest.approx(limit / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("shape", [(300, 200), (60_000,)])
def test_normal_with_its_deviation(shape):
    array = initial_weights([("positions", shape, "normal:0.02")], 0)["positions"]
    assert array.dtype == np.float32 and array.shape == shape
    assert array.std() == pytest.approx(0.02, rel=0.02) and abs(array.mean()) < 4e-4
    inside = (np.abs(array) < 0.02).mean()
    assert inside == pytest.approx(0.6827, abs=0.01)  # of a normal distribution, within one deviation


def test_zeros_and_ones():
    weights = initial_weights([("bias", (4,), "zeros"), ("gamma", (3,), "ones")], seed=0)
    assert weights["bias"].tolist() == [0] * 4 and weights["gamma"].tolist() == [1] * 3
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


@given(st.permutations([("a", (3, 4), "he_uniform"), ("b", (3, 4), "he_uniform"), ("c", (2,), "ones")]))
def test_order_does_not_matter(layers):
    weights, sorted_weights = initial_weights(layers, 1), initial_weights(sorted(layers), 1)
    assert list(weights) == [name for name, _, _ in layers]
    assert all(np.array_equal(weights[name], sorted_weights[name]) for name in weights)
    assert not np.array_equal(weights["a"], weights["b"])
    assert not np.array_equal(weights["a"], initial_weights(layers, 2)["a"])


def test_equal_in_every_process():
    code = (
        "from scalebench.workloads.weights import initial_weights as w;"
        "print(w([('dense/kernel', (2, 3), 'glorot_uniform')], 3)['dense/kernel'].tobytes().hex())"
    )
    texts = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    here = initial_weights([("dense/kernel", (2, 3), "glorot_uniform")], 3)["dense/kernel"]
    assert texts == {here.tobytes().hex()}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("a", (2, 2), "he_normal")], "unknown init he_normal"),
        ([("a", (2,), "he_uniform")], "no fan-in"),
        ([("a", (2,), "ones"), ("a", (3,), "ones")], "two layers are named a"),
    ],
)
def test_mistakes(layers, message):
    with pytest.raises(ValueError, match=message):
        initial_weights(layers, 0)
