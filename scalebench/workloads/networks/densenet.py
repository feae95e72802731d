"""DenseNets for CIFAR-10 as tf_cnn_benchmarks has them (tensorflow/benchmarks, models/densenet_model.py), with its
layer names. Not quite those of Huang et al. 2016: a transition leaves 24 channels, because the original takes the
width of the last convolution plus its growth for the width of the block; and its convolutions have biases."""

from __future__ import annotations

from scalebench.workloads.network import Network, Node

GROWTH = 12


def densenet40_k12(net: Network, outputs: int) -> None:
    _densenet(net, outputs, layers=12)


def densenet100_k12(net: Network, outputs: int) -> None:
    _densenet(net, outputs, layers=32)


def _densenet(net: Network, outputs: int, layers: int) -> None:
    """Three blocks of so many layers, with transitions between."""
    x = _conv(net, net.input, 16, 3)
    for block in range(3):
        if block:
            x = net.relu(_conv(net, _normalised(net, x), 2 * GROWTH, 1))
            x = net.avg_pool(x, 2, strides=2)
        for _ in range(layers):
            x = net.concat(x, _conv(net, _normalised(net, x), GROWTH, 3))
    net.dense(net.global_avg_pool(_normalised(net, x)), "affine0", outputs)


def _normalised(net: Network, x: Node) -> Node:
    return net.relu(net.batch_norm(x, f"batchnorm{net.count('batch_norm')}", epsilon=1e-5, momentum=0.9))


def _conv(net: Network, x: Node, filters: int, kernel: int) -> Node:
    return net.conv(x, f"conv{net.count('conv')}", filters, kernel, init="he_uniform")
