"""A network as data: shapes, padding, arrays, parameters and multiply-adds of each operation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.core.errors import InputError
from scalebench.workloads.network import Network


def image(size=8, channels=3):
    return Network("net", (size, size, channels))


def test_a_convolution_over_two_axes():
    net = image()
    node = net.conv(net.input, "conv", 16, (1, 7))
    assert (node.op, node.inputs, node.shape) == ("conv", ("input",), (8, 8, 16))
    assert node.settings == {"strides": 1, "pads": ((0, 0), (3, 3))}
    assert [(a.name, a.shape, a.init) for a in node.arrays] == [
        ("conv/kernel", (1, 7, 3, 16), "glorot_uniform"),
        ("conv/bias", (16,), "zeros"),
    ]
    assert node.macs == 8 * 8 * 7 * 3 * 16


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


@pytest.mark.parametrize(
    ("padding", "strides", "pads", "size"), [("valid", 1, 0, 6), ("valid", 2, 0, 3), (1, 2, 1, 4), (2, 1, 2, 10)]
)
def test_valid_and_numbers_of_zeros(padding, strides, pads, size):
    net = image()
    for node in (net.conv(net.input, "conv", 1, 3, strides, padding), net.max_pool(net.input, 3, strides, padding)):
        assert node.shape[:2] == (size, size) and node.settings["pads"] == ((pads, pads), (pads, pads))


def test_a_dense_layer_wants_a_flat_input():
    net = image()
    with pytest.raises(ValueError, match=r"dense: flatten input of shape \(8, 8, 3\) first"):
        net.dense(net.input, "dense", 5)
    node = net.dense(net.flatten(net.input), "dense", 5)
    assert node.shape == (5,) and node.macs == 192 * 5
    assert [a.shape for a in node.arrays] == [(192, 5), (5,)]


@pytest.mark.parametrize(("scale", "trained"), [(True, ["gamma", "beta"]), (False, ["beta"])])
def test_moving_statistics_are_not_trained(scale, trained):
    net = image()
    node = net.batch_norm(net.input, "bn", epsilon=1e-5, momentum=0.9, scale=scale)
    assert [a.name for a in node.arrays if a.trainable] == [f"bn/{last}" for last in trained]
    assert [(a.name, a.init) for a in node.arrays if not a.trainable] == [
        ("bn/moving_mean", "zeros"),
        ("bn/moving_variance", "ones"),
    ]
    assert node.settings == {"epsilon": 1e-5, "momentum": 0.9, "scale": scale}
    assert net.parameters == 3 * len(trained) and len(net.arrays) == 2 + len(trained)


def test_joining():
    net = image()
    wide = net.conv(net.input, "wide", 5, 1)
    assert net.concat(net.input, wide, net.input).shape == (8, 8, 11)
    assert net.add(wide, wide).inputs == ("wide", "wide")
    with pytest.raises(ValueError, match="add of input"):
        net.add(net.input, wide)
    with pytest.raises(ValueError, match="concat of"):
        net.concat(net.input, net.max_pool(net.input, 2, 2))


def test_counting():
    net = image()
    x = net.relu(net.conv(net.input, "a", 4, 3))
    assert (net.count("conv"), net.count("dense"), net.output) == (1, 0, x)
    net.dropout(net.dense(net.flatten(x), "b", 2), 0.5)
    assert net.parameters == (27 * 4 + 4) + (256 * 2 + 2)
    assert net.forward_flops == 2 * (64 * 27 * 4 + 256 * 2)
    assert net.training_flops == 3 * net.forward_flops
    assert [node.name for node in net.nodes] == ["input", "a", "relu_2", "flatten_3", "b", "dropout_5"]


def test_mistakes():
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


def tokens(length=5):
    return Network("net", (length,))


def test_a_table_and_positions():
    net = tokens()
    rows = net.embedding(net.input, "tokens", 11, 6)
    assert (rows.shape, rows.macs) == ((5, 6), 0)
    assert [(a.name, a.shape, a.init) for a in rows.arrays] == [("tokens/embeddings", (11, 6), "normal:0.02")]
    placed = net.positions(rows, "places", "normal:0.01")
    assert (placed.shape, placed.macs) == ((5, 6), 0)
    assert [(a.name, a.shape, a.init) for a in placed.arrays] == [("places/embeddings", (5, 6), "normal:0.01")]
    with pytest.raises(ValueError, match=r"more: tokens of shape \(5, 6\) is no input of numbers"):
        net.embedding(rows, "more", 11, 6)


def test_attention_multiplies_all_pairs_of_positions_twice():
    net = Network("net", (5, 6))
    x = net.input
    node = net.attention(x, x, x, "attention", heads=2)
    assert (node.shape, node.settings, node.arrays) == ((5, 6), {"heads": 2, "head_width": 3}, ())
    assert node.macs == 2 * 5 * 5 * 6
    with pytest.raises(ValueError, match=r"other: 4 heads over \(5, 6\)"):
        net.attention(x, x, x, "other", heads=4)
    with pytest.raises(ValueError, match="odd: 1 heads over"):
        net.attention(x, net.dense(x, "dense", 4), x, "odd", heads=1)
