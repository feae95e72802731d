"""Operations of transformers against numpy, and gradients of tables; full models: test_framework_parity.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from scalebench.strategies.tensorflow import optimizer
from scalebench.strategies.tensorflow.model import NetworkModel, lookup_rows
from scalebench.workloads.network import Network

RNG = np.random.default_rng(0)


def output(net: Network, inputs: np.ndarray, **settings: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    arrays = {a.name: RNG.normal(size=a.shape).astype(np.float32) for a in net.arrays}
    return NetworkModel(net, arrays, **settings)(tf.constant(inputs)).numpy(), arrays


def random_floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_embeddings_and_positions(dtype: Any) -> None:
    net = Network("net", (5,))
    net.positions(net.embedding(net.input, "tokens", 11, 6), "places")
    inputs = RNG.integers(0, 11, (3, 5)).astype(dtype)
    found, arrays = output(net, inputs)
    np.testing.assert_allclose(found, arrays["tokens/embeddings"][inputs] + arrays["places/embeddings"], rtol=1e-6)


def test_large_indices_are_looked_up_with_bfloat16() -> None:
    """As floats of 16 bits they would be others: 257 is none."""
    net = Network("net", (2,))
    net.embedding(net.input, "tokens", 300, 4)
    found, arrays = output(net, np.array([[257, 299]], np.int32), compute_dtype="bfloat16")
    np.testing.assert_allclose(found[0], arrays["tokens/embeddings"][[257, 299]], rtol=1e-2)


def test_the_gradient_of_a_table_is_dense() -> None:
    table, rows = (
        tf.Variable(random_floats(7, 3)),
        tf.constant([[1, 4, 1], [6, 1, 0]]),
    )
    upstream = tf.constant(random_floats(2, 3, 3))
    with tf.GradientTape(persistent=True) as tape:
        ours = tf.reduce_sum(lookup_rows(tf.convert_to_tensor(table), rows) * upstream)
        expected_value = tf.reduce_sum(tf.gather(table, rows) * upstream)
    found, wanted = tape.gradient(ours, table), tape.gradient(expected_value, table)
    assert isinstance(wanted, tf.IndexedSlices) and tf.is_tensor(found) and not isinstance(found, tf.IndexedSlices)
    np.testing.assert_allclose(found.numpy(), tf.convert_to_tensor(wanted).numpy(), rtol=1e-6)


def test_layer_norm() -> None:
    net = Network("net", (5, 6))
    net.layer_norm(net.input, "norm", epsilon=0.1)
    x = random_floats(2, 5, 6)
    found, arrays = output(net, x)
    centred = x - x.mean(-1, keepdims=True)
    wanted = centred / np.sqrt(x.var(-1, keepdims=True) + 0.1) * arrays["norm/gamma"] + arrays["norm/beta"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_gelu_uses_the_tanh_approximation() -> None:
    net = Network("net", (5, 6))
    net.gelu(net.input)
    x = 2 * random_floats(2, 5, 6)
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(output(net, x)[0], wanted, rtol=1e-4, atol=1e-6)


def test_attention() -> None:
    net = Network("net", (5, 12))
    query, key, value = (net.dense(net.input, name, 6, bias=False) for name in ("query", "key", "value"))
    net.attention(query, key, value, "attention", heads=2)
    x = random_floats(3, 5, 12)
    found, arrays = output(net, x)
    q, k, v = (x @ arrays[f"{name}/kernel"] for name in ("query", "key", "value"))
    for head in (slice(0, 3), slice(3, 6)):
        for place in range(5):
            products = np.einsum("sc,stc->st", q[:, place, head], k[:, : place + 1, head]) / np.sqrt(3)
            shares = np.exp(products - products.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            wanted = np.einsum("st,stc->sc", shares, v[:, : place + 1, head])
            np.testing.assert_allclose(found[:, place, head], wanted, rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_sample_is_the_mean_over_its_tokens() -> None:
    outputs, labels = random_floats(3, 5, 7), RNG.integers(0, 7, (3, 5))
    entropies = np.log(np.exp(outputs).sum(-1)) - np.take_along_axis(outputs, labels[..., None], -1)[..., 0]
    found = optimizer.loss_function("cross_entropy")(tf.constant(outputs), tf.constant(labels))
    np.testing.assert_allclose(found.numpy(), entropies.mean(1), rtol=1e-5)
