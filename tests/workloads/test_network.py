"""A network as data: shapes, padding, arrays, parameters and multiply-adds of each operation; its initial weights, with
limits from the fans and each array from its own name; and the learning rate of every update."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.core.spec import StopSpec, TrainSpec
from scalebench.workloads.learning_rate import LearningRateSchedule, list_step_limits
from scalebench.workloads.network import Network
from scalebench.workloads.weights import initial_weights
from tests.builders.runs import simulated_spec


def image(size=8, channels=3):
    return Network("net", (size, size, channels))


def test_arrays_of_layers_and_their_initial_values():
    net = image()
    net.batch_norm(net.conv(net.input, "conv", 16, (1, 7)), "bn")
    assert net.nodes[1].settings == {"strides": 1, "pads": ((0, 0), (3, 3))}
    arrays = {a.name: (a.shape, a.init) for a in net.arrays}
    ones = dict.fromkeys(("bn/gamma", "bn/moving_variance"), ((16,), "ones"))
    zeros = dict.fromkeys(("conv/bias", "bn/beta", "bn/moving_mean"), ((16,), "zeros"))
    assert arrays == {"conv/kernel": ((1, 7, 3, 16), "glorot_uniform"), **ones, **zeros}


@given(st.integers(1, 64), st.integers(1, 11), st.integers(1, 4))
def test_same_gives_a_position_for_each_stride_and_pads_behind(size, width, strides):
    """https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2"""
    net = Network("net", (size, 1))
    node = net.conv(net.input, "conv", 1, width, strides)
    ((before, after),) = node.settings["pads"]
    assert node.shape[0] == -(-size // strides)
    assert after - before in (0, 1)
    used = (node.shape[0] - 1) * strides + width  # from the first padded position on
    assert used == size + before + after or (before == after == 0 and used <= size)


def test_valid_and_numbers_of_zeros():
    net = image()
    for padding, strides, pads, size in (("valid", 1, 0, 6), ("valid", 2, 0, 3), (1, 2, 1, 4), (2, 1, 2, 10)):
        name = f"conv{strides}{padding}"
        for node in (net.conv(net.input, name, 1, 3, strides, padding), net.max_pool(net.input, 3, strides, padding)):
            assert node.shape[:2] == (size, size) and node.settings["pads"] == ((pads, pads), (pads, pads))


def test_dense_and_joining_nodes():
    net = image()
    with pytest.raises(ValueError, match=r"dense: flatten input of shape \(8, 8, 3\) first"):
        net.dense(net.input, "dense", 5)
    node = net.dense(net.flatten(net.input), "dense", 5)
    assert node.shape == (5,) and node.macs == 192 * 5
    assert [a.shape for a in node.arrays] == [(192, 5), (5,)]
    net = image()
    wide = net.conv(net.input, "wide", 5, 1)
    assert net.concat(net.input, wide, net.input).shape == (8, 8, 11)
    assert net.add(wide, wide).inputs == ("wide", "wide")
    with pytest.raises(ValueError, match="add of input"):
        net.add(net.input, wide)
    with pytest.raises(ValueError, match="concat of"):
        net.concat(net.input, net.max_pool(net.input, 2, 2))


def test_counting_and_mistakes():
    net = image()
    x = net.relu(net.conv(net.input, "a", 4, 3))
    assert (net.count("conv"), net.count("dense"), net.output) == (1, 0, x)
    net.dropout(net.dense(net.flatten(x), "b", 2), 0.5)
    assert net.parameters == (27 * 4 + 4) + (256 * 2 + 2)
    assert net.forward_flops == 2 * (64 * 27 * 4 + 256 * 2)
    assert net.training_flops == 3 * net.forward_flops
    assert [node.name for node in net.nodes] == ["input", "a", "relu_2", "flatten_3", "b", "dropout_5"]
    with pytest.raises(InputError, match=r"^inputs of 2x2 are too small for net: conv slides a window of 3 over 2; "):
        image(size=2).conv(image(size=2).input, "conv", 4, 3, padding="valid")
    net = image()
    net.conv(net.input, "conv", 4, 3)
    with pytest.raises(ValueError, match="two nodes named conv"):
        net.conv(net.input, "conv", 4, 3)
    with pytest.raises(ValueError, match="padding full"):
        net.conv(net.input, "other", 4, 3, padding="full")
    with pytest.raises(ValueError, match=r"window \(3,\) over spatial axes"):
        net.conv(net.input, "other", 4, (3,))


def test_tables_positions_and_attention():
    """Attention multiplies all pairs of positions twice."""
    net = Network("net", (5,))
    rows = net.embedding(net.input, "tokens", 11, 6)
    assert (rows.shape, rows.macs) == ((5, 6), 0)
    assert [(a.name, a.shape, a.init) for a in rows.arrays] == [("tokens/embeddings", (11, 6), "normal:0.02")]
    placed = net.positions(rows, "places", "normal:0.01")
    assert (placed.shape, placed.macs) == ((5, 6), 0)
    assert [(a.name, a.shape, a.init) for a in placed.arrays] == [("places/embeddings", (5, 6), "normal:0.01")]
    with pytest.raises(ValueError, match=r"more: tokens of shape \(5, 6\) is not an input of numbers"):
        net.embedding(rows, "more", 11, 6)
    net = Network("net", (5, 6))
    x = net.input
    node = net.attention(x, x, x, "attention", heads=2)
    assert (node.shape, node.settings, node.arrays) == ((5, 6), {"heads": 2, "head_width": 3}, ())
    assert node.macs == 2 * 5 * 5 * 6
    with pytest.raises(ValueError, match=r"other: 4 heads over \(5, 6\)"):
        net.attention(x, x, x, "other", heads=4)
    with pytest.raises(ValueError, match="odd: 1 heads over"):
        net.attention(x, net.dense(x, "dense", 4), x, "odd", heads=1)


@pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"), [((300, 40), 300, 40), ((7, 16, 24), 112, 168), ((3, 5, 8, 32), 120, 480)]
)  # by hand
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


def test_zeros_ones_and_mistakes():
    weights = initial_weights([("bias", (4,), "zeros"), ("gamma", (3,), "ones")], seed=0)
    assert weights["bias"].tolist() == [0] * 4 and weights["gamma"].tolist() == [1] * 3
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    for layers, message in (
        ([("a", (2, 2), "he_normal")], "unknown init he_normal"),
        ([("a", (2,), "he_uniform")], "no fan-in"),
        ([("a", (2,), "ones"), ("a", (3,), "ones")], "two layers are named a"),
    ):
        with pytest.raises(ValueError, match=message):
            dict(initial_weights(layers, 0))


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


PER_EPOCH = 10


def rates(updates=0, **changes):
    """Those of the first updates, the highest being 1."""
    made = LearningRateSchedule(TrainSpec(**changes), 1.0, PER_EPOCH)
    return [made.at_step(number) for number in range(updates)]


def test_without_a_schedule_all_are_the_highest_after_a_linear_warm_up():
    assert rates(5) == [1.0] * 5
    assert LearningRateSchedule(TrainSpec(), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(warmup_epochs=0.1), 1.0, PER_EPOCH).is_constant
    assert not LearningRateSchedule(TrainSpec(schedule="step", decay_epochs=[1.0]), 1.0, PER_EPOCH).is_constant
    assert rates(6, warmup_epochs=0.4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_schedules_go_down_to_their_ends():
    """Linear to nothing and never below. Of cosine Loshchilov and Hutter's equation 5 by hand: (1 + cos(pi t / T)) / 2
    with T = 8 updates after two of warm-up. By steps after their epochs, where a fraction is the nearest step."""
    found = rates(10, schedule="linear", stop=StopSpec(epochs=1.0))
    assert found == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert rates(13, schedule="linear", stop=StopSpec(steps=10))[10:] == [0.0] * 3, "never below"
    found = rates(10, schedule="cosine", warmup_epochs=0.2, stop=StopSpec(steps=10, epochs=7.0))
    assert found[:2] == pytest.approx([1 / 3, 2 / 3])
    assert found[2::2] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    found = rates(40, schedule="step", decay_epochs=[1.24, 3.0], decay=0.5)
    assert found == [1.0] * 12 + [0.5] * 18 + [0.25] * 10


def test_ends_that_are_counted_in_updates():
    for stop, ends in (
        (StopSpec(), []), (StopSpec(seconds=1.0, target=0.1), []), (StopSpec(epochs=2.5), [25]),
        (StopSpec(epochs=0.01), [1]), (StopSpec(steps=7), [7]), (StopSpec(epochs=1.0, steps=7), [10, 7]),
    ):  # fmt: skip
        assert list_step_limits(TrainSpec(stop=stop), PER_EPOCH) == ends


def test_the_highest_is_by_the_rule_for_the_global_batch():
    for rule, rate in (("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)):
        spec = simulated_spec(2, train=TrainSpec(10, learning_rate_rule=rule, base_batch=5))
        assert spec.learning_rate == pytest.approx(rate)
        assert LearningRateSchedule.from_spec(spec, PER_EPOCH).at_step(3) == spec.learning_rate
