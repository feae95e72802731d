"""Compute dtypes and tables (the operations are in test_network_operations.py); optimizers and losses by name, against
reference computations."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from scalebench.core import spec
from scalebench.core.errors import InputError
from scalebench.core.spec import TrainSpec
from scalebench.strategies.tensorflow import optimizer as training
from scalebench.strategies.tensorflow.model import OPERATIONS, NetworkModel, lookup_rows
from scalebench.workloads.network import Network
from tests.strategies.builders import random_arrays, random_floats, residual_network, step_weight


def model(net, **others):
    arrays = random_arrays(net)
    return NetworkModel(net, arrays, **others), arrays


def outputs_and_gradients(inputs, **settings):
    made = model(residual_network(), **settings)[0]

    @tf.function(autograph=False)
    def compute(x):
        with tf.GradientTape() as tape:
            outputs = made(x, training=True)
            loss = tf.reduce_mean(tf.square(outputs))
        return outputs, tape.gradient(loss, [variable.value for variable in made.trainable_variables])

    outputs, gradients = compute(tf.constant(inputs))
    names = [a.name for a in made.network.arrays if a.trainable]
    found = {"outputs": outputs, **dict(zip(names, gradients, strict=True))}
    assert {value.dtype for value in found.values()} == {tf.float32}
    return {name: value.numpy() for name, value in found.items()}


def test_bfloat16_is_near_float32():
    """Eight bits of mantissa, through a few layers; weights, statistics, outputs and gradients stay float32."""
    x = random_floats((10, 10, 3))
    near, exact = (outputs_and_gradients(x, compute_dtype=each) for each in ("bfloat16", "float32"))
    for name, values in exact.items():
        away = np.abs(near[name] - values).max() / np.abs(values).max()
        assert 0 < away < 0.1, name


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16", "float16"])
def test_bytes_are_scaled_to_minus_one_to_one(compute_dtype):
    """Bit by bit, and not in a function, where TensorFlow multiplies by the inverse instead of dividing."""
    net = Network("net", (4, 4, 3))
    net.dense(net.flatten(net.input), "dense", 3)
    made = model(net, compute_dtype=compute_dtype)[0]
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3), np.uint8)
    as_floats = (pixels / np.float32(127.5) - 1).astype(np.float32)
    np.testing.assert_array_equal(made(tf.constant(pixels)).numpy(), made(tf.constant(as_floats)).numpy())


def test_operations_optimizers_and_losses_by_name():
    methods = {name for name, value in vars(Network).items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(OPERATIONS) == methods - {"count"}
    assert set(training.OPTIMIZERS) == set(spec.OPTIMIZERS)
    with pytest.raises(InputError, match=r"'adm'.*adam"):
        training.create_optimizer(train_spec("adm"), RATE)
    with pytest.raises(InputError, match=r"'cross_entrop'.*cross_entropy"):
        training.loss_function("cross_entrop")


def test_large_indices_are_looked_up_with_bfloat16():
    """As floats of 16 bits they would be others: 257 is none."""
    net = Network("net", (2,))
    net.embedding(net.input, "tokens", 300, 4)
    made, arrays = model(net, compute_dtype="bfloat16")
    for dtype in (np.int32, np.int64):
        looked_up = made(tf.constant(np.array([[257, 299]], dtype))).numpy()
        np.testing.assert_allclose(looked_up[0], arrays["tokens/embeddings"][[257, 299]], rtol=1e-2)


def test_gradients_of_tables_are_dense_and_large_indices_are_looked_up():
    table, rows = tf.Variable(random_floats((3,), 7)), tf.constant([[1, 4, 1], [6, 1, 0]])
    upstream = tf.constant(random_floats((3, 3)))
    with tf.GradientTape(persistent=True) as tape:
        ours = tf.reduce_sum(lookup_rows(tf.convert_to_tensor(table), rows) * upstream)
        gathered = tf.reduce_sum(tf.gather(table, rows) * upstream)
    actual, expected = tape.gradient(ours, table), tape.gradient(gathered, table)
    assert isinstance(expected, tf.IndexedSlices) and tf.is_tensor(actual) and not isinstance(actual, tf.IndexedSlices)
    np.testing.assert_allclose(actual.numpy(), tf.convert_to_tensor(expected).numpy(), rtol=1e-6)


STEPS, RATE = 20, 0.01
RATES = [RATE * (1 + step % 7) / 7 for step in range(STEPS)]  # as a warm-up, again and again


def train_spec(name, decay=0.0):
    return TrainSpec(optimizer=name, weight_decay=decay, momentum=0.8)


def gradient_series(scale):
    return [np.random.default_rng(i).normal(size=7).astype(np.float32) * np.float32(scale) for i in range(STEPS)]


def by_keras(optimizer, scale):
    variable = keras.Variable(np.linspace(0.5, 2, 7, dtype=np.float32))
    optimizer.build([variable])
    apply = tf.function(lambda gradient: optimizer.apply([gradient], [variable]), autograph=False)
    for gradient, rate in zip(gradient_series(scale), RATES, strict=True):
        training.set_learning_rate(optimizer, rate)
        apply(tf.constant(gradient))
    assert apply.experimental_get_tracing_count() == 1
    return variable.numpy()


def by_formula(train, scale):
    weight, state = np.linspace(0.5, 2, 7, dtype=np.float32), {}
    for gradient, rate in zip(gradient_series(scale), RATES, strict=True):
        weight = step_weight(train, state, weight, gradient, np.float32(rate))
    return weight


@pytest.mark.parametrize("name", training.OPTIMIZERS)
def test_optimizers_follow_their_formulas(name):
    """With gradients of an ordinary size and as small as the epsilon, which Keras' own Adam takes in at another place,
    at rates that change with every update. Those of PyTorch are tested against the same formulas."""
    for decay, scale in ((0.0, 1.0), (0.3, 1.0), (0.0, 1e-7), (0.3, 1e-7), (0.3, 1e-6)):
        wanted = by_formula(train_spec(name, decay), scale)
        actual = by_keras(training.create_optimizer(train_spec(name, decay), RATE), scale)
        np.testing.assert_allclose(actual, wanted, rtol=3e-6)
        if decay:
            assert np.abs(wanted - by_formula(train_spec(name), scale)).max() > 1e-3


def test_an_optimizer_that_scales_the_loss_sums_before_the_one_within_it():
    inner, pairs = training.create_optimizer(train_spec("sgd"), RATE), [("gradient", "variable")]
    training.SummingLossScaleOptimizer(inner)
    assert inner._all_reduce_sum_gradients(pairs) == pairs
