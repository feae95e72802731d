"""The two AlexNets of tf_cnn_benchmarks (tensorflow/benchmarks, models/alexnet_model.py), with its layer names."""

from __future__ import annotations

from scalebench.workloads.network import Network, Node


def alexnet(net: Network, outputs: int) -> None:
    """For ImageNet; 61,838,248 parameters with inputs of 224 x 224 and 1000 outputs.

    The original takes images of 227 x 227 without padding; 2 zeros on every side give the same 55 x 55 positions
    from 224, as in torchvision. That one has 256 filters in its fourth convolution, this one 384.
    """
    x = net.relu(net.conv(net.input, "conv0", 64, 11, strides=4, padding=2, init="he_uniform"))
    x = net.max_pool(x, 3, strides=2)
    x = net.relu(net.conv(x, "conv1", 192, 5, init="he_uniform"))
    x = net.max_pool(x, 3, strides=2)
    for name, filters in (("conv2", 384), ("conv3", 384), ("conv4", 256)):
        x = net.relu(net.conv(x, name, filters, 3, init="he_uniform"))
    x = net.flatten(net.max_pool(x, 3, strides=2))
    for name in ("affine0", "affine1"):
        x = net.dropout(net.relu(net.dense(x, name, 4096, init="he_uniform")), 0.5)
    net.dense(x, "affine2", outputs)


def alexnet_cifar10(net: Network, outputs: int) -> None:
    """For CIFAR-10; 1,756,619 parameters with inputs of 32 x 32 and 11 outputs."""
    x = net.relu(net.conv(net.input, "conv0", 64, 5, init="he_uniform"))
    x = _normalised(net, net.max_pool(x, 3, strides=2, padding="same"))
    x = _normalised(net, net.relu(net.conv(x, "conv1", 64, 5, init="he_uniform")))
    x = net.flatten(net.max_pool(x, 3, strides=2, padding="same"))
    for name, units in (("affine0", 384), ("affine1", 192)):
        x = net.relu(net.dense(x, name, units, init="he_uniform"))
    net.dense(x, "affine2", outputs)


def _normalised(net: Network, x: Node) -> Node:
    return net.lrn(x, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
