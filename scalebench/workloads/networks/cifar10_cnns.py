"""Networks for CIFAR-10.

cifar10_cnn is the small CNN of Keras' example cifar10_cnn.py, which @avolkov1 trained on several GPUs. The others are
those of tf_cnn_benchmarks (tensorflow/benchmarks, models/alexnet_model.py, densenet_model.py and resnet_model.py v1)
with its layer names. The DenseNets differ from Huang et al. 2016: a transition leaves 24 channels, because the original
code takes the width of the last convolution plus its growth for the width of the block, and its convolutions have
biases. The ResNets are those of He et al. 2015, section 4.2, with parameter-free shortcuts (option A).
"""

from __future__ import annotations

from scalebench.workloads.network import Network, Node

GROWTH = 12  # channels that each layer of a DenseNet block adds


def cifar10_cnn(net: Network, outputs: int) -> None:
    """Build the CNN of Keras' example; 1,250,858 parameters with inputs of 32 x 32 and 10 outputs."""
    x = net.input
    for block, filters in enumerate((32, 64)):
        x = net.relu(net.conv(x, f"conv{2 * block + 1}", filters, 3))
        x = net.relu(net.conv(x, f"conv{2 * block + 2}", filters, 3, padding="valid"))
        x = net.dropout(net.max_pool(x, 2, strides=2), 0.25)
    x = net.dropout(net.relu(net.dense(net.flatten(x), "dense1", 512)), 0.5)
    net.dense(x, "dense2", outputs)


def alexnet_cifar10(net: Network, outputs: int) -> None:
    """Build AlexNet for CIFAR-10; 1,756,619 parameters with inputs of 32 x 32 and 11 outputs."""
    x = net.relu(net.conv(net.input, "conv0", 64, 5, init="he_uniform"))
    x = _local_norm(net, net.max_pool(x, 3, strides=2, padding="same"))
    x = _local_norm(net, net.relu(net.conv(x, "conv1", 64, 5, init="he_uniform")))
    x = net.flatten(net.max_pool(x, 3, strides=2, padding="same"))
    for name, units in (("affine0", 384), ("affine1", 192)):
        x = net.relu(net.dense(x, name, units, init="he_uniform"))
    net.dense(x, "affine2", outputs)


def _local_norm(net: Network, x: Node) -> Node:
    return net.lrn(x, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)


def densenet(net: Network, outputs: int, layers: int) -> None:
    """Build a DenseNet with growth 12: three blocks of `layers` layers each, with transitions between them."""
    x = _dense_conv(net, net.input, 16, 3)
    for block in range(3):
        if block:
            x = net.relu(_dense_conv(net, _dense_bn_relu(net, x), 2 * GROWTH, 1))
            x = net.avg_pool(x, 2, strides=2)
        for _ in range(layers):
            x = net.concat(x, _dense_conv(net, _dense_bn_relu(net, x), GROWTH, 3))
    net.dense(net.global_avg_pool(_dense_bn_relu(net, x)), "affine0", outputs)


def _dense_bn_relu(net: Network, x: Node) -> Node:
    return net.relu(net.batch_norm(x, f"batchnorm{net.count('batch_norm')}", epsilon=1e-5, momentum=0.9))


def _dense_conv(net: Network, x: Node, filters: int, kernel: int) -> Node:
    return net.conv(x, f"conv{net.count('conv')}", filters, kernel, init="he_uniform")


def resnet(net: Network, outputs: int, blocks: int) -> None:
    """Build three stacks of `blocks` blocks each, without a relu behind the first convolution, as in the original."""
    x = _conv_bn(net, net.input, 16)
    for filters in (16, 32, 64):
        for block in range(blocks):
            strides = 2 if block == 0 and filters > 16 else 1
            shortcut = x
            if x.shape[-1] != filters:
                shortcut = net.pad_channels(net.avg_pool(x, 1, strides), (filters - x.shape[-1]) // 2)
            x = _conv_bn(net, net.relu(_conv_bn(net, x, filters, strides)), filters)
            x = net.relu(net.add(shortcut, x))
    net.dense(net.global_avg_pool(x), "affine0", outputs)


def _conv_bn(net: Network, x: Node, filters: int, strides: int = 1) -> Node:
    number = net.count("conv")
    x = net.conv(x, f"conv{number}", filters, 3, strides, bias=False, init="he_uniform")
    return net.batch_norm(x, f"batchnorm{number}", epsilon=1e-5, momentum=0.9)
