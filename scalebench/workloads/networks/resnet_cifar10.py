"""ResNets for CIFAR-10 as tf_cnn_benchmarks has them (tensorflow/benchmarks, models/resnet_model.py, v1), with its
layer names: He et al. 2015, section 4.2, with shortcuts without parameters (option A)."""

from __future__ import annotations

from scalebench.workloads.network import Network, Node


def resnet20(net: Network, outputs: int) -> None:
    _resnet(net, outputs, blocks=3)


def resnet32(net: Network, outputs: int) -> None:
    _resnet(net, outputs, blocks=5)


def resnet44(net: Network, outputs: int) -> None:
    _resnet(net, outputs, blocks=7)


def resnet56(net: Network, outputs: int) -> None:
    _resnet(net, outputs, blocks=9)


def resnet110(net: Network, outputs: int) -> None:
    _resnet(net, outputs, blocks=18)


def _resnet(net: Network, outputs: int, blocks: int) -> None:
    """Three stacks of so many blocks. No relu behind the first convolution: so the original."""
    x = _conv_bn(net, net.input, 16)
    for filters in (16, 32, 64):
        for block in range(blocks):
            x = _block(net, x, filters, strides=2 if block == 0 and filters > 16 else 1)
    net.dense(net.global_avg_pool(x), "affine0", outputs)


def _block(net: Network, x: Node, filters: int, strides: int) -> Node:
    shortcut = x
    if x.shape[-1] != filters:
        shortcut = net.pad_channels(net.avg_pool(x, 1, strides), (filters - x.shape[-1]) // 2)
    x = net.relu(_conv_bn(net, x, filters, strides))
    return net.relu(net.add(shortcut, _conv_bn(net, x, filters)))


def _conv_bn(net: Network, x: Node, filters: int, strides: int = 1) -> Node:
    number = net.count("conv")
    x = net.conv(x, f"conv{number}", filters, 3, strides, bias=False, init="he_uniform")
    return net.batch_norm(x, f"batchnorm{number}", epsilon=1e-5, momentum=0.9)
